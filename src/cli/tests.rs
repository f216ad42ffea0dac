//! The command line, and the parts of the documentation that must agree with it.

use super::*;
use crate::config::FILE_VARIABLE;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_settings_before_the_dashes_and_leaves_the_rest_alone() {
    let cli = Cli::try_parse_from(["sidekeeper", "run", "--namespace", "a", "--", "app", "--namespace", "b"]);
    let Command::Run(args) = cli.unwrap_or_else(|error| panic!("{error}")).command else {
        panic!("not `run`");
    };
    assert_eq!(args.config.settings.0, Flags::from([("namespace", vec!["a".to_owned()])]));
    assert_eq!(args.command, ["app", "--namespace", "b"]);
}

#[test]
fn run_needs_a_command_unless_it_only_prints() {
    assert!(Cli::try_parse_from(["sidekeeper", "run"]).is_err());
    assert!(Cli::try_parse_from(["sidekeeper", "run", "app"]).is_err());
    assert!(Cli::try_parse_from(["sidekeeper", "run", "--print-config"]).is_ok());
}

/// The table of settings that `docs/configuration.md` must have.
fn documented_table() -> String {
    let mut table = "| flag | variable | TOML key | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for setting in settings::ALL {
        let default = match setting.default {
            settings::Default::Value(text) => format!("`{text}`"),
            settings::Default::Detected(text) | settings::Default::Absent(text) => text.to_owned(),
        };
        let Setting { flag, env, key, help, .. } = setting;
        table.push_str(&format!("| `--{flag}` | `{env}` | `{key}` | {default} | {help} |\n"));
    }
    table
}

#[test]
fn the_documentation_lists_the_settings_as_they_are() {
    let page = include_str!("../../docs/configuration.md");
    let table = documented_table();
    assert!(page.contains(&table), "docs/configuration.md must have this table:\n{table}");
}

#[test]
fn the_example_in_the_documentation_is_valid() {
    let page = include_str!("../../docs/configuration.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sidekeeper.toml");
    std::fs::write(&file, example).unwrap();
    let sources =
        Sources { flags: Flags::new(), file: Some(file), environment: &|_| None, default_listen: None };
    load(&sources).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_configuration_variable_is_the_one_that_the_help_names() {
    let mut command = Cli::command();
    let help = command.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
    assert!(help.contains(&format!("[env: {FILE_VARIABLE}]")), "{help}");
    for setting in settings::ALL {
        assert!(help.contains(&format!("--{}", setting.flag)) && help.contains(setting.env), "{help}");
    }
}
