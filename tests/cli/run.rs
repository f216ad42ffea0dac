//! `run`: a command with a sidecar of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::{Running, output, sidekeeper};

/// `run` of a shell script with these settings.
fn run(settings: &[&str], script: &str) -> tokio::process::Command {
    let mut arguments = vec!["run", "--log-level", "off"];
    arguments.extend(settings);
    arguments.extend(["--", "sh", "-c", script]);
    sidekeeper(&arguments)
}

#[tokio::test]
async fn run_exits_with_the_code_of_the_command() {
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
    {
        let ended = output(run(&[], script)).await;
        assert_eq!(ended.code, Some(code), "{script}");
        assert_eq!(ended.stderr, "", "{script}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_run_has_an_exit_code_of_its_own() {
    let absent = output(sidekeeper(&["run", "--log-level", "off", "--", "/nonexistent/command"])).await;
    assert_eq!(absent.code, Some(127));
    assert!(absent.stderr.contains("cannot run /nonexistent/command"), "{}", absent.stderr);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "no program").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(output(sidekeeper(&["run", "--", file])).await.code, Some(126));
}

#[tokio::test]
async fn the_command_has_a_serving_sidecar_whose_folder_is_removed_afterwards() {
    let mut command = run(&[], "echo $SIDEKEEPER_ENDPOINT; echo ${SIDEKEEPER_DIGEST-unset}; read line");
    command.stdin(Stdio::piped()).env("SIDEKEEPER_DIGEST", "user:hunter2");
    let mut running = Running::start(command);
    let endpoint = running.line().await;
    assert_eq!(running.line().await, "unset");

    let socket = Path::new(endpoint.strip_prefix("unix://").unwrap());
    UnixStream::connect(socket).await.unwrap();
    let directory = socket.parent().unwrap();
    assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);

    running.child.stdin.take().unwrap().write_all(b"end\n").await.unwrap();
    assert_eq!(running.end().await.code(), Some(0));
    assert!(!directory.exists());
}

#[tokio::test]
async fn run_listens_on_the_given_address() {
    let script = "echo $SIDEKEEPER_ENDPOINT";
    let by_flag = run(&["--listen", "127.0.0.1:0"], script);
    let mut by_variable = run(&[], script);
    by_variable.env("SIDEKEEPER_LISTEN", "127.0.0.1:0");
    for command in [by_flag, by_variable] {
        let ended = output(command).await;
        let port = ended.stdout.trim().strip_prefix("http://127.0.0.1:").expect(&ended.stdout);
        assert_ne!(port.parse::<u16>().unwrap(), 0);
    }
}

#[tokio::test]
async fn without_a_sidecar_the_command_is_never_started() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("started");
    let script = format!("touch {}", marker.display());
    let failed = output(run(&["--listen", "unix:/nonexistent/sidekeeper.sock"], &script)).await;
    assert_eq!(failed.code, Some(125));
    assert!(failed.stderr.contains("/nonexistent/sidekeeper.sock"), "{}", failed.stderr);
    assert!(!marker.exists());
}

#[tokio::test]
async fn run_forwards_signals_to_the_command() {
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script = format!(
            "sleep 1000 & sleeper=$!; trap 'kill $sleeper; echo got {name}; exit 3' {name}; echo ready; wait"
        );
        let mut running = Running::start(run(&[], &script));
        assert_eq!(running.line().await, "ready");
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
        assert_eq!(running.end().await.code(), Some(3), "{name}");
    }
}

#[tokio::test]
async fn a_command_that_does_not_catch_a_signal_ends_by_it() {
    let mut running = Running::start(run(&[], "echo ready; exec sleep 1000"));
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().await.code(), Some(143));
}

#[tokio::test]
async fn other_commands_find_the_sidecar_of_run_in_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    // With another TMPDIR, the default address of this test has no sidecar.
    let elsewhere = |arguments: &[&str]| {
        let mut command = sidekeeper(arguments);
        command.env("TMPDIR", folder.path());
        command
    };
    let script = "echo ready; read line";
    let mut command = elsewhere(&["run", "--log-level", "off", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    assert_eq!(running.line().await, "ready");
    let printed = output(elsewhere(&["drain", "--json"])).await;
    assert_eq!(
        (printed.code, printed.stdout.as_str()),
        (Some(0), "{\"instances\":[]}\n"),
        "{}",
        printed.stderr
    );
    running.child.stdin.take().unwrap().write_all(b"end\n").await.unwrap();
    assert_eq!(running.end().await.code(), Some(0));
    let absent = output(elsewhere(&["trigger", "orders"])).await;
    assert_eq!(absent.code, Some(1));
    let said = "no sidecar answers at http://127.0.0.1:7070; is `sidekeeper serve` running there?";
    assert!(absent.stderr.contains(said), "{}", absent.stderr);
}
