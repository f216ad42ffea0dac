//! The spans of one request while they wait. Pure. Decides how little of them is kept, and which bytes are sent together.
//!
//! A span has some 300 bytes, and 70 of them are its own. Those that many spans have in common are kept once, and a span becomes bytes of the
//! protocol when the connection takes it: memory that nobody has touched for a second is slow, and all that is written there is read again later.

use std::sync::Arc;

use bytes::Bytes;

use super::span_bytes::{Common, ExecutionSpan, Ids, SpanId, Times, Writer, span_len};

/// The most bytes that are sent together, unless one span has more: a frame of HTTP/2 that every peer takes.
const CHUNK: usize = 16 * 1024;

/// Some spans.
#[derive(Debug, Default, Clone)]
pub(super) struct Batch {
    runs: Vec<Run>,
    spans: Vec<Own>,
    /// The ids of their executions, one behind the other.
    execution_ids: String,
    /// The spans that have more, by their places.
    rare: Vec<Rare>,
    /// The length of their bytes.
    len: usize,
}

/// Neighbours that have bytes in common.
#[derive(Debug, Clone)]
struct Run {
    common: Arc<Common>,
    count: usize,
}

/// The values that every span has of its own.
#[derive(Debug, Clone)]
struct Own {
    id: SpanId,
    times: Times,
    token: i64,
    item: u32,
    execution_id_len: usize,
    /// The length of the span.
    len: usize,
}

/// The values that few spans have.
#[derive(Debug, Clone)]
struct Rare {
    place: usize,
    follows: Option<Ids>,
    failure: Option<String>,
}

impl Batch {
    /// Adds a span.
    pub(super) fn push(&mut self, common: &Arc<Common>, span: &ExecutionSpan<'_>) {
        let len = span.len(common);
        self.len = self.len.saturating_add(span_len(len));
        match self.runs.last_mut().filter(|run| Arc::ptr_eq(&run.common, common)) {
            Some(run) => run.count += 1,
            None => self.runs.push(Run { common: Arc::clone(common), count: 1 }),
        }
        let &ExecutionSpan { id, times, item, token, execution_id, follows, failure } = span;
        if follows.is_some() || failure.is_some() {
            let failure = failure.map(str::to_owned);
            self.rare.push(Rare { place: self.spans.len(), follows, failure });
        }
        self.execution_ids.push_str(execution_id);
        self.spans.push(Own { id, times, token, item, execution_id_len: execution_id.len(), len });
    }

    /// How many spans there are.
    pub(super) fn count(&self) -> usize {
        self.spans.len()
    }

    /// How many bytes [`Chunks`] give.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes all spans, and keeps the memory.
    pub(super) fn clear(&mut self) {
        let Self { runs, spans, execution_ids, rare, len } = self;
        runs.clear();
        spans.clear();
        execution_ids.clear();
        rare.clear();
        *len = 0;
    }

    /// The span at a place, with its length.
    fn at(&self, place: &Place) -> Option<(&Common, ExecutionSpan<'_>, usize)> {
        let &Own { id, times, token, item, execution_id_len, len } = self.spans.get(place.span)?;
        let end = place.execution_id.saturating_add(execution_id_len);
        let rare = self.rare.get(place.rare).filter(|rare| rare.place == place.span);
        let span = ExecutionSpan {
            id,
            times,
            item,
            token,
            execution_id: self.execution_ids.get(place.execution_id..end)?,
            follows: rare.and_then(|rare| rare.follows),
            failure: rare.and_then(|rare| rare.failure.as_deref()),
        };
        Some((&self.runs.get(place.run)?.common, span, len))
    }

    /// The place after this one.
    fn after(&self, place: &Place, span: &ExecutionSpan<'_>) -> Place {
        let in_run = place.in_run + 1;
        let is_last_of_run = self.runs.get(place.run).is_none_or(|run| in_run >= run.count);
        let is_rare = span.follows.is_some() || span.failure.is_some();
        Place {
            span: place.span + 1,
            run: place.run + usize::from(is_last_of_run),
            in_run: if is_last_of_run { 0 } else { in_run },
            execution_id: place.execution_id + span.execution_id.len(),
            rare: place.rare + usize::from(is_rare),
        }
    }
}

/// Where a span is, in each list of its batch.
#[derive(Debug, Clone, Default)]
struct Place {
    span: usize,
    run: usize,
    /// How many spans of the run come before it.
    in_run: usize,
    execution_id: usize,
    rare: usize,
}

/// The bytes of a batch, as fields of `ScopeSpans`. Each chunk has whole spans.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    batch: Arc<Batch>,
    next: Place,
}

impl Chunks {
    pub(super) fn new(batch: &Arc<Batch>) -> Self {
        Self { batch: Arc::clone(batch), next: Place::default() }
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut to = Writer::with_capacity(CHUNK);
        while let Some((common, span, len)) = self.batch.at(&self.next) {
            let is_full = to.written().saturating_add(span_len(len)) > CHUNK;
            if is_full && to.written() > 0 {
                break;
            }
            span.write(common, len, &mut to);
            self.next = self.batch.after(&self.next, &span);
        }
        let bytes = to.into_bytes();
        (!bytes.is_empty()).then(|| bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span};
    use prost::Message as _;

    use super::*;
    use crate::telemetry::span_bytes::Value;

    fn common(job: &str) -> Arc<Common> {
        Arc::new(Common::new(([7; 16], [3; 8]), "execution", &[("job.name", Value::Text(job))]))
    }

    fn span(number: u64) -> ExecutionSpan<'static> {
        ExecutionSpan {
            id: number.to_be_bytes(),
            times: Times { begun: number, ended: number + 1 },
            item: 3,
            token: 7,
            execution_id: ["one", "", "another"][usize::try_from(number).unwrap() % 3],
            follows: number.is_multiple_of(5).then_some(([7; 16], [number.to_be_bytes()[7]; 8])),
            failure: number.is_multiple_of(7).then_some("no such account"),
        }
    }

    fn read(bytes: &[u8]) -> Vec<Span> {
        ScopeSpans::decode(bytes).unwrap().spans
    }

    fn written(spans: &[(&Common, ExecutionSpan<'_>)]) -> Vec<Span> {
        let mut to = Writer::default();
        for (common, span) in spans {
            span.write(common, span.len(common), &mut to);
        }
        read(&to.into_bytes())
    }

    #[test]
    fn chunks_have_every_span_once_and_in_order() {
        let [one, other] = ["settlement", "invoices"].map(common);
        let commons = [&one, &one, &other, &one, &other, &other];
        let mut batch = Batch::default();
        for count in [0, 1, 6, 300, 0] {
            batch.clear();
            let spans: Vec<_> =
                (0..count).map(|n| (commons[usize::try_from(n).unwrap() % 6], span(n))).collect();
            for (common, span) in &spans {
                batch.push(common, span);
            }
            let chunks: Vec<_> = Chunks::new(&Arc::new(batch.clone())).collect();
            assert_eq!(chunks.iter().map(Bytes::len).sum::<usize>(), batch.len());
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK));
            assert_eq!(batch.count(), spans.len());
            let found: Vec<_> = chunks.iter().flat_map(|chunk| read(chunk)).collect();
            let wanted: Vec<_> = spans.iter().map(|(common, span)| (&***common, *span)).collect();
            assert_eq!(found, written(&wanted));
        }
    }

    #[test]
    fn a_span_that_is_longer_than_a_chunk_is_a_chunk() {
        let common = common("settlement");
        let long = "x".repeat(CHUNK);
        let mut batch = Batch::default();
        for failure in ["", &long, "", ""] {
            batch.push(&common, &ExecutionSpan { failure: Some(failure), ..span(1) });
        }
        let chunks = Chunks::new(&Arc::new(batch));
        let counts: Vec<_> = chunks.map(|chunk| read(&chunk).len()).collect();
        assert_eq!(counts, [1, 1, 2]);
    }
}
