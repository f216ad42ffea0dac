//! The bytes of a span, as the protocol of OpenTelemetry (OTLP 1.x, `trace.proto`) has them in protobuf. Decides nothing, and reads no clock.
//!
//! A sidecar has a span for each execution. The types that are generated from that file allocate a string for each name and each value: several
//! times the cost of the bytes themselves (docs/benchmarks.md).

use std::fmt::{Display, Write as _};

/// How protobuf lays out a field. The number is a part of its tag.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// The fields of `Span`.
mod span {
    pub(super) const TRACE_ID: u64 = 1;
    pub(super) const SPAN_ID: u64 = 2;
    pub(super) const PARENT_SPAN_ID: u64 = 4;
    pub(super) const NAME: u64 = 5;
    pub(super) const KIND: u64 = 6;
    pub(super) const START: u64 = 7;
    pub(super) const END: u64 = 8;
    pub(super) const ATTRIBUTES: u64 = 9;
    pub(super) const LINKS: u64 = 13;
    pub(super) const STATUS: u64 = 15;
    pub(super) const FLAGS: u64 = 16;
}

/// The fields of `Span.Link`.
mod link {
    pub(super) const TRACE_ID: u64 = 1;
    pub(super) const SPAN_ID: u64 = 2;
    pub(super) const FLAGS: u64 = 6;
}

/// The fields of `Status`.
mod status {
    pub(super) const MESSAGE: u64 = 2;
    pub(super) const CODE: u64 = 3;
}

/// The field of `ExportTraceServiceRequest`, those of `ResourceSpans`, and those of `ScopeSpans`.
const RESOURCES_OF_REQUEST: u64 = 1;
const RESOURCE: u64 = 1;
const SCOPES_OF_RESOURCE: u64 = 2;
const SCOPE: u64 = 1;
const SPANS_OF_SCOPE: u64 = 2;

/// The fields of `KeyValue`, and those of `AnyValue`.
const KEY: u64 = 1;
const VALUE: u64 = 2;
const STRING_VALUE: u64 = 1;
const INT_VALUE: u64 = 3;

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u64 = 1;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// The flags of a sampled span (W3C), and that it is known whether its context comes from another process, which it does not.
const SAMPLED_HERE: u32 = 0x101;
/// The same of a span of any process.
const SAMPLED_ANYWHERE: u32 = 0x301;

/// The ids of a span: of its trace, and its own.
pub type Ids = ([u8; 16], [u8; 8]);

/// When a span began and ended, in nanoseconds of the Unix time.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Its start.
    pub begun: u64,
    /// Its end.
    pub ended: u64,
}

/// A value of an attribute.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// Text.
    Text(&'a str),
    /// A number.
    Number(i64),
}

/// What many spans have in common: all but their own ids, times and further attributes.
#[derive(Debug, Clone)]
pub struct Head(Vec<u8>);

impl Head {
    /// The head of sampled spans of this process.
    pub fn new((trace, parent): Ids, name: &str) -> Self {
        let mut to = Writer(Vec::new());
        to.bytes(span::TRACE_ID, &trace);
        to.bytes(span::PARENT_SPAN_ID, &parent);
        to.fixed_32(span::FLAGS, SAMPLED_HERE);
        to.bytes(span::NAME, name.as_bytes());
        to.number(span::KIND, INTERNAL);
        Self(to.0)
    }
}

/// The bytes of attributes that many spans have in common.
#[derive(Debug, Clone)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// The bytes of these.
    pub fn new(of_all: &[(&str, Value<'_>)]) -> Self {
        let mut to = Writer(Vec::new());
        for (key, value) in of_all {
            to.attribute(key, *value);
        }
        Self(to.0)
    }
}

/// A span. Its parts are written one after the other, into the same memory for all spans.
#[derive(Debug, Default)]
pub struct SpanBytes {
    to: Writer,
    text: String,
}

impl SpanBytes {
    /// Begins a span in place of the one before.
    pub fn begin(&mut self, head: &Head, id: [u8; 8], times: Times) {
        let to = &mut self.to;
        to.0.clear();
        to.0.extend_from_slice(&head.0);
        to.bytes(span::SPAN_ID, &id);
        to.fixed_64(span::START, times.begun);
        to.fixed_64(span::END, times.ended);
    }

    /// Adds attributes that are bytes already.
    pub fn add_all(&mut self, attributes: &Attributes) {
        self.to.0.extend_from_slice(&attributes.0);
    }

    /// Adds an attribute.
    pub fn add(&mut self, key: &str, value: Value<'_>) {
        self.to.attribute(key, value);
    }

    /// Adds the text of a value as an attribute.
    pub fn add_text_of(&mut self, key: &str, value: impl Display) {
        self.text.clear();
        // A string takes everything.
        let _ = write!(self.text, "{value}");
        self.to.attribute(key, Value::Text(&self.text));
    }

    /// The span goes on with the work of another one.
    pub fn link_to(&mut self, (trace, id): Ids) {
        let mut link = Writer(Vec::with_capacity(40));
        link.bytes(link::TRACE_ID, &trace);
        link.bytes(link::SPAN_ID, &id);
        link.fixed_32(link::FLAGS, SAMPLED_ANYWHERE);
        self.to.bytes(span::LINKS, &link.0);
    }

    /// What the span is about has failed.
    pub fn fail(&mut self, message: &str) {
        let mut status = Writer(Vec::with_capacity(message.len().saturating_add(16)));
        status.bytes(status::MESSAGE, message.as_bytes());
        status.number(status::CODE, ERROR);
        self.to.bytes(span::STATUS, &status.0);
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.to.0
    }
}

/// Adds a span to the spans of one scope.
pub(super) fn push_span(spans: &mut Vec<u8>, bytes: &[u8]) {
    let mut to = Writer(std::mem::take(spans));
    to.bytes(SPANS_OF_SCOPE, bytes);
    *spans = to.0;
}

/// `ExportTraceServiceRequest` with the spans of one scope: the bytes in front of them. `resource` and `scope` are bytes of those messages.
pub(super) fn request_head(resource: &[u8], scope: &[u8], spans_len: usize) -> Vec<u8> {
    let scope_len = delimited_len(scope.len()).saturating_add(spans_len);
    let resource_len = delimited_len(resource.len()).saturating_add(delimited_len(scope_len));
    let mut to = Writer(Vec::with_capacity(resource.len().saturating_add(scope.len()).saturating_add(32)));
    to.tag(RESOURCES_OF_REQUEST, DELIMITED);
    to.len(resource_len);
    to.bytes(RESOURCE, resource);
    to.tag(SCOPES_OF_RESOURCE, DELIMITED);
    to.len(scope_len);
    to.bytes(SCOPE, scope);
    to.0
}

/// Writes fields of protobuf one behind the other.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn attribute(&mut self, key: &str, value: Value<'_>) {
        let inner = match value {
            Value::Text(text) => delimited_len(text.len()),
            Value::Number(number) => 1 + varint_len(number.cast_unsigned()),
        };
        self.tag(span::ATTRIBUTES, DELIMITED);
        self.len(delimited_len(key.len()).saturating_add(delimited_len(inner)));
        self.bytes(KEY, key.as_bytes());
        self.tag(VALUE, DELIMITED);
        self.len(inner);
        match value {
            Value::Text(text) => self.bytes(STRING_VALUE, text.as_bytes()),
            Value::Number(number) => self.number(INT_VALUE, number.cast_unsigned()),
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, DELIMITED);
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn fixed_32(&mut self, field: u64, number: u32) {
        self.tag(field, FIXED_32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed_64(&mut self, field: u64, number: u64) {
        self.tag(field, FIXED_64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn tag(&mut self, field: u64, layout: u64) {
        self.varint(field << 3 | layout);
    }

    fn len(&mut self, len: usize) {
        self.varint(u64::try_from(len).unwrap_or(u64::MAX));
    }

    fn varint(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.0.push(low);
            }
            self.0.push(low | 0x80);
        }
    }
}

/// The bytes of a delimited field whose tag has one byte.
fn delimited_len(len: usize) -> usize {
    len.saturating_add(1 + varint_len(u64::try_from(len).unwrap_or(u64::MAX)))
}

fn varint_len(number: u64) -> usize {
    // Seven bits a byte; zero has one byte, too.
    usize::try_from((u64::BITS - (number | 1).leading_zeros()).div_ceil(7)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
    use prost::Message as _;

    use super::*;

    const IDS: Ids = ([7; 16], [9; 8]);
    const TIMES: Times = Times { begun: 1_732_795_200_000_000_001, ended: u64::MAX };

    fn begin() -> SpanBytes {
        let mut span = SpanBytes::default();
        // Nothing of the span before is left.
        span.begin(&Head::new(([0; 16], [0; 8]), "another"), [1; 8], Times { begun: 1, ended: 2 });
        span.add("another", Value::Number(1));
        span.begin(&Head::new((IDS.0, [3; 8]), "execution"), IDS.1, TIMES);
        span
    }

    fn read(span: &SpanBytes) -> Span {
        Span::decode(span.bytes()).unwrap()
    }

    #[test]
    fn a_span_reads_as_the_types_of_the_protocol_read_it() {
        let span = read(&begin());
        assert_eq!((span.name.as_str(), span.kind()), ("execution", SpanKind::Internal));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (TIMES.begun, TIMES.ended));
        assert_eq!(span.flags, 0x101);
        assert_eq!((span.status, span.attributes.len(), span.links.len()), (None, 0, 0));
        assert_eq!((span.trace_id, span.span_id, span.parent_span_id), (vec![7; 16], vec![9; 8], vec![3; 8]));
    }

    #[test]
    fn attributes_of_all_lengths_and_numbers_are_read_again() {
        let texts: Vec<String> = [0, 1, 120, 126, 127, 128, 300, 16_384].map(|len| "ü".repeat(len)).into();
        let numbers = [0, 1, 127, 128, 16_383, 16_384, i64::MAX, -1, i64::MIN];
        let mut span = begin();
        span.add_all(&Attributes::new(&[
            ("job.name", Value::Text("settlement")),
            ("instance.id", Value::Text("10.0.0.7@-@1")),
        ]));
        for text in &texts {
            span.add("text", Value::Text(text));
        }
        for number in numbers {
            span.add("number", Value::Number(number));
        }
        for number in [7, 4_294_967_295_u32] {
            span.add_text_of("text", number);
        }
        let read = read(&span);
        let mut found = read.attributes.into_iter().map(|one| (one.key, one.value.unwrap().value.unwrap()));
        for (key, value) in [("job.name", "settlement"), ("instance.id", "10.0.0.7@-@1")] {
            assert_eq!(found.next(), Some((key.to_owned(), Any::StringValue(value.to_owned()))));
        }
        for text in texts {
            assert_eq!(found.next(), Some(("text".to_owned(), Any::StringValue(text))));
        }
        for number in numbers {
            assert_eq!(found.next(), Some(("number".to_owned(), Any::IntValue(number))));
        }
        for text in ["7", "4294967295"] {
            assert_eq!(found.next(), Some(("text".to_owned(), Any::StringValue(text.to_owned()))));
        }
        assert_eq!(found.next(), None);
    }

    #[test]
    fn a_link_and_a_failure_are_read_again() {
        let mut span = begin();
        span.link_to(([1; 16], [2; 8]));
        span.fail("no such account");
        let read = read(&span);
        let [link] = read.links.as_slice() else { panic!("{:?}", read.links) };
        assert_eq!(
            (link.trace_id.as_slice(), link.span_id.as_slice(), link.flags),
            ([1; 16].as_slice(), [2; 8].as_slice(), 0x301)
        );
        let status = read.status.unwrap();
        assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "no such account"));
    }

    #[test]
    fn a_request_reads_as_the_types_of_the_protocol_read_it() {
        for count in [0, 1, 3, 512] {
            let resource = Resource { dropped_attributes_count: 7, ..Resource::default() };
            let scope =
                InstrumentationScope { name: "sidekeeper".to_owned(), ..InstrumentationScope::default() };
            let mut spans = Vec::new();
            for _ in 0..count {
                push_span(&mut spans, begin().bytes());
            }
            let mut bytes = request_head(&resource.encode_to_vec(), &scope.encode_to_vec(), spans.len());
            bytes.append(&mut spans);
            let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
            let [of_resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
            let [of_scope] = of_resource.scope_spans.as_slice() else { panic!("{of_resource:?}") };
            assert_eq!((&of_resource.resource, &of_scope.scope), (&Some(resource), &Some(scope)));
            assert_eq!(of_scope.spans, vec![read(&begin()); count]);
        }
    }
}
