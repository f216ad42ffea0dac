//! Arguments, configuration, `serve` and `completions`.

use std::process::Stdio;

use nix::sys::signal::Signal;
use tokio::net::TcpStream;

use super::{Running, output, sidekeeper};

#[tokio::test]
async fn version_and_help_succeed_and_wrong_arguments_are_usage_errors() {
    let version = output(sidekeeper(&["--version"])).await;
    assert_eq!(version.code, Some(0));
    assert_eq!(version.stdout, concat!("sidekeeper ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = output(sidekeeper(&["run", "--help"])).await;
    assert_eq!(help.code, Some(0));
    // Help is wrapped at the terminal's width.
    let text = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("[default: 7s] [env: SIDEKEEPER_SESSION_TIMEOUT]"), "{}", help.stdout);
    for wrong in [&["fly"][..], &["serve", "--fly"], &["run"], &[]] {
        let answer = output(sidekeeper(wrong)).await;
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(64), ""), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_invalid_configuration_is_reported_completely_and_nothing_starts() {
    let mut command = sidekeeper(&["serve", "--listen", "0.0.0.0:0"]);
    command.env("SIDEKEEPER_DRAIN_TIMEOUT", "soon").env("SIDEKEEPER_DIGEST", "hunter2");
    let refused = output(command).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(64), ""));
    let lines: Vec<_> = refused.stderr.lines().collect();
    assert_eq!(lines[0], "sidekeeper: the configuration has 3 problems:");
    assert!(lines[1].contains("--listen = `0.0.0.0:0`") && lines[1].contains("needs TLS"), "{lines:?}");
    assert!(lines[2].contains("SIDEKEEPER_DIGEST = `***`"), "{lines:?}");
    assert!(lines[3].contains("SIDEKEEPER_DRAIN_TIMEOUT = `soon`"), "{lines:?}");
    assert!(!refused.stderr.contains("hunter2"));
}

#[tokio::test]
async fn the_effective_configuration_is_printed() {
    for arguments in [&["serve", "--print-config"][..], &["run", "--print-config"]] {
        let mut command = sidekeeper(arguments);
        command.env("SIDEKEEPER_NAMESPACE", "orders").env("SIDEKEEPER_DIGEST", "orders:hunter2");
        let printed = output(command).await;
        assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
        assert!(
            printed.stdout.contains("namespace = \"orders\" # SIDEKEEPER_NAMESPACE\n"),
            "{}",
            printed.stdout
        );
        assert!(printed.stdout.contains("digest = \"***\""), "{}", printed.stdout);
    }
}

#[tokio::test]
async fn serve_runs_until_a_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut serve =
            Running::start(sidekeeper(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]));
        let endpoint = loop {
            let event: serde_json::Value = serde_json::from_str(&serve.log_line().await).unwrap();
            if event["message"] == "serving" {
                break event["endpoints"].as_str().unwrap().to_owned();
            }
        };
        TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).await.unwrap();
        serve.signal(signal);
        assert_eq!(serve.end().await.code(), Some(0));
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn serve_ignores_a_hangup_that_its_parent_ignores() {
    let script = "trap '' HUP; exec \"$0\" serve --listen 127.0.0.1:0 --log-format json";
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_sidekeeper")]).process_group(0).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut serve = Running::start(command);
    while !serve.log_line().await.contains("\"serving\"") {}
    serve.signal(Signal::SIGHUP);
    serve.signal(Signal::SIGTERM);
    while !serve.log_line().await.contains("\"signal\":\"SIGTERM\"") {}
    assert_eq!(serve.end().await.code(), Some(0));
}

#[tokio::test]
async fn serve_says_in_one_line_why_it_cannot_start() {
    let arguments = ["serve", "--listen", "unix:/nonexistent/sidekeeper.sock", "--log-level", "off"];
    let failed = output(sidekeeper(&arguments)).await;
    assert_eq!(failed.code, Some(1));
    assert_eq!(failed.stderr.lines().count(), 1, "{}", failed.stderr);
    assert!(failed.stderr.contains("/nonexistent/sidekeeper.sock"), "{}", failed.stderr);
}

#[tokio::test]
async fn serve_starts_without_an_answer_of_the_collector() {
    // At this address connections are neither accepted nor refused (TEST-NET-1).
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
        "--otlp-endpoint",
        "http://192.0.2.1:4317",
    ];
    let mut serve = Running::start(sidekeeper(&arguments));
    while !serve.log_line().await.contains("\"serving\"") {}
    serve.signal(Signal::SIGTERM);
    assert_eq!(serve.end().await.code(), Some(0));
}

#[tokio::test]
async fn completions_exist_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = output(sidekeeper(&["completions", shell])).await;
        assert_eq!(script.code, Some(0));
        assert!(script.stdout.contains("session-timeout"), "{shell}");
    }
}
