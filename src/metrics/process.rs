//! The metrics that every process has, under the names that Prometheus's own clients give them. Reads `/proc`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The state of this process. All values are absent on systems without `/proc`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessState {
    cpu_seconds: Option<f64>,
    started_at: Option<f64>,
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    open_descriptors: Option<u64>,
    descriptors_max: Option<u64>,
}

impl ProcessState {
    /// The state now.
    #[cfg(target_os = "linux")]
    pub fn read() -> Self {
        use procfs::process::{LimitValue, Process};
        let Ok(process) = Process::myself() else { return Self::default() };
        let seconds = |ticks: u64| ticks_to_seconds(ticks, procfs::ticks_per_second());
        let stat = process.stat().ok();
        let limits = process.limits().ok();
        Self {
            cpu_seconds: stat.as_ref().map(|stat| seconds(stat.utime.saturating_add(stat.stime))),
            started_at: stat.as_ref().and_then(|stat| {
                let boot = u32::try_from(procfs::boot_time_secs().ok()?).ok()?;
                Some(f64::from(boot) + seconds(stat.starttime))
            }),
            resident_bytes: stat.as_ref().map(|stat| stat.rss.saturating_mul(procfs::page_size())),
            virtual_bytes: stat.as_ref().map(|stat| stat.vsize),
            open_descriptors: process.fd_count().ok().and_then(|count| u64::try_from(count).ok()),
            descriptors_max: limits.and_then(|limits| match limits.max_open_files.soft_limit {
                LimitValue::Value(limit) => Some(limit),
                LimitValue::Unlimited => None,
            }),
        }
    }

    /// Nothing is known.
    #[cfg(not(target_os = "linux"))]
    pub fn read() -> Self {
        Self::default()
    }
}

/// Exact to a tick for 497 days of processor time.
#[cfg(target_os = "linux")]
fn ticks_to_seconds(ticks: u64, per_second: u64) -> f64 {
    let number = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let (whole, rest) = (ticks.checked_div(per_second), ticks.checked_rem(per_second));
    number(whole.unwrap_or_default()) + number(rest.unwrap_or_default()) / number(per_second.max(1))
}

impl Collector for ProcessState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(seconds) = self.cpu_seconds {
            let counter = ConstCounter::new(seconds);
            let (help, kind) = ("Processor time of user and system.", counter.metric_type());
            counter.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), kind)?)?;
        }
        if let Some(seconds) = self.started_at {
            let gauge = ConstGauge::new(seconds);
            let (help, kind) = ("Unix time of the start of the process.", gauge.metric_type());
            gauge.encode(encoder.encode_descriptor(
                "process_start_time",
                help,
                Some(&Unit::Seconds),
                kind,
            )?)?;
        }
        for (name, unit, help, value) in [
            ("process_resident_memory", Some(&Unit::Bytes), "Resident memory.", self.resident_bytes),
            ("process_virtual_memory", Some(&Unit::Bytes), "Virtual memory.", self.virtual_bytes),
            ("process_open_fds", None, "Open file descriptors.", self.open_descriptors),
            ("process_max_fds", None, "The limit of open file descriptors.", self.descriptors_max),
        ] {
            let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
