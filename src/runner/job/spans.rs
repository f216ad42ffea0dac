//! The spans of the executions of one participant. Decides which span goes on with the work of which other one; their ids are those of
//! [`crate::telemetry::spans`].
//!
//! A retry links to the attempt that has failed. A failover links to the first execution of the item, and so does an execution that another
//! process of the sidecar had begun: those processes may be dead, so the id of that span is computed. The link leads nowhere if a Java instance
//! has crashed, because it exports no spans.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tracing::Span;

use crate::coordination::job::contract::event::Execute;
use crate::coordination::job::contract::plan::Source;
use crate::job::{InstanceId, Item, JobName};
use crate::telemetry::spans::{FIRE_SPANS, Fire, Traced};
use crate::tree::Path;

/// The spans of one participant.
pub(super) struct Spans {
    namespace: String,
    job: JobName,
    instance: InstanceId,
    /// The latest fire, for its executions.
    fire: Option<(Timestamp, Fire)>,
    /// The executions without a report, by their ids.
    open: BTreeMap<String, (Span, Option<Traced>)>,
    /// The latest execution of each item, unless it has succeeded.
    latest: BTreeMap<Item, Traced>,
}

impl Spans {
    pub(super) fn new(namespace: &Path, job: &JobName, instance: &InstanceId) -> Self {
        Self {
            namespace: namespace.to_string(),
            job: job.clone(),
            instance: instance.clone(),
            fire: None,
            open: BTreeMap::new(),
            latest: BTreeMap::new(),
        }
    }

    /// An execution begins, or goes on over another stream. `None`: its span is not exported.
    pub(super) fn execute(&mut self, execute: &Execute) -> Option<Traced> {
        if let Some((_, traced)) = self.open.get(&execute.execution_id) {
            return traced.clone();
        }
        let fire = self.fire(execute.scheduled);
        let span = tracing::info_span!(
            target: FIRE_SPANS,
            parent: &fire.span,
            "execution",
            job.name = %self.job,
            item = %execute.item,
            instance.id = %self.instance,
            execution.id = %execute.execution_id,
            attempt = execute.attempt,
            source = ?execute.source,
            fencing.token = execute.token.0,
        );
        let first = fire.first_execution(execute.item);
        let before = self.latest.remove(&execute.item);
        let traced = if is_first(execute) {
            Traced::begin_as(&span, &first)
        } else {
            let failed = before.filter(|_| execute.attempt > 1);
            let follows = failed.or_else(|| goes_on(execute).then_some(first));
            if let Some(follows) = follows {
                follows.link_from(&span);
            }
            Traced::begin(&span)
        };
        if let Some(traced) = &traced {
            self.latest.insert(execute.item, traced.clone());
        }
        self.open.insert(execute.execution_id.clone(), (span, traced.clone()));
        traced
    }

    /// The application has reported an execution.
    pub(super) fn end(&mut self, execution_id: &str) {
        self.open.remove(execution_id);
    }

    /// The latest execution of an item, as it was reported. `has_succeeded`: nothing goes on with it.
    pub(super) fn reported(&mut self, item: Item, has_succeeded: bool) -> Option<Traced> {
        if has_succeeded { self.latest.remove(&item) } else { self.latest.get(&item).cloned() }
    }

    fn fire(&mut self, scheduled: Timestamp) -> Fire {
        match &self.fire {
            Some((instant, fire)) if *instant == scheduled => fire.clone(),
            Some(_) | None => {
                let fire = Fire::begin(&self.namespace, self.job.as_str(), scheduled);
                self.fire = Some((scheduled, fire.clone()));
                fire
            }
        }
    }
}

/// Whether no other execution of its item has the same instant. Without running nodes there may be two of them at a resharding, and no failover.
fn is_first(execute: &Execute) -> bool {
    execute.attempt == 1 && !goes_on(execute) && execute.configuration.monitor_execution
}

/// Whether another process has begun its work.
fn goes_on(execute: &Execute) -> bool {
    execute.resumed || execute.source == Source::Failover
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry_sdk::trace::SpanData;

    use super::*;
    use crate::job::{FencingToken, JobConfiguration};
    use crate::telemetry::tests::collect;

    const AT: i64 = 1_732_795_200_000;

    fn spans(instance: &str) -> Spans {
        let job = JobName::parse("settlement").unwrap();
        Spans::new(&Path::parse("/billing").unwrap(), &job, &InstanceId::from_registry(instance))
    }

    fn execution(id: &str, source: Source, attempt: u32) -> Execute {
        let configuration = JobConfiguration::new(JobName::parse("settlement").unwrap(), 3);
        let scheduled = Timestamp::from_millisecond(AT).unwrap();
        Execute {
            execution_id: id.to_owned(),
            item: Item(2),
            parameter: None,
            configuration: Arc::new(configuration),
            task_id: "task".into(),
            source,
            attempt,
            checkpoint: None,
            scheduled,
            fired: scheduled,
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

    /// The ids of a span, and those of the spans that it links to.
    fn ids(spans: &[SpanData], execution: &str) -> (String, Vec<String>) {
        let is_it = |span: &&SpanData| {
            let id = span.attributes.iter().find(|attribute| attribute.key.as_str() == "execution.id");
            id.is_some_and(|id| id.value.as_str() == execution)
        };
        let span = spans.iter().find(is_it).expect("its span");
        let links = span.links.iter().map(|link| {
            assert_eq!(link.span_context.trace_id(), span.span_context.trace_id());
            link.span_context.span_id().to_string()
        });
        (span.span_context.span_id().to_string(), links.collect())
    }

    #[test]
    fn op_15_a_retry_links_to_the_attempt_that_has_failed() {
        for monitored in [true, false] {
            let execute = |id, attempt| match monitored {
                true => execution(id, Source::Schedule, attempt),
                false => unmonitored(id, attempt),
            };
            let found = collect(|| {
                let mut spans = spans("10.0.0.1@-@1");
                for (id, attempt) in [("one", 1), ("two", 2), ("three", 3)] {
                    let traced = spans.execute(&execute(id, attempt)).expect("its ids");
                    spans.end(id);
                    assert_eq!(spans.reported(Item(2), false), Some(traced));
                }
            });
            let (one, of_one) = ids(&found, "one");
            let (two, of_two) = ids(&found, "two");
            assert_eq!((of_one, of_two, ids(&found, "three").1), (vec![], vec![one], vec![two]));
        }
    }

    #[test]
    fn op_15_a_failover_links_to_the_execution_of_the_instance_that_has_crashed() {
        let found = collect(|| {
            let (mut crashed, mut taker, mut next) =
                (spans("10.0.0.1@-@1"), spans("10.0.0.2@-@1"), spans("10.0.0.3@-@1"));
            crashed.execute(&execution("crashed", Source::Misfire, 1));
            taker.execute(&execution("taken", Source::Failover, 1));
            next.execute(&execution("again", Source::Failover, 1));
            next.execute(&execution("retry", Source::Failover, 2));
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
        let found = collect(|| {
            let mut before = spans("10.0.0.1@-@1");
            let begun = before.execute(&execution("one", Source::Schedule, 1));
            assert!(begun.is_some());
            assert_eq!(before.execute(&resumed), begun);
        });
        let (first, links) = ids(&found, "one");
        assert_eq!(links, Vec::<String>::new());
        let after = collect(|| {
            spans("10.0.0.1@-@1").execute(&resumed);
            let retry = Execute { resumed: true, ..execution("retry", Source::Schedule, 2) };
            spans("10.0.0.1@-@1").execute(&retry);
        });
        let (other, links) = ids(&after, "one");
        assert_eq!(links, std::slice::from_ref(&first));
        assert_eq!(ids(&after, "retry").1, links);
        assert_ne!(other, first);
    }

    #[test]
    fn without_running_nodes_two_instances_may_execute_a_fire_and_have_two_spans() {
        let found = collect(|| {
            spans("10.0.0.1@-@1").execute(&unmonitored("one", 1));
            spans("10.0.0.2@-@1").execute(&unmonitored("other", 1));
        });
        assert_ne!(ids(&found, "one").0, ids(&found, "other").0);
    }

    #[test]
    fn what_has_succeeded_is_forgotten() {
        collect(|| {
            let mut spans = spans("10.0.0.1@-@1");
            let traced = spans.execute(&execution("one", Source::Schedule, 1));
            spans.end("one");
            assert_eq!(spans.reported(Item(2), true), traced);
            assert_eq!(spans.reported(Item(2), true), None);
            assert!(spans.open.is_empty() && spans.latest.is_empty());
        });
    }
}
