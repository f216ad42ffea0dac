//! The spans of the executions of one participant. Decides which span goes on with the work of which other one; their ids are those of
//! [`crate::telemetry::spans`].
//!
//! A retry links to the attempt that has failed. A failover links to the first execution of the item, and so does an execution that another
//! process of the sidecar had begun: those processes may be dead, so the id of that span is computed. The link leads nowhere if a Java instance
//! has crashed, because it exports no spans.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use opentelemetry::trace::SpanId;

use crate::coordination::job::contract::event::Execute;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::report::Outcome;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, Item, JobName};
use crate::telemetry::span_bytes::{Attributes, SpanBytes, Value};
use crate::telemetry::span_queue::SpanQueue;
use crate::telemetry::spans::{Fire, Traced, TracedExecution};
use crate::tree::Path;

/// The characters of a failure's text that its span keeps.
const MESSAGE_CHARS_MAX: usize = 300;

/// The spans of one participant.
pub(super) struct Spans {
    fires: Fires,
    common: Common,
    queue: Arc<SpanQueue>,
    /// The items that were executed. They keep their memory for the next execution, because there are thousands a second.
    items: BTreeMap<Item, Executions>,
    /// The memory for the bytes of a span.
    bytes: SpanBytes,
}

/// The fires of the participant's job.
struct Fires {
    namespace: String,
    job: JobName,
    /// The latest one, for its executions.
    latest: Option<(Timestamp, Arc<Fire>)>,
}

/// The attributes that most executions have in common with the one before.
struct Common {
    job: JobName,
    instance: InstanceId,
    attempt: u32,
    source: &'static str,
    bytes: Attributes,
}

/// The latest executions of an item. Small: in a fire of thousands of items each one is read from slow memory, twice.
#[derive(Default)]
struct Executions {
    /// The latest one, unless it has succeeded.
    latest: Option<SpanId>,
    /// The execution that the latest one goes on from. It belongs to the same fire.
    follows: Option<SpanId>,
    /// Its parent, which ends after it. `None`: the latest one was reported.
    open: Option<Arc<Fire>>,
    begun: Timestamp,
    execution_id: String,
    fencing_token: i64,
    attempt: u32,
    source: &'static str,
}

impl Spans {
    pub(super) fn new(namespace: &Path, job: &JobName, instance: &InstanceId, queue: Arc<SpanQueue>) -> Self {
        Self {
            fires: Fires { namespace: namespace.to_string(), job: job.clone(), latest: None },
            common: Common {
                job: job.clone(),
                instance: instance.clone(),
                attempt: 0,
                source: "",
                bytes: Attributes::new(&[]),
            },
            queue,
            items: BTreeMap::new(),
            bytes: SpanBytes::default(),
        }
    }

    /// An execution begins, or goes on over another stream. `None`: nothing is exported.
    pub(super) fn execute(&mut self, now: Timestamp, execute: &Execute) -> Option<TracedExecution> {
        let item = execute.item;
        let executions = self.items.entry(item).or_default();
        if let (Some(id), Some(fire)) = (executions.latest, &executions.open)
            && executions.execution_id == execute.execution_id
        {
            return Some(TracedExecution::new(fire, id));
        }
        let fire = self.fires.at(execute.scheduled)?;
        // Nobody has reported the one before, and nobody will.
        executions.export(&mut self.bytes, now, item, &mut self.common, None, &self.queue);
        let first = fire.first_execution(item);
        (executions.latest, executions.follows) = if is_first(execute) {
            (Some(first), None)
        } else {
            let failed = executions.latest.filter(|_| execute.attempt > 1);
            (Some(Fire::further_execution()), failed.or_else(|| goes_on(execute).then_some(first)))
        };
        executions.begun = now;
        executions.execution_id.clone_from(&execute.execution_id);
        executions.fencing_token = execute.token.0;
        (executions.attempt, executions.source) = (execute.attempt, word(execute.source));
        let execution = executions.latest.map(|id| TracedExecution::new(&fire, id));
        executions.open = Some(fire);
        execution
    }

    /// The application has reported the execution of an item. Returns its span, which nothing goes on with if it has succeeded.
    pub(super) fn reported(&mut self, now: Timestamp, item: Item, outcome: &Outcome) -> Option<Traced> {
        let failure = match outcome {
            Outcome::Success => None,
            Outcome::Failure(message) | Outcome::Rejected(message) | Outcome::Interrupted(message) => {
                Some(message.as_str())
            }
        };
        let executions = self.items.get_mut(&item)?;
        let traced = executions.export(&mut self.bytes, now, item, &mut self.common, failure, &self.queue);
        if failure.is_none() {
            executions.latest = None;
        }
        traced
    }

    /// The session was lost during the execution of an item. The application has stopped it.
    pub(super) fn lost(&mut self, now: Timestamp, item: Item) {
        if let Some(executions) = self.items.get_mut(&item) {
            let failure = Some("the session was lost during the execution");
            executions.export(&mut self.bytes, now, item, &mut self.common, failure, &self.queue);
        }
    }

    /// The participant has ended. Nobody reports the executions that it leaves.
    pub(super) fn end(&mut self, now: Timestamp) {
        for (item, executions) in &mut self.items {
            executions.export(&mut self.bytes, now, *item, &mut self.common, None, &self.queue);
        }
    }
}

impl Fires {
    /// The fire of an instant. `None`: nothing is exported.
    fn at(&mut self, instant: Timestamp) -> Option<Arc<Fire>> {
        match &self.latest {
            Some((latest, fire)) if *latest == instant => Some(Arc::clone(fire)),
            Some(_) | None => {
                let fire = Arc::new(Fire::begin(&self.namespace, self.job.as_str(), instant)?);
                self.latest = Some((instant, Arc::clone(&fire)));
                Some(fire)
            }
        }
    }
}

impl Common {
    fn of(&mut self, attempt: u32, source: &'static str) -> &Attributes {
        if (self.attempt, self.source) != (attempt, source) {
            (self.attempt, self.source) = (attempt, source);
            self.bytes = Attributes::new(&[
                ("job.name", Value::Text(self.job.as_str())),
                ("instance.id", Value::Text(self.instance.as_str())),
                ("attempt", Value::Number(i64::from(attempt))),
                ("source", Value::Text(source)),
            ]);
        }
        &self.bytes
    }
}

impl Executions {
    /// Exports the span of the latest execution if its fire is sampled, and returns its ids. `None`: it was reported before.
    fn export(
        &mut self,
        span: &mut SpanBytes,
        now: Timestamp,
        item: Item,
        common: &mut Common,
        failure: Option<&str>,
        queue: &SpanQueue,
    ) -> Option<Traced> {
        let (id, fire) = (self.latest?, self.open.take()?);
        if fire.begin_span(span, id, self.begun, now) {
            span.add_all(common.of(self.attempt, self.source));
            span.add_text_of("item", item);
            span.add("execution.id", Value::Text(&self.execution_id));
            span.add("fencing.token", Value::Number(self.fencing_token));
            if let Some(follows) = self.follows {
                span.link_to(fire.traced(follows).ids());
            }
            if let Some(failure) = failure {
                span.fail(&Excerpt::of_length(failure, MESSAGE_CHARS_MAX).into_string());
            }
            queue.push(span.bytes());
        }
        Some(fire.traced(id))
    }
}

/// Whether no other execution of its item has the same instant. Without running nodes there may be two of them at a resharding, and no failover.
fn is_first(execute: &Execute) -> bool {
    execute.attempt == 1 && !goes_on(execute) && execute.configuration.monitor_execution
}

/// The attribute `source`.
fn word(source: Source) -> &'static str {
    match source {
        Source::Schedule => "Schedule",
        Source::Misfire => "Misfire",
        Source::Trigger => "Trigger",
        Source::Failover => "Failover",
    }
}

/// Whether another process has begun its work.
fn goes_on(execute: &Execute) -> bool {
    execute.resumed || execute.source == Source::Failover
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::trace::v1::Span;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

    use super::*;
    use crate::job::{FencingToken, JobConfiguration};
    use crate::telemetry::tests::collect;

    const AT: i64 = 1_732_795_200_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(AT + ms).unwrap()
    }

    /// The spans of executions that are exported while something is done.
    fn exported(act: impl FnOnce(&Arc<SpanQueue>)) -> Vec<Span> {
        let queue = Arc::new(SpanQueue::default());
        collect(|| act(&queue));
        queue.waiting()
    }

    fn spans(instance: &str, queue: &Arc<SpanQueue>) -> Spans {
        let job = JobName::parse("settlement").unwrap();
        let instance = InstanceId::from_registry(instance);
        Spans::new(&Path::parse("/billing").unwrap(), &job, &instance, Arc::clone(queue))
    }

    fn execution(id: &str, source: Source, attempt: u32) -> Execute {
        let configuration = JobConfiguration::new(JobName::parse("settlement").unwrap(), 3);
        Execute {
            execution_id: id.to_owned(),
            item: Item(2),
            parameter: None,
            configuration: Arc::new(configuration),
            task_id: "task".into(),
            source,
            attempt,
            checkpoint: None,
            scheduled: at(0),
            fired: at(0),
            deadline: None,
            token: FencingToken(7),
            lock_token: None,
            resumed: false,
        }
    }

    fn unmonitored(id: &str, attempt: u32) -> Execute {
        let mut execute = execution(id, Source::Schedule, attempt);
        Arc::make_mut(&mut execute.configuration).monitor_execution = false;
        execute
    }

    /// The text or the number of an attribute.
    fn attribute(span: &Span, key: &str) -> Option<String> {
        use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
        let one = span.attributes.iter().find(|one| one.key == key)?;
        let value = one.value.clone()?.value?;
        if let Any::IntValue(number) = value {
            return Some(number.to_string());
        }
        let Any::StringValue(text) = value else { panic!("{value:?}") };
        Some(text)
    }

    /// The ids of a span, and those of the spans that it links to.
    fn ids(spans: &[Span], execution: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
        let is_it = |span: &&Span| attribute(span, "execution.id").as_deref() == Some(execution);
        let span = spans.iter().find(is_it).expect("its span");
        let links = span.links.iter().map(|link| {
            assert_eq!(link.trace_id, span.trace_id);
            link.span_id.clone()
        });
        (span.span_id.clone(), links.collect())
    }

    #[test]
    fn the_span_of_an_execution_has_its_times_its_attributes_and_its_failure() {
        let found = exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            let one = spans.execute(at(3), &execution("one", Source::Misfire, 1)).unwrap();
            let (traced, header) = (one.traced(), one.header());
            assert!(
                header.starts_with("00-d386cfd9e5d126d8664436bb2a751b25-") && header.ends_with("-01"),
                "{header}"
            );
            assert_eq!(
                traced.ids().0,
                spans.fires.at(at(0)).unwrap().traced(Fire::further_execution()).ids().0
            );
            spans.reported(at(8), Item(2), &Outcome::Failure("no such account\nat line 3".to_owned()));
            spans.execute(at(9), &execution("two", Source::Failover, 2)).unwrap();
            spans.reported(at(9), Item(2), &Outcome::Success);
            // A clock that was set back.
            spans.execute(at(9), &execution("three", Source::Trigger, 1)).unwrap();
            spans.reported(at(2), Item(2), &Outcome::Success);
        });
        let [one, two, three] = found.as_slice() else { panic!("{found:?}") };
        let ns = |ms: i64| u64::try_from(at(ms).as_nanosecond()).unwrap();
        assert_eq!((one.start_time_unix_nano, one.end_time_unix_nano), (ns(3), ns(8)));
        assert_eq!((three.start_time_unix_nano, three.end_time_unix_nano), (ns(9), ns(9)));
        for (key, value) in [
            ("job.name", "settlement"),
            ("instance.id", "10.0.0.1@-@1"),
            ("item", "2"),
            ("execution.id", "one"),
            ("attempt", "1"),
            ("source", "Misfire"),
            ("fencing.token", "7"),
        ] {
            assert_eq!(attribute(one, key).as_deref(), Some(value), "{key}");
        }
        let status = one.status.clone().unwrap();
        assert_eq!(
            (status.code(), status.message.as_str()),
            (StatusCode::Error, "no such account\\nat line 3")
        );
        assert_eq!((two.status.clone(), attribute(two, "attempt").as_deref()), (None, Some("2")));
        let causes = [one, two, three].map(|span| attribute(span, "source").unwrap());
        assert_eq!(causes, ["Misfire", "Failover", "Trigger"]);
        assert_eq!((&one.parent_span_id, &one.trace_id), (&two.parent_span_id, &two.trace_id));
    }

    #[test]
    fn executions_that_a_participant_leaves_are_exported_when_it_ends() {
        let found = exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            spans.execute(at(0), &execution("one", Source::Schedule, 1));
            assert_eq!(queue.waiting().len(), 0);
            spans.end(at(5));
            spans.end(at(6));
        });
        assert_eq!((found.len(), found[0].status.clone()), (1, None));
    }

    #[test]
    fn an_execution_without_a_report_is_exported_when_it_is_lost_or_followed_by_another_one() {
        let found = exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            spans.execute(at(0), &execution("one", Source::Schedule, 1));
            spans.lost(at(1), Item(2));
            spans.lost(at(2), Item(2));
            spans.execute(at(3), &execution("two", Source::Misfire, 1));
            spans.execute(at(4), &execution("three", Source::Misfire, 1));
            assert_eq!(queue.waiting().len(), 2);
        });
        let statuses = found.iter().map(|span| span.status.as_ref().map(|status| status.message.as_str()));
        let lost = "the session was lost during the execution";
        assert_eq!(statuses.collect::<Vec<_>>(), [Some(lost), None]);
    }

    #[test]
    fn without_an_exporter_an_execution_has_no_span() {
        let queue = Arc::new(SpanQueue::default());
        let mut spans = spans("10.0.0.1@-@1", &queue);
        assert!(spans.execute(at(0), &execution("one", Source::Schedule, 1)).is_none());
        assert_eq!(spans.reported(at(0), Item(2), &Outcome::Success), None);
        assert_eq!(queue.waiting().len(), 0);
    }

    #[test]
    fn op_15_a_retry_links_to_the_attempt_that_has_failed() {
        for monitored in [true, false] {
            let execute = |id, attempt| match monitored {
                true => execution(id, Source::Schedule, attempt),
                false => unmonitored(id, attempt),
            };
            let found = exported(|queue| {
                let mut spans = spans("10.0.0.1@-@1", queue);
                for (id, attempt) in [("one", 1), ("two", 2), ("three", 3)] {
                    let begun = spans.execute(at(0), &execute(id, attempt)).expect("its ids");
                    let failure = Outcome::Failure(String::new());
                    assert_eq!(spans.reported(at(0), Item(2), &failure), Some(begun.traced()));
                }
            });
            let (one, of_one) = ids(&found, "one");
            let (two, of_two) = ids(&found, "two");
            assert_eq!((of_one, of_two, ids(&found, "three").1), (vec![], vec![one], vec![two]));
        }
    }

    #[test]
    fn op_15_a_failover_links_to_the_execution_of_the_instance_that_has_crashed() {
        let found = exported(|queue| {
            let [mut crashed, mut taker, mut next] =
                ["10.0.0.1@-@1", "10.0.0.2@-@1", "10.0.0.3@-@1"].map(|instance| spans(instance, queue));
            crashed.execute(at(0), &execution("crashed", Source::Misfire, 1));
            taker.execute(at(0), &execution("taken", Source::Failover, 1));
            next.execute(at(0), &execution("again", Source::Failover, 1));
            next.execute(at(0), &execution("retry", Source::Failover, 2));
            for mut one in [crashed, taker, next] {
                one.end(at(1));
            }
        });
        let (crashed, before) = ids(&found, "crashed");
        let (taken, of_taken) = ids(&found, "taken");
        let (again, of_again) = ids(&found, "again");
        assert_eq!((before, of_taken), (vec![], vec![crashed.clone()]));
        assert_eq!((of_again, ids(&found, "retry").1), (vec![crashed.clone()], vec![again.clone()]));
        assert!(taken != again && taken != crashed);
    }

    #[test]
    fn an_execution_that_goes_on_has_the_same_span_in_one_process_and_a_link_in_the_next_one() {
        let resumed = Execute { resumed: true, ..execution("one", Source::Schedule, 1) };
        let found = exported(|queue| {
            let mut before = spans("10.0.0.1@-@1", queue);
            let begun = before.execute(at(0), &execution("one", Source::Schedule, 1)).unwrap();
            let again = before.execute(at(1), &resumed).unwrap();
            assert_eq!((again.traced(), again.header()), (begun.traced(), begun.header()));
            before.end(at(1));
        });
        let (first, links) = ids(&found, "one");
        assert_eq!((links, found.len()), (vec![], 1));
        let after = exported(|queue| {
            let retry = Execute { resumed: true, ..execution("retry", Source::Schedule, 2) };
            for execute in [&resumed, &retry] {
                let mut after = spans("10.0.0.1@-@1", queue);
                after.execute(at(1), execute);
                after.end(at(2));
            }
        });
        let (other, links) = ids(&after, "one");
        assert_eq!(links, std::slice::from_ref(&first));
        assert_eq!(ids(&after, "retry").1, links);
        assert_ne!(other, first);
    }

    #[test]
    fn without_running_nodes_two_instances_may_execute_a_fire_and_have_two_spans() {
        let found = exported(|queue| {
            for (instance, id) in [("10.0.0.1@-@1", "one"), ("10.0.0.2@-@1", "other")] {
                let mut one = spans(instance, queue);
                one.execute(at(0), &unmonitored(id, 1));
                one.end(at(0));
            }
        });
        assert_ne!(ids(&found, "one").0, ids(&found, "other").0);
    }

    #[test]
    fn what_has_succeeded_is_forgotten() {
        exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            let begun = spans.execute(at(0), &execution("one", Source::Schedule, 1)).unwrap();
            assert_eq!(spans.reported(at(0), Item(2), &Outcome::Success), Some(begun.traced()));
            assert_eq!(spans.reported(at(0), Item(2), &Outcome::Success), None);
            assert_eq!(spans.items[&Item(2)].latest, None);
        });
    }
}
