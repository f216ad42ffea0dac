//! `complete-names`: the names of jobs and instances for the shells' completion, and the lines that the completion scripts have for it.
//!
//! Decides of what the word at the cursor is a name. A person waits for the answer at each press of a key: it has [`BUDGET`], and a failure of any
//! kind means no names and no words.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory as _, Parser};
use clap_complete::Shell;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::endpoint::{SidecarArgs, authorized};
use super::{Cli, Failure, print};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{GetJobRequest, ListJobsRequest};

/// How long the names may take.
const BUDGET: Duration = Duration::from_millis(300);
/// The most names of jobs: the longest page of the API.
const JOBS_MAX: u32 = 1_000;
/// The largest accepted answer, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// In bash: names come in place of the script's own words. Bash takes a word apart at `@`, `:` and `=`, so the part before them is cut off.
const BASH: &str = r#"
_sidekeeper_with_names() {
    _sidekeeper "$@"
    local line="${COMP_LINE:0:COMP_POINT}" name names=()
    local word="${line##* }"
    local before="${word%"${word##*[@:=]}"}"
    while IFS= read -r name; do
        names+=("${name#"$before"}")
    done < <("${COMP_WORDS[0]}" complete-names -- "$line" 2>/dev/null)
    if ((${#names[@]})); then
        COMPREPLY=("${names[@]}")
    fi
}
complete -F _sidekeeper_with_names -o bashdefault -o default sidekeeper
"#;

/// In zsh: names come in place of the script's own words. A script that zsh loads at the first press of the key offers both that time.
const ZSH: &str = r#"
_sidekeeper_names() {
    local -a names
    names=(${(f)"$(sidekeeper complete-names -- "$LBUFFER" 2>/dev/null)"})
    (( $#names )) && compadd -a names
}
_sidekeeper_with_names() {
    _sidekeeper_names || _sidekeeper "$@"
}
compdef _sidekeeper_with_names sidekeeper
if [ "$funcstack[1]" = "_sidekeeper" ]; then
    _sidekeeper_names
fi
"#;

/// In fish: names are offered beside the script's own words.
const FISH: &str = r#"complete -c sidekeeper -f -n 'test -n "$(sidekeeper complete-names -- "$(commandline -cp)" 2>/dev/null)"' -a '(sidekeeper complete-names -- "$(commandline -cp)" 2>/dev/null)'
"#;

/// The end of a shell's script.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        Shell::Elvish | Shell::PowerShell | _ => "",
    }
}

#[derive(Args)]
pub(super) struct NamesArgs {
    /// The command line up to the cursor.
    #[arg(last = true, allow_hyphen_values = true)]
    line: String,
}

/// The flags of the line that say which sidecar is asked.
#[derive(Parser)]
struct Asked {
    #[command(flatten)]
    sidecar: SidecarArgs,
}

/// The kind of the word at the cursor.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// The name of a job.
    Job,
    /// An instance of this job.
    InstanceOf(String),
}

/// A command line up to the cursor.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    wanted: Wanted,
    /// The beginning of the word at the cursor.
    word: String,
    /// The flags that say which sidecar is asked.
    sidecar: Vec<String>,
}

pub(super) fn complete(args: &NamesArgs) -> Result<ExitCode, Failure> {
    let Some(line) = read(&args.line) else { return Ok(ExitCode::SUCCESS) };
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        return Ok(ExitCode::SUCCESS);
    };
    let names = runtime.block_on(async { timeout(BUDGET, ask(&line)).await });
    // A resolver that hangs is not waited for.
    runtime.shutdown_background();
    let names = names.ok().flatten().unwrap_or_default();
    let fitting = names.iter().filter(|name| name.starts_with(&line.word) && needs_no_quotes(name));
    let text: String = fitting.map(|name| format!("{name}\n")).collect();
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A name that means itself in each shell. Others are rare, and each shell quotes them in its own way.
fn needs_no_quotes(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '@' | ':' | '+' | ',');
    !name.starts_with('-') && name.chars().all(is_plain)
}

async fn ask(line: &Line) -> Option<Vec<String>> {
    let asked = Asked::try_parse_from([&["sidekeeper".to_owned()], line.sidecar.as_slice()].concat()).ok()?;
    let channel = asked.sidecar.sidecar().ok()?.connect().await.ok()?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    match &line.wanted {
        Wanted::Job => {
            let request = ListJobsRequest { page_size: JOBS_MAX, page_token: String::new() };
            let jobs = client.list_jobs(authorized(request).ok()?).await.ok()?.into_inner().jobs;
            Some(jobs.into_iter().map(|job| job.job_name).collect())
        }
        Wanted::InstanceOf(job) => {
            let request = GetJobRequest { job_name: job.clone() };
            let found = client.get_job(authorized(request).ok()?).await.ok()?.into_inner();
            Some(found.instances.into_iter().map(|instance| instance.instance_id).collect())
        }
    }
}

/// Reads a command line. `None`: the word at the cursor is no name, or no sidecar is to be asked.
fn read(line: &str) -> Option<Line> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let word = if line.ends_with(char::is_whitespace) { "" } else { words.pop()? };
    let mut words = words.into_iter().skip(1);
    let root = Cli::command();
    let command = root.find_subcommand(words.next()?)?;
    let takes_value = |arg: &clap::Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let option = |word: &str| {
        command.get_opts().find(|arg| match word.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => word
                .strip_prefix('-')
                .is_some_and(|short| arg.get_short().is_some_and(|c| *short == *c.to_string())),
        })
    };
    let mut values = BTreeMap::<String, Vec<String>>::new();
    let mut positional = command.get_positionals();
    let mut next = positional.next();
    let mut open: Option<&clap::Arg> = None;
    for word in words {
        if let Some(arg) = open.take() {
            values.entry(arg.get_id().to_string()).or_default().push(word.to_owned());
        } else if word == "--" {
            return None;
        } else if let Some((flag, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
            if let Some(arg) = option(flag) {
                values.entry(arg.get_id().to_string()).or_default().push(value.to_owned());
            }
        } else if word.starts_with('-') {
            open = option(word).filter(|arg| takes_value(arg));
        } else if let Some(arg) = next {
            values.entry(arg.get_id().to_string()).or_default().push(word.to_owned());
            if !matches!(arg.get_action(), ArgAction::Append) {
                next = positional.next();
            }
        }
    }
    if values.contains_key("zookeeper") || open.is_none() && word.starts_with('-') {
        return None;
    }
    let wanted = match open.or(next)?.get_id().as_str() {
        "job" | "jobs" => Wanted::Job,
        "instances" => Wanted::InstanceOf(values.get("job")?.first()?.clone()),
        _ => return None,
    };
    let of_sidecar = ["endpoint", "ca", "cert", "key"];
    let sidecar =
        of_sidecar.iter().filter_map(|flag| Some(format!("--{flag}={}", values.get(*flag)?.last()?)));
    Some(Line { wanted, word: word.to_owned(), sidecar: sidecar.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_at_the_cursor_is_known_by_the_words_before_it() {
        let job = |word: &str, sidecar: &[&str]| {
            let sidecar = sidecar.iter().map(|flag| (*flag).to_owned()).collect();
            Some(Line { wanted: Wanted::Job, word: word.to_owned(), sidecar })
        };
        assert_eq!(read("sidekeeper explain "), job("", &[]));
        assert_eq!(read("sidekeeper explain se"), job("se", &[]));
        assert_eq!(read("/usr/bin/sidekeeper  explain --item 3 --json se"), job("se", &[]));
        assert_eq!(read("sidekeeper bundle -o file one tw"), job("tw", &[]));
        assert_eq!(
            read("sidekeeper job --endpoint unix:/s --ca=/ca "),
            job("", &["--endpoint=unix:/s", "--ca=/ca"])
        );
        let instance = read("sidekeeper stop orders --instance 10.0.").unwrap();
        assert_eq!(instance.wanted, Wanted::InstanceOf("orders".to_owned()));
        assert_eq!(instance.word, "10.0.");
        for nothing in [
            "",
            "sidekeeper",
            "sidekeeper ",
            "sidekeeper expl",
            "sidekeeper nonsense ",
            "sidekeeper explain --it",
            "sidekeeper explain --item ",
            "sidekeeper explain orders ",
            "sidekeeper jobs ",
            "sidekeeper bundle -o ",
            "sidekeeper stop --instance ",
            "sidekeeper run -- explain ",
            "sidekeeper explain --zookeeper zk:1 ",
            "sidekeeper lock ",
        ] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn each_command_with_a_job_completes_its_names() {
        let root = Cli::command();
        let with_job = root.get_subcommands().filter(|command| {
            command.get_positionals().any(|arg| matches!(arg.get_id().as_str(), "job" | "jobs"))
        });
        let names: Vec<_> = with_job.map(|command| command.get_name().to_owned()).collect();
        assert!(names.len() >= 13, "{names:?}");
        for name in names {
            assert!(read(&format!("sidekeeper {name} x")).is_some(), "{name}");
        }
    }

    #[test]
    fn names_that_a_shell_would_change_are_left_out() {
        for plain in ["settlement", "10.0.0.7@-@12", "a_b-c.d", "\u{e4}"] {
            assert!(needs_no_quotes(plain), "{plain}");
        }
        for other in ["a b", "$x", "-x", "a;b", "a'b", "a*", "a\nb", "a\\b", "`a`"] {
            assert!(!needs_no_quotes(other), "{other}");
        }
    }
}
