//! The spans of the executions of one participant. Decides which span goes on with the work of which other one; their ids are those of
//! [`crate::telemetry::spans`].
//!
//! A retry links to the attempt that has failed. A failover links to the first execution of the item, and so does an execution that another
//! process of the sidecar had begun: those processes may be dead, so the id of that span is computed. The link leads nowhere if a Java instance
//! has crashed, because it exports no spans.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::job::contract::event::Execute;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::report::Outcome;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, Item, JobName};
use crate::telemetry::span_bytes::{Common, ExecutionSpan, SpanId, Value};
use crate::telemetry::span_queue::SpanQueue;
use crate::telemetry::spans::{Fire, Traced, times};
use crate::tree::Path;

use super::item_set::ItemSet;

/// The characters of a failure's text that its span keeps.
const MESSAGE_CHARS_MAX: usize = 300;

/// The spans of one participant.
pub(super) struct Spans {
    fires: Fires,
    instance: InstanceId,
    queue: Arc<SpanQueue>,
    /// The open executions whose ids are not computed, by their items.
    further: BTreeMap<Item, Further>,
    /// The latest attempts that have failed, by their items.
    failed: BTreeMap<Item, SpanId>,
}

/// The fires of the participant's job.
struct Fires {
    namespace: String,
    job: JobName,
    /// Those with open executions, and at the end the one that began last, whose span may have ended.
    open: Vec<OpenFire>,
}

struct OpenFire {
    instant: Timestamp,
    fire: Fire,
    /// The items with open executions. Nothing else is kept of most executions: in a fire of thousands of items each one would be read from slow
    /// memory, twice.
    items: ItemSet,
    /// The bytes that the last exported span has in common with others of its attempt and source.
    common: Option<(u32, Source, Arc<Common>)>,
}

/// An open execution whose id is not computed.
struct Further {
    execution_id: String,
    id: SpanId,
    /// The execution that it goes on from. It belongs to the same fire.
    follows: Option<SpanId>,
    begun: Timestamp,
}

impl Spans {
    pub(super) fn new(namespace: &Path, job: &JobName, instance: &InstanceId, queue: Arc<SpanQueue>) -> Self {
        Self {
            fires: Fires { namespace: namespace.to_string(), job: job.clone(), open: Vec::new() },
            instance: instance.clone(),
            queue,
            further: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// An execution begins, or goes on over another stream. `None`: nothing is exported.
    pub(super) fn execute(&mut self, now: Timestamp, execute: &Execute) -> Option<Traced> {
        let item = execute.item;
        let fire = self.fires.begin(execute.scheduled, item)?;
        if is_first(execute) {
            self.failed.remove(&item);
            return Some(fire.traced(fire.first_execution(item)));
        }
        let known = self.further.get(&item).filter(|known| known.execution_id == execute.execution_id);
        if let Some(known) = known {
            return Some(fire.traced(known.id));
        }
        let failed = self.failed.remove(&item).filter(|_| execute.attempt > 1);
        let id = Fire::further_execution();
        let further = Further {
            execution_id: execute.execution_id.clone(),
            id,
            follows: failed.or_else(|| goes_on(execute).then(|| fire.first_execution(item))),
            begun: now,
        };
        self.further.insert(item, further);
        Some(fire.traced(id))
    }

    /// The application has reported the execution that it began with this message. Returns its span.
    pub(super) fn reported(&mut self, now: Timestamp, sent: &Execute, outcome: &Outcome) -> Option<Traced> {
        let failure = match outcome {
            Outcome::Success => None,
            Outcome::Failure(message) | Outcome::Rejected(message) | Outcome::Interrupted(message) => {
                Some(message.as_str())
            }
        };
        self.export(now, sent, failure)
    }

    /// The session was lost during the execution that the application began with this message. The application has stopped it.
    pub(super) fn lost(&mut self, now: Timestamp, sent: &Execute) {
        self.export(now, sent, Some("the session was lost during the execution"));
    }

    /// The participant has made a step, and its effects are performed: an execution that follows another one in the same step has begun.
    pub(super) fn stepped(&mut self) {
        self.fires.close();
    }

    /// The participant has ended. Nobody reports the executions that it leaves.
    pub(super) fn end<'a>(&mut self, now: Timestamp, left: impl Iterator<Item = &'a Execute>) {
        for sent in left {
            self.export(now, sent, None);
        }
    }

    /// Exports the span of an execution if its fire is sampled, and returns its ids. `None`: it was exported before.
    fn export(&mut self, now: Timestamp, sent: &Execute, failure: Option<&str>) -> Option<Traced> {
        let item = sent.item;
        let open = self.fires.end(sent.scheduled, item)?;
        let fire = &open.fire;
        let (id, follows, begun) = if is_first(sent) {
            (fire.first_execution(item), None, sent.fired)
        } else {
            let further = self.further.remove(&item)?;
            (further.id, further.follows, further.begun)
        };
        if failure.is_some() {
            self.failed.insert(item, id);
        }
        let traced = fire.traced(id);
        if traced.is_sampled() {
            let failure = failure.map(|failure| Excerpt::of_length(failure, MESSAGE_CHARS_MAX).into_string());
            let span = ExecutionSpan {
                id,
                times: times(begun, now),
                item: item.0,
                token: sent.token.0,
                execution_id: &sent.execution_id,
                follows: follows.map(|follows| fire.traced(follows).ids()),
                failure: failure.as_deref(),
            };
            self.queue.push(open.common(&self.instance, sent), &span);
        }
        Some(traced)
    }
}

impl Fires {
    /// The fire of an instant, for an execution of an item that begins. `None`: nothing is exported.
    fn begin(&mut self, instant: Timestamp, item: Item) -> Option<&Fire> {
        // An item has one execution at a time.
        for other in self.open.iter_mut().filter(|other| other.instant != instant) {
            other.items.remove(item);
        }
        if self.open.iter().all(|open| open.instant != instant) {
            let fire = Fire::begin(&self.namespace, self.job.as_str(), instant)?;
            self.open.push(OpenFire { instant, fire, items: ItemSet::default(), common: None });
        }
        let open = self.open.iter_mut().find(|open| open.instant == instant)?;
        open.items.insert(item);
        Some(&open.fire)
    }

    /// The fire of an execution that ends. `None`: it is not open.
    fn end(&mut self, instant: Timestamp, item: Item) -> Option<&mut OpenFire> {
        let open = self.open.iter_mut().find(|open| open.instant == instant)?;
        open.items.remove(item).then_some(open)
    }

    /// Ends the fires without open executions, and forgets them, but not the one that began last: its items may have retries.
    fn close(&mut self) {
        let Some(last) = self.open.last().map(|last| last.instant) else { return };
        self.open.retain(|open| open.instant == last || !open.items.is_empty());
        self.open.iter_mut().filter(|open| open.items.is_empty()).for_each(|open| open.fire.end());
    }
}

impl OpenFire {
    /// The bytes that the span of this execution has in common with others.
    fn common(&mut self, instance: &InstanceId, sent: &Execute) -> &Arc<Common> {
        let Execute { attempt, source, configuration, .. } = sent;
        let known = self.common.take().filter(|(of, from, _)| (of, from) == (attempt, source));
        let (.., common) = self.common.insert(known.unwrap_or_else(|| {
            let common = self.fire.common(&[
                ("job.name", Value::Text(configuration.job_name.as_str())),
                ("instance.id", Value::Text(instance.as_str())),
                ("attempt", Value::Number(i64::from(*attempt))),
                ("source", Value::Text(word(*source))),
            ]);
            (*attempt, *source, Arc::new(common))
        }));
        common
    }
}

/// Whether no other execution of its item has the same instant, so that its id is computed. Without running nodes there may be two of them at a
/// resharding, and no failover.
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
    execute.restored || execute.source == Source::Failover
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
            restored: false,
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
            let first = Execute { fired: at(3), ..execution("one", Source::Misfire, 1) };
            let one = spans.execute(at(3), &first).unwrap();
            let header = one.header();
            assert!(
                header.starts_with("00-d386cfd9e5d126d8664436bb2a751b25-") && header.ends_with("-01"),
                "{header}"
            );
            assert_eq!(
                one.ids().0,
                spans.fires.begin(at(0), Item(2)).unwrap().traced(Fire::further_execution()).ids().0
            );
            spans.reported(at(8), &first, &Outcome::Failure("no such account\nat line 3".to_owned()));
            let second = execution("two", Source::Failover, 2);
            spans.execute(at(9), &second).unwrap();
            spans.reported(at(9), &second, &Outcome::Success);
            // A clock that was set back.
            let third = Execute { fired: at(9), ..execution("three", Source::Trigger, 1) };
            spans.execute(at(9), &third).unwrap();
            spans.reported(at(2), &third, &Outcome::Success);
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
    fn a_fire_ends_when_none_of_its_executions_is_open() {
        let both = [1, 2].map(|item| Execute { item: Item(item), ..execution("one", Source::Schedule, 1) });
        let ended = |reports: usize| {
            let mut kept = None;
            let found = collect(|| {
                let mut spans = spans("10.0.0.1@-@1", &Arc::default());
                for one in &both {
                    spans.execute(at(0), one);
                }
                spans.stepped();
                for one in both.iter().take(reports) {
                    spans.reported(at(1), one, &Outcome::Success);
                    spans.stepped();
                }
                kept = Some(spans);
            });
            found.len()
        };
        assert_eq!([0, 1, 2].map(ended), [0, 0, 1]);
    }

    #[test]
    fn a_retry_has_the_parent_of_the_attempt_before_though_the_fire_has_ended() {
        let queue = Arc::new(SpanQueue::default());
        let fires = collect(|| {
            let mut spans = spans("10.0.0.1@-@1", &queue);
            for (id, attempt) in [("one", 1), ("two", 2)] {
                let execute = execution(id, Source::Schedule, attempt);
                spans.execute(at(0), &execute);
                spans.reported(at(0), &execute, &Outcome::Failure(String::new()));
                spans.stepped();
            }
        });
        let [fire] = fires.as_slice() else { panic!("{fires:?}") };
        let parents: Vec<_> = queue.waiting().into_iter().map(|span| span.parent_span_id).collect();
        assert_eq!(parents, [fire.span_context.span_id().to_bytes(); 2]);
    }

    #[test]
    fn executions_that_a_participant_leaves_are_exported_when_it_ends() {
        let found = exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            let [one, before] = ["one", "before"].map(|id| execution(id, Source::Schedule, 1));
            spans.execute(at(0), &before);
            spans.reported(at(0), &before, &Outcome::Success);
            spans.execute(at(0), &one);
            assert_eq!(queue.waiting().len(), 1);
            spans.end(at(5), [&one].into_iter());
            spans.end(at(6), [&one].into_iter());
        });
        assert_eq!((found.len(), found[1].status.clone()), (2, None));
    }

    #[test]
    fn a_lost_execution_is_exported_once_and_its_retry_links_to_it() {
        let found = exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            let one = execution("one", Source::Schedule, 1);
            spans.execute(at(0), &one);
            spans.lost(at(1), &one);
            spans.lost(at(2), &one);
            let retry = execution("retry", Source::Schedule, 2);
            spans.execute(at(3), &retry);
            spans.reported(at(4), &retry, &Outcome::Success);
        });
        let statuses = found.iter().map(|span| span.status.as_ref().map(|status| status.message.as_str()));
        let lost = "the session was lost during the execution";
        assert_eq!(statuses.collect::<Vec<_>>(), [Some(lost), None]);
        assert_eq!(ids(&found, "retry").1, [ids(&found, "one").0]);
    }

    #[test]
    fn a_fire_with_open_executions_is_known_though_another_one_has_begun() {
        exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            let of = |ms, item| Execute {
                scheduled: at(ms),
                item: Item(item),
                ..execution("one", Source::Schedule, 1)
            };
            let instants = |spans: &Spans| {
                spans.fires.open.iter().map(|open| (open.instant, open.items.len())).collect::<Vec<_>>()
            };
            for execute in [of(0, 1), of(0, 2), of(5, 3)] {
                spans.execute(at(9), &execute);
            }
            spans.stepped();
            assert_eq!(instants(&spans), [(at(0), 2), (at(5), 1)]);
            spans.reported(at(9), &of(5, 3), &Outcome::Success);
            spans.reported(at(9), &of(0, 1), &Outcome::Success);
            spans.stepped();
            assert_eq!(instants(&spans), [(at(0), 1), (at(5), 0)]);
            spans.reported(at(9), &of(0, 2), &Outcome::Success);
            spans.stepped();
            assert_eq!(instants(&spans), [(at(5), 0)]);
            spans.execute(at(9), &of(7, 1));
            spans.stepped();
            assert_eq!(instants(&spans), [(at(7), 1)]);
            // The next execution of an item says that the one before is over, even if nobody has said so.
            spans.execute(at(9), &of(8, 1));
            spans.stepped();
            assert_eq!(instants(&spans), [(at(8), 1)]);
        });
    }

    #[test]
    fn without_an_exporter_an_execution_has_no_span() {
        let queue = Arc::new(SpanQueue::default());
        let mut spans = spans("10.0.0.1@-@1", &queue);
        let one = execution("one", Source::Schedule, 1);
        assert!(spans.execute(at(0), &one).is_none());
        assert_eq!(spans.reported(at(0), &one, &Outcome::Success), None);
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
                    let execute = execute(id, attempt);
                    let begun = spans.execute(at(0), &execute).expect("its ids");
                    let failure = Outcome::Failure(String::new());
                    assert_eq!(spans.reported(at(0), &execute, &failure), Some(begun));
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
            let of = |id, source, attempt| execution(id, source, attempt);
            let (before, taken) = (of("crashed", Source::Misfire, 1), of("taken", Source::Failover, 1));
            let (again, retry) = (of("again", Source::Failover, 1), of("retry", Source::Failover, 2));
            crashed.execute(at(0), &before);
            taker.execute(at(0), &taken);
            next.execute(at(0), &again);
            next.reported(at(0), &again, &Outcome::Failure(String::new()));
            next.execute(at(0), &retry);
            for (mut one, left) in [(crashed, before), (taker, taken), (next, retry)] {
                one.end(at(1), [&left].into_iter());
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
        let one = execution("one", Source::Schedule, 1);
        let resumed = Execute { resumed: true, ..one.clone() };
        let found = exported(|queue| {
            let mut before = spans("10.0.0.1@-@1", queue);
            let begun = before.execute(at(0), &one).unwrap();
            let again = before.execute(at(1), &resumed).unwrap();
            assert_eq!((again, again.header()), (begun, begun.header()));
            before.end(at(1), [&one].into_iter());
        });
        let (first, links) = ids(&found, "one");
        assert_eq!((links, found.len()), (vec![], 1));
        let after = exported(|queue| {
            let restored = |execute| Execute { resumed: true, restored: true, ..execute };
            for execute in [restored(one.clone()), restored(execution("retry", Source::Schedule, 2))] {
                let mut after = spans("10.0.0.1@-@1", queue);
                let begun = after.execute(at(1), &execute).unwrap();
                assert_eq!(after.execute(at(1), &execute).unwrap(), begun);
                after.end(at(2), [&execute].into_iter());
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
                let execute = unmonitored(id, 1);
                one.execute(at(0), &execute);
                one.end(at(0), [&execute].into_iter());
            }
        });
        assert_ne!(ids(&found, "one").0, ids(&found, "other").0);
    }

    #[test]
    fn an_execution_that_has_succeeded_is_forgotten() {
        exported(|queue| {
            let mut spans = spans("10.0.0.1@-@1", queue);
            for execute in [execution("one", Source::Schedule, 1), unmonitored("two", 1)] {
                let begun = spans.execute(at(0), &execute).unwrap();
                assert_eq!(spans.reported(at(0), &execute, &Outcome::Success), Some(begun));
                assert_eq!(spans.reported(at(0), &execute, &Outcome::Success), None);
            }
            assert_eq!((spans.further.len(), spans.failed.len()), (0, 0));
            assert_eq!(spans.fires.open[0].items.len(), 0);
        });
    }
}
