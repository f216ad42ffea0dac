//! Rules about the repository itself, checked like any other behaviour. Each message says what to do.
//!
//! Rules that a lint can check are elsewhere: `clippy.toml` bans clocks, tasks and random collections, and buf checks
//! the comments of the protos.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod monitoring;
mod rooms;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rooms that decide and perform no effect: a name that ends in `/` is a folder.
const PURE_ROOMS: [&str; 9] = [
    "src/excerpt.rs",
    "src/findings/",
    "src/tree.rs",
    "src/job.rs",
    "src/quartz/",
    "src/elasticjob/",
    "src/extension/",
    "src/bundle/",
    "src/coordination/",
];

/// The words that a pure room must not contain, with the reason.
const NOT_IN_PURE_ROOMS: [(&str, &str); 14] = [
    ("async", "a pure room never waits; return an effect and let the runner perform it"),
    ("await", "a pure room never waits; return an effect and let the runner perform it"),
    ("tokio", "a pure room holds no task, channel or timer"),
    ("tonic", "translate messages in src/api"),
    ("tracing", "a pure room does not log; put the reason into the effect, the runner logs it"),
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::time::Instant", "time is an argument, as a duration or a timestamp"),
    ("HashMap", "its order is random and breaks replay; use BTreeMap"),
    ("HashSet", "its order is random and breaks replay; use BTreeSet"),
    ("crate::registry", "arrows point from the shell to the pure rooms; speak in terms of crate::tree"),
    ("crate::runner", "arrows point from the shell to the pure rooms"),
    ("crate::api", "arrows point from the shell to the pure rooms"),
    ("std::fs", "a pure room reads no files; take the text as an argument"),
];

/// Marks of unfinished work, spelled in halves so that this file holds none of them.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("dbg", "!("),
    concat!("to", "do!("),
    concat!("unimplemented", "!("),
];

/// Files that are not written by hand here: generated code, lock files, recorded data, the licence.
const NOT_OURS: [&str; 6] = [
    "tests/fuzz/corpus/",
    "clients/go/proto/",
    "clients/python/sidekeeper/_proto/",
    "tests/fixtures/",
    "LICENSE",
    "go.sum",
];

/// A text file of the repository.
struct File {
    /// Its path from the root, with `/`.
    path: String,
    text: String,
}

impl File {
    fn is_ours(&self) -> bool {
        !is_lock(&self.path) && !NOT_OURS.iter().any(|prefix| self.path.starts_with(prefix))
    }

    fn is_rust_source(&self) -> bool {
        self.path.starts_with("src/") && self.path.ends_with(".rs")
    }

    fn numbered_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn is_lock(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    matches!(name, "Cargo.lock" | "package-lock.json" | "Gemfile.lock" | "go.sum")
}

/// All text files that are in git or not ignored by it.
fn files() -> Vec<File> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("these rules need git");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names: BTreeSet<String> =
        String::from_utf8(output.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect();
    let files: Vec<File> = names
        .into_iter()
        .filter_map(|path| Some(File { text: fs::read_to_string(root().join(&path)).ok()?, path }))
        .collect();
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "no sources among {} files", files.len());
    files
}

fn is_pure(path: &str) -> bool {
    PURE_ROOMS.iter().any(|room| path == *room || (room.ends_with('/') && path.starts_with(room)))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The line without its comment. A `//` inside a text is cut, too; no rule here needs such a text.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Whether `word` stands in `text` with no letter, digit or underscore directly beside it.
fn mentions(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(part_of_word)
            && (!after.is_some_and(part_of_word) || !word.ends_with(|c: char| c.is_alphanumeric()))
    })
}

#[test]
fn pure_rooms_contain_no_forbidden_words() {
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.is_rust_source()) {
        if !is_pure(&file.path) {
            continue;
        }
        for (number, line) in file.numbered_lines() {
            for (word, instead) in NOT_IN_PURE_ROOMS {
                let grouped = word == "std::time::Instant"
                    && mentions(code(line), "std::time")
                    && mentions(code(line), "Instant");
                if grouped || mentions(code(line), word) {
                    problems.push(format!("{}:{number}: `{word}` in a pure room: {instead}", file.path));
                }
            }
        }
    }
    none(&problems);
}

#[test]
fn no_file_has_marks_of_unfinished_work() {
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.is_ours()) {
        for (number, line) in file.numbered_lines() {
            for mark in UNFINISHED.iter().filter(|mark| mentions(line, mark)) {
                problems.push(format!("{}:{number}: `{mark}`: finish it, or take it out", file.path));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_module_begins_with_a_header() {
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.is_rust_source()) {
        if !file.text.starts_with("//! ") {
            problems.push(format!(
                "{}: begin it with `//! `: what it decides, what it must not touch, its source",
                file.path
            ));
        }
    }
    none(&problems);
}

#[test]
fn each_file_is_text() {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let names = String::from_utf8(output.expect("these rules need git").stdout).unwrap();
    let is_input = |path: &str| path.starts_with("tests/fuzz/corpus/");
    let is_binary =
        |path: &&str| !is_input(path) && fs::read(root().join(path)).is_ok_and(|data| data.contains(&0));
    let binary = names.split_terminator('\0').filter(is_binary);
    let problem = |path| format!("{path}: take the built file out, and name it in .gitignore");
    none(&binary.map(problem).collect::<Vec<_>>());
}

#[test]
fn files_have_no_superfluous_white_space() {
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.is_ours() && !file.text.is_empty()) {
        for (number, line) in file.numbered_lines() {
            if line.ends_with([' ', '\t', '\r']) {
                problems.push(format!("{}:{number}: remove the white space at the end", file.path));
            }
            if ["<<<<<<<", ">>>>>>>"].iter().any(|marker| line.starts_with(&format!("{marker} "))) {
                problems.push(format!("{}:{number}: a merge was left unfinished", file.path));
            }
        }
        if !file.text.ends_with('\n') || file.text.ends_with("\n\n") {
            problems.push(format!("{}: end it with one newline", file.path));
        }
    }
    none(&problems);
}

/// Texts in a document that look like paths into the repository.
fn paths_in(document: &str) -> BTreeSet<&str> {
    const TOPS: [&str; 8] = ["src/", "tests/", "clients/", "proto/", "examples/", "deploy/", "docs/", ".ci/"];
    document
        .split(|c: char| c.is_whitespace() || "`()[]\",;".contains(c))
        .map(|word| word.trim_end_matches(['.', ':']))
        .filter(|word| TOPS.iter().any(|top| word.starts_with(top)))
        .filter(|word| !word.contains(['*', '<', '{', '#']))
        .collect()
}

#[test]
fn documents_name_files_that_exist() {
    let mut problems = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        for path in paths_in(&read(document)) {
            if !root().join(path).exists() {
                problems.push(format!("{document}: there is no `{path}`: mend the document"));
            }
        }
    }
    none(&problems);
}

/// The codes of the catalogue of findings.
fn codes() -> BTreeSet<String> {
    let catalogue =
        ["mod.rs", "problem.rs", "sidecar.rs"].map(|file| read(&format!("src/findings/{file}"))).concat();
    let entry = |line: &str| {
        let (_, code) = line.trim().split_once("=> (\"").or_else(|| line.trim().split_once("=> \""))?;
        let (code, _) = code.split_once('"')?;
        code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_').then(|| code.to_owned())
    };
    let entries = catalogue.lines().filter_map(entry);
    entries.filter(|code| !code.is_empty()).collect()
}

#[test]
fn op_9_each_code_has_a_section_that_explains_it_and_a_test_that_finds_it() {
    let codes = codes();
    assert!(codes.len() > 20, "{codes:?}");
    let page = read("docs/operations.md");
    let sections: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    let mut problems = Vec::new();
    for code in codes.symmetric_difference(&sections) {
        problems.push(format!("docs/operations.md and src/findings/: only one of them has {code}"));
    }
    let tests = [
        "tests/it/explain.rs",
        "tests/e2e/test_explain.py",
        "tests/e2e/test_doctor.py",
        "tests/e2e/test_failure_tour.py",
        "src/coordination/admin/doctor.rs",
        "src/coordination/admin/explain.rs",
        "src/coordination/admin/pod.rs",
        "src/api/size.rs",
        "src/coordination/job/failover/takeover.rs",
        "tests/it/deadlines.rs",
        "tests/it/once.rs",
        "tests/simulation/allocation.rs",
        "tests/simulation/deadline.rs",
        "tests/simulation/instance_name.rs",
        "tests/simulation/restart.rs",
        "tests/e2e/test_outside.py",
    ];
    let tests = tests.map(read).concat();
    for code in codes.iter().filter(|code| !tests.contains(code.as_str())) {
        problems.push(format!(
            "{code}: no test finds it; add one to tests/it/explain.rs or tests/e2e/test_failure_tour.py"
        ));
    }
    none(&problems);
}

/// The arguments of the warnings and errors that a source file logs, each up to its message.
fn warnings(file: &File) -> Vec<String> {
    let text = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let begins = ["warn!(", "error!("];
    let sites = begins.iter().flat_map(|begin| text.match_indices(begin));
    let sites = sites
        .filter(|(at, _)| !text[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_'));
    sites.map(|(at, begin)| text[at + begin.len()..].trim_start().chars().take(80).collect()).collect()
}

#[test]
fn op_9_each_warning_and_error_has_an_event_that_the_documentation_explains() {
    let page = read("docs/log-events.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let explained: BTreeSet<_> = rows.map(|(code, _)| code.to_owned()).collect();
    let mut logged = BTreeSet::new();
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.is_rust_source() && !file.path.ends_with("tests.rs")) {
        for site in warnings(file) {
            let code = site.strip_prefix("event = \"").and_then(|rest| rest.split_once('"'));
            match code {
                Some((code, _)) => {
                    logged.insert(code.to_owned());
                }
                None => problems.push(format!("{}: give this line an `event` first: {site}", file.path)),
            }
        }
    }
    assert!(logged.len() > 40, "{logged:?}");
    for code in logged.symmetric_difference(&explained) {
        problems.push(format!("docs/log-events.md and the source: only one of them has {code}"));
    }
    none(&problems);
}

#[test]
fn each_deliberate_bug_is_in_the_laboratory_s_table() {
    let source = read("src/mutants.rs");
    let is_name = |name: &&str| name.chars().all(char::is_alphanumeric);
    let bugs: BTreeSet<_> =
        source.lines().filter_map(|line| line.trim().strip_suffix(',')).filter(is_name).collect();
    let page = read("docs/laboratory.md");
    let section = page.split("\n## Mutants\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let shown: BTreeSet<_> = rows.map(|(name, _)| name).collect();
    assert!(bugs.len() > 100, "{bugs:?}");
    let alone = bugs.symmetric_difference(&shown);
    let problem = |name| format!("docs/laboratory.md and src/mutants.rs: only one of them has {name}");
    none(&alone.map(problem).collect::<Vec<_>>());
}

#[test]
fn architecture_shows_every_room() {
    let map = read("ARCHITECTURE.md");
    let known = paths_in(&map);
    let mut problems = Vec::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let entry = entry.unwrap();
        let mut path = format!("src/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            path.push('/');
        }
        if !known.contains(path.as_str()) {
            problems.push(format!("ARCHITECTURE.md: put `{path}` on the map, with what it decides"));
        }
    }
    none(&problems);
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    // The checkout, the home directory of the user, and the usual folders of home directories.
    let mut forbidden: Vec<String> = ["/home/", "/Users/"]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("{}/", root().display())])
        .collect();
    forbidden.extend(std::env::var("HOME").ok().filter(|home| home.len() > 2).map(|home| format!("{home}/")));
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| file.path != "tests/tidy/main.rs") {
        for (number, line) in file.numbered_lines() {
            for path in forbidden.iter().filter(|path| line.contains(path.as_str())) {
                problems
                    .push(format!("{}:{number}: `{path}` is of one machine: use a relative path", file.path));
            }
        }
    }
    none(&problems);
}

/// Settings that name a package registry: the part of a file's name, and forbidden beginnings of its lines.
const REGISTRY_SETTINGS: [(&str, &[&str]); 8] = [
    ("package-lock.json", &["\"resolved\":"]),
    ("Cargo.toml", &["registry ="]),
    ("config.toml", &["[source", "[registries", "[registry", "registry =", "index ="]),
    (".npmrc", &["registry", "@"]),
    ("requirements", &["-i ", "--index-url", "--extra-index-url", "--find-links", "-f "]),
    ("pip.conf", &["index-url", "extra-index-url"]),
    ("pom.xml", &["<repositories>", "<pluginRepositories>"]),
    ("settings.xml", &["<mirror"]),
];

#[test]
fn no_file_names_a_package_registry() {
    let mut problems = Vec::new();
    for file in &files() {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        for (number, line) in file.numbered_lines() {
            let line = line.trim_start();
            let setting = REGISTRY_SETTINGS
                .iter()
                .filter(|(part, _)| name.contains(part))
                .flat_map(|(_, starts)| *starts)
                .find(|start| line.starts_with(**start));
            if let Some(setting) = setting {
                problems.push(format!(
                    "{}:{number}: `{setting}` names a package registry, which is a setting of the machine",
                    file.path
                ));
            }
            let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
            if name == "Cargo.lock" && line.starts_with("source = ") && !line.contains(crates_io) {
                problems.push(format!("{}:{number}: only crates.io may be a source: {line}", file.path));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_language_has_its_lock_file() {
    let all = files();
    let paths: BTreeSet<&str> = all.iter().map(|file| file.path.as_str()).collect();
    let mut problems = Vec::new();
    for file in &all {
        let (folder, name) = file.path.rsplit_once('/').map_or(("", file.path.as_str()), |parts| parts);
        let lock = match name {
            "Cargo.toml" => "Cargo.lock",
            "package.json" => "package-lock.json",
            "Gemfile" => "Gemfile.lock",
            "go.mod" => "go.sum",
            "pyproject.toml" => "requirements-dev.txt",
            _ => continue,
        };
        let lock = Path::new(folder).join(lock);
        if !paths.contains(lock.to_str().unwrap()) {
            problems.push(format!(
                "{}: add `{}`, so that every machine builds the same",
                file.path,
                lock.display()
            ));
        }
    }
    for file in all.iter().filter(|file| file.path.contains("requirements") && file.path.ends_with(".txt")) {
        for (number, line) in file.numbered_lines() {
            let requirement = line.split('#').next().unwrap_or(line).trim();
            if !requirement.is_empty() && !requirement.starts_with('-') && !requirement.contains("==") {
                problems.push(format!("{}:{number}: pin the version of `{requirement}` with ==", file.path));
            }
        }
    }
    none(&problems);
}

#[test]
fn client_libraries_have_the_version_of_the_sidecar() {
    let version = env!("CARGO_PKG_VERSION");
    let places = [
        ("clients/python/pyproject.toml", format!("version = \"{version}\"")),
        ("clients/python/sidekeeper/version.py", format!("__version__ = \"{version}\"")),
        ("clients/go/version.go", format!("const Version = \"{version}\"")),
    ];
    let differs = |(path, line): &&(&str, String)| !read(path).lines().any(|found| found == line);
    let problems =
        places.iter().filter(differs).map(|(path, line)| format!("{path}: wants the line `{line}`"));
    none(&problems.collect::<Vec<_>>());
}
