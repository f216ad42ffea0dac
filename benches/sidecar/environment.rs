//! The machine and the compiler of the measurement.

use std::fs;
use std::process::Command;

pub(crate) fn print() {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("- machine: {cores} cores, {}", model.unwrap_or("of an unknown model"));
    println!("- kernel: {}", first_line(Command::new("uname").arg("-sr")));
    println!("- compiler: {}, profile `bench` (release: thin LTO, 4 codegen units)", rustc());
    println!("- sidekeeper: {}", env!("CARGO_PKG_VERSION"));
}

/// The load averages: over 1, 5 and 15 minutes.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn rustc() -> String {
    first_line(Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version"))
}

/// The first line that a program prints, on standard output or standard error.
pub(crate) fn first_line(program: &mut Command) -> String {
    let output = program.output().map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}
