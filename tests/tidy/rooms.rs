//! The rooms of `src`, and the rooms within `src/coordination` and `src/runner`: the ranks, and the fields that a room keeps
//! private.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, code, files, none};

/// A folder whose rooms have ranks, from the lowest. A file uses files of its own room, without a circle, and of lower
/// ranks; never of another room of the same rank. A room is a folder or a file below the root; the longest prefix counts.
struct House {
    /// The folder of the rooms, with a `/` at its end.
    root: &'static str,
    ranks: &'static [(&'static str, u8)],
}

const SRC: House = House {
    root: "src/",
    ranks: &[
        ("excerpt.rs", 0),
        ("mutants.rs", 0),
        ("codec.rs", 0),
        ("crypto.rs", 0),
        ("pem.rs", 0),
        ("private.rs", 0),
        ("reason.rs", 0),
        ("runtime_folder.rs", 0),
        ("credential_file.rs", 0),
        ("tree.rs", 0),
        ("job.rs", 1),
        ("quartz/", 1),
        ("registry/", 1),
        ("findings/", 2),
        ("config/", 2),
        ("elasticjob/", 2),
        ("telemetry/", 3),
        ("metrics/", 3),
        ("extension/", 3),
        ("bundle/", 4),
        ("coordination/", 4),
        ("job_files.rs", 4),
        ("runner/", 5),
        ("listen/", 6),
        ("api/", 7),
        ("dump.rs", 7),
        ("http/", 7),
        ("sidecar.rs", 8),
        ("cli/", 9),
        ("lib.rs", 10),
        ("main.rs", 11),
    ],
};

const COORDINATION: House = House {
    root: "src/coordination/",
    ranks: &[
        ("time.rs", 0),
        ("job/contract/", 0),
        ("lease.rs", 1),
        ("lock/", 2),
        ("sticky/", 2),
        ("job/picture/", 1),
        ("job/frame/", 2),
        ("job/agenda.rs", 3),
        ("job/membership/", 4),
        ("job/rotation.rs", 4),
        ("job/ledger.rs", 4),
        ("job/execution/", 5),
        ("job/item_lock.rs", 6),
        ("job/ownership/", 6),
        ("job/once/", 7),
        ("job/firing/", 8),
        ("job/failover/", 9),
        ("job/notices/", 10),
        ("job/lifecycle/", 11),
        ("job/participant.rs", 12),
        ("admin/", 12),
        ("", 13),
    ],
};

const RUNNER: House = House {
    root: "src/runner/",
    ranks: &[
        ("clock.rs", 0),
        ("elections.rs", 0),
        ("turns.rs", 0),
        ("heartbeat.rs", 1),
        ("lock_waits.rs", 0),
        ("outcomes.rs", 0),
        ("requests.rs", 0),
        ("waiting.rs", 0),
        ("state_file/", 1),
        ("session/", 2),
        ("nodes/", 3),
        ("shared.rs", 4),
        ("lock/", 5),
        ("sticky/", 5),
        ("job/", 6),
        ("attachments/", 7),
        ("admin/", 7),
        ("cancel.rs", 8),
        ("gauges.rs", 8),
        ("", 9),
    ],
};

impl House {
    /// The room of a file, and its rank.
    fn room(&self, file: &str) -> (&'static str, u8) {
        let known = self.ranks.iter().filter(|(prefix, _)| file.starts_with(prefix));
        *known.max_by_key(|(prefix, _)| prefix.len()).unwrap()
    }

    /// The beginning of the paths that lead into the house.
    fn path(&self) -> String {
        format!("crate::{}", self.root.trim_start_matches("src/").replace('/', "::"))
    }
}

/// The files of a house, by their paths below its root.
struct Rooms {
    house: &'static House,
    files: BTreeMap<String, File>,
}

impl Rooms {
    fn read(house: &'static House) -> Self {
        let rooms = files().into_iter().filter(|file| file.is_rust_source());
        let rooms = rooms.filter_map(|file| Some((file.path.strip_prefix(house.root)?.to_owned(), file)));
        Self { house, files: rooms.collect() }
    }

    /// The file that a module path leads to; the rest of the path are names in it.
    fn resolve(&self, path: &[&str]) -> Option<&str> {
        let known = |name: String| self.files.get_key_value(&name).map(|(name, _)| name.as_str());
        (0..=path.len()).rev().find_map(|length| {
            let folder = path[..length].join("/");
            let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            known(format!("{folder}.rs")).or_else(|| known(format!("{prefix}mod.rs")))
        })
    }

    /// The files that a file uses.
    fn uses(&self, file: &str) -> BTreeSet<&str> {
        let text: String = self.files[file].text.lines().map(|line| format!("{}\n", code(line))).collect();
        let mut module: Vec<_> = file.trim_end_matches(".rs").split('/').collect();
        module.pop_if(|last| *last == "mod");
        let parent = &module[..module.len().saturating_sub(1)];
        let (path, mut found) = (self.house.path(), BTreeSet::new());
        for (start, base) in [(path.as_str(), &[][..]), ("self::", &module), ("super::", parent)] {
            for (at, _) in text.match_indices(start).filter(|(at, _)| !text[..*at].ends_with("super::")) {
                // `super::*` in a module of tests is the file itself.
                for path in leaves(&text[at + start.len()..]).into_iter().filter(|path| !path[0].is_empty()) {
                    let path: Vec<_> = base.iter().copied().chain(path.iter().map(String::as_str)).collect();
                    found.extend(self.resolve(&path).filter(|used| *used != file));
                }
            }
        }
        found
    }
}

/// The paths that begin in a text: one, or those of a group in braces.
fn leaves(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    parts.push(&group[begin..at]);
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(&group[begin..at]);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return parts.into_iter().flat_map(leaves).collect();
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = text[..end].to_owned();
    match text[end..].strip_prefix("::") {
        Some(rest) => leaves(rest).into_iter().map(|rest| [vec![name.clone()], rest].concat()).collect(),
        None => vec![vec![name]],
    }
}

/// Whether one can come from a file back to it by uses within its room.
fn is_in_circle(house: &House, from: &str, to: &str, uses: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![to]);
    while let Some(file) = open.pop() {
        if file == from {
            return true;
        }
        if seen.insert(file) {
            open.extend(uses[file].iter().filter(|used| house.room(used) == house.room(file)));
        }
    }
    false
}

/// The violations of the ranks in a house.
fn violations(house: &'static House) -> Vec<String> {
    let rooms = Rooms::read(house);
    let uses: BTreeMap<_, _> = rooms.files.keys().map(|file| (file.as_str(), rooms.uses(file))).collect();
    let is_wrong = |(from, to): &(&str, &str)| {
        let ((here, rank), (there, below)) = (house.room(from), house.room(to));
        if here == there { is_in_circle(house, from, to, &uses) } else { below >= rank }
    };
    let pairs = uses.iter().flat_map(|(from, to)| to.iter().map(|to| (*from, *to)));
    let wrong = pairs.filter(is_wrong).map(|(from, to)| {
        format!(
            "{}{from} uses {to}: a file uses its own room without a circle, and rooms of lower ranks. Return a value, or \
             take an argument",
            house.root
        )
    });
    let is_missing = |room: &str| !rooms.files.keys().any(|file| file.starts_with(room));
    let missing = house.ranks.iter().filter(|(room, _)| is_missing(room));
    let missing =
        missing.map(|(room, _)| format!("{}{room} does not exist: remove it from the table", house.root));
    wrong.chain(missing).collect()
}

#[test]
fn rooms_use_lower_rooms_only() {
    none(&[&SRC, &COORDINATION, &RUNNER].into_iter().flat_map(violations).collect::<Vec<_>>());
}

#[test]
fn the_participant_is_in_one_file() {
    let rooms = Rooms::read(&COORDINATION);
    let pieces = rooms.files.iter().filter(|(name, file)| {
        *name != "job/participant.rs" && file.text.lines().any(|line| line.starts_with("impl Participant"))
    });
    let pieces = pieces.map(|(name, _)| {
        format!("{name} has an `impl Participant`: a decision is a function of its room, and not of the participant")
    });
    none(&pieces.collect::<Vec<_>>());
}

#[test]
fn fields_of_rooms_are_private() {
    let is_open = |line: &str| {
        let field = line.strip_prefix("    pub").map(|rest| rest.trim_start_matches(|c| c != ' '));
        let field = field.map(|rest| rest.trim_start_matches(" crate::coordination)").trim_start());
        let name = field.and_then(|field| field.split_once(':')).map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.is_empty() && name.chars().all(|c| c.is_lowercase() || c == '_' || c.is_numeric())
        })
    };
    let rooms = Rooms::read(&COORDINATION);
    let decides = rooms
        .files
        .iter()
        .filter(|(name, _)| (3..=12).contains(&COORDINATION.room(name).1) && !name.starts_with("admin/"));
    let open = decides.flat_map(|(name, file)| {
        let open = file.text.lines().filter(|line| is_open(line));
        open.map(move |line| {
            format!("{name}: `{}` is open: a field of a room is private; write a method", line.trim())
        })
    });
    none(&open.collect::<Vec<_>>());
}
