//! Leaves repeated warnings out of the log, and writes their number into the next line of the kind. Shell: a filter in front of the lines, and a
//! writer behind them. [`super::repeats`] decides.
//!
//! [`FindKinds`], the filter and the writer meet a line on one thread, one after the other, so each leaves to the thread what the next one needs.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::repeats::{Kind, Repeats};

/// The monotonic clock.
pub type ReadClock = fn() -> Duration;

/// The field with the code of an event.
const EVENT: &str = "event";
/// The field with the entry of the catalogue that an event is about: it is a part of the event.
const CODE: &str = "code";
/// The field with the job of a line or a span.
const JOB: &str = "job.name";
/// The field with the number of lines that were left out. A line that has it comes from a limiter of its own.
const LEFT_OUT: &str = "left_out";

/// The logs that lines are left out of, each for itself: one may have written a line that another one's filter has left out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Log {
    /// The one in memory.
    Ring,
    /// Standard error.
    Output,
}

thread_local! {
    /// The kind of the warning that this thread is about to log. `None`: it is never left out.
    static KIND: RefCell<Option<Kind>> = const { RefCell::new(None) };
    /// How many warnings were left out before the line that this thread is about to write into the log in memory, and into the other one. All
    /// filters are asked before the first line is written.
    static BEFORE: [Cell<u64>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

/// Replaces the number of a log, and returns the former one.
fn before(log: Log, number: u64) -> u64 {
    BEFORE.with(|[ring, output]| match log {
        Log::Ring => ring.replace(number),
        Log::Output => output.replace(number),
    })
}

/// Leaves out the repeated warnings of one log.
pub(super) struct LeaveOut {
    log: Log,
    now: ReadClock,
    repeats: Mutex<Repeats>,
}

impl LeaveOut {
    pub(super) fn new(log: Log, now: ReadClock) -> Self {
        Self { log, now, repeats: Mutex::default() }
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Filter<S> for LeaveOut {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// A warning that may be left out is asked for each time. The library says so in its debug builds by an assertion.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() == Level::WARN { Interest::sometimes() } else { Interest::always() }
    }

    /// Without one the filter beside this one would count as one without a level.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        before(self.log, 0);
        if *event.metadata().level() != Level::WARN {
            return true;
        }
        let Some(kind) = KIND.with_borrow(Option::clone) else { return true };
        let admitted = self.repeats.lock().unwrap_or_else(PoisonError::into_inner).admit(kind, (self.now)());
        before(self.log, admitted.unwrap_or_default());
        admitted.is_some()
    }
}

/// The fields of an event.
#[derive(Default)]
struct Said {
    event: Option<String>,
    code: Option<String>,
    job: Option<String>,
    is_counted: bool,
    /// All of it, as a number. The hash is the same in the whole process, and nobody can choose it to hide a line for longer than a pause.
    text: DefaultHasher,
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            EVENT => self.event = Some(value.to_owned()),
            CODE => self.code = Some(value.to_owned()),
            JOB => self.job = Some(value.to_owned()),
            _ => {}
        }
        (field.name(), value).hash(&mut self.text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            JOB => self.job = Some(format!("{value:?}")),
            LEFT_OUT => self.is_counted = true,
            _ => {}
        }
        (field.name(), format!("{value:?}")).hash(&mut self.text);
    }
}

/// The job of a span, for the lines in it.
struct JobOf(String);

/// Finds out the kind of each warning. The outermost layer, so that the filters of the others know it, whichever spans they see.
pub(super) struct FindKinds;

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for FindKinds {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().fields().field(JOB).is_none() {
            return;
        }
        let mut said = Said::default();
        attributes.record(&mut said);
        if let (Some(job), Some(span)) = (said.job, context.span(id)) {
            span.extensions_mut().insert(JobOf(job));
        }
    }

    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        if *event.metadata().level() == Level::WARN {
            KIND.set(kind(event, &context));
        }
        true
    }
}

/// The kind of a warning. `None`: it has no code, or a limiter of its own.
fn kind<S: Subscriber + for<'span> LookupSpan<'span>>(
    event: &Event<'_>,
    context: &Context<'_, S>,
) -> Option<Kind> {
    let mut said = Said::default();
    event.record(&mut said);
    let event_code = said.event.filter(|_| !said.is_counted)?;
    let code = format!("{event_code} {}", said.code.unwrap_or_default());
    let job = said.job.or_else(|| {
        let mut spans = context.event_scope(event)?;
        spans.find_map(|span| span.extensions().get::<JobOf>().map(|job| job.0.clone()))
    });
    Some(match job {
        Some(job) => Kind::OfJob(code, job),
        None => Kind::OfProcess(code, said.text.finish()),
    })
}

/// Writes lines with the numbers of those that were left out before them.
pub(super) struct WithNumbers<M>(pub(super) Log, pub(super) M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for WithNumbers<M> {
    type Writer = Numbered<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Numbered { writer: self.1.make_writer(), left_out: before(self.0, 0) }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        Numbered { writer: self.1.make_writer_for(metadata), left_out: before(self.0, 0) }
    }
}

/// Writes one line, which comes as one piece.
pub(super) struct Numbered<W> {
    writer: W,
    left_out: u64,
}

impl<W: Write> Write for Numbered<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.left_out == 0 {
            return self.writer.write(line);
        }
        let left_out = std::mem::take(&mut self.left_out);
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let longer = match text.strip_suffix(b"}").filter(|text| text.starts_with(b"{")) {
            Some(fields) => [fields, format!(",\"{LEFT_OUT}\":{left_out}}}\n").as_bytes()].concat(),
            None => [text, format!(" {LEFT_OUT}={left_out}\n").as_bytes()].concat(),
        };
        self.writer.write_all(&longer)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::filter::{EnvFilter, FilterExt as _};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{Registry, reload};

    use super::*;

    /// The time of the test below, in seconds.
    static SECONDS: AtomicU64 = AtomicU64::new(0);

    fn now() -> Duration {
        Duration::from_secs(SECONDS.load(Ordering::Relaxed))
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn taken(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn repeated_warnings_are_one_line_in_each_log_and_the_next_one_has_their_number() {
        let (json, text) = (Lines::default(), Lines::default());
        let (filter, _handle) = reload::Layer::new(EnvFilter::new("warn"));
        let of_json = tracing_subscriber::fmt::layer().with_writer(WithNumbers(Log::Ring, json.clone()));
        let of_json = of_json.json().flatten_event(true).without_time();
        let of_text = tracing_subscriber::fmt::layer().with_writer(WithNumbers(Log::Output, text.clone()));
        let of_text = of_text.with_ansi(false).without_time().with_target(false);
        let subscriber = Registry::default()
            .with(of_json.with_filter(EnvFilter::new("info").and(LeaveOut::new(Log::Ring, now))))
            // This one does not see the span, and knows the job all the same.
            .with(of_text.with_filter(filter.and(LeaveOut::new(Log::Output, now))))
            .with(FindKinds.with_filter(LevelFilter::INFO));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("job", job.name = %"orders");
            let warn = |item: u32| span.in_scope(|| tracing::warn!(event = "TEST_A", item, "again"));
            for item in 0..5 {
                warn(item);
            }
            assert_eq!(text.taken(), [r#" WARN again event="TEST_A" item=0"#]);
            assert_eq!(json.taken().len(), 1);
            // None of these is a repetition.
            span.in_scope(|| tracing::warn!(event = "TEST_B", "other event"));
            span.in_scope(|| tracing::warn!(event = "TEST_A", code = "ITEM_UNOWNED", "about something else"));
            tracing::warn!(event = "TEST_A", job.name = "bills", "other job");
            for path in ["/a", "/b"] {
                tracing::warn!(event = "TEST_C", path, "of the process");
            }
            for number in 0..2 {
                tracing::warn!(number, "without a code");
                tracing::warn!(event = "TEST_D", left_out = 3_u64, "counted already");
                span.in_scope(|| tracing::error!(event = "TEST_E", "an error"));
            }
            tracing::warn!(event = "TEST_C", path = "/b", "of the process");
            assert_eq!(text.taken().len(), 11);
            assert_eq!(json.taken().len(), 11);
            SECONDS.store(10, Ordering::Relaxed);
            warn(9);
            tracing::warn!(event = "TEST_C", path = "/b", "of the process");
            assert_eq!(
                text.taken(),
                [
                    r#" WARN again event="TEST_A" item=9 left_out=4"#,
                    r#" WARN of the process event="TEST_C" path="/b" left_out=1"#
                ]
            );
            let lines: Vec<serde_json::Value> =
                json.taken().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!((&lines[0]["left_out"], &lines[0]["item"]), (&4.into(), &9.into()));
            assert_eq!(lines[0]["span"]["job.name"], "orders");
        });
    }
}
