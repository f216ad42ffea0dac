//! The bytes of a span, as the protocol of OpenTelemetry (OTLP 1.x, `trace.proto`) has them in protobuf. Decides nothing, and reads no clock.
//!
//! A sidecar has a span for each execution. The types that are generated from that file allocate a string for each name and each value: several
//! times the cost of the bytes themselves (docs/benchmarks.md).

use std::io::Write as _;

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

/// The bytes of a field of 64 bits, and those of `Span.Link`: two ids and the flags.
const FIXED_64_LEN: usize = 1 + 8;
const LINK_LEN: usize = (2 + 16) + (2 + 8) + (1 + 4);

/// The id of a span.
pub type SpanId = [u8; 8];

/// The ids of a span: of its trace, and its own.
pub type Ids = ([u8; 16], SpanId);

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
    /// A number as text.
    Digits(u32),
    /// A number.
    Number(i64),
}

/// The bytes that many spans have in common.
#[derive(Debug)]
pub struct Common(Vec<u8>);

impl Common {
    /// Sampled spans of this process with this trace and this parent, this name and these attributes.
    pub fn new((trace, parent): Ids, name: &str, attributes: &[(&str, Value<'_>)]) -> Self {
        let mut to = Writer::default();
        to.bytes(span::TRACE_ID, &trace);
        to.bytes(span::PARENT_SPAN_ID, &parent);
        to.fixed_32(span::FLAGS, SAMPLED_HERE);
        to.bytes(span::NAME, name.as_bytes());
        to.number(span::KIND, INTERNAL);
        for (key, value) in attributes {
            to.attribute(key, *value);
        }
        Self(to.0)
    }
}

/// The span of an execution, without [`Common`].
#[derive(Debug, Clone, Copy)]
pub struct ExecutionSpan<'a> {
    /// Its id.
    pub id: SpanId,
    /// When the execution began and ended.
    pub times: Times,
    /// The item.
    pub item: u32,
    /// The fencing token.
    pub token: i64,
    /// The id of the execution.
    pub execution_id: &'a str,
    /// The span of the execution whose work it goes on with.
    pub follows: Option<Ids>,
    /// Why the execution has failed.
    pub failure: Option<&'a str>,
}

impl ExecutionSpan<'_> {
    /// Adds it to the spans of one scope. `len`: its [`Self::len`].
    pub(super) fn write(&self, common: &Common, len: usize, to: &mut Writer) {
        to.tag(SPANS_OF_SCOPE, DELIMITED);
        to.len(len);
        to.0.extend_from_slice(&common.0);
        to.bytes(span::SPAN_ID, &self.id);
        to.fixed_64(span::START, self.times.begun);
        to.fixed_64(span::END, self.times.ended);
        for (key, value) in self.attributes() {
            to.attribute(key, value);
        }
        if let Some((trace, id)) = self.follows {
            to.tag(span::LINKS, DELIMITED);
            to.len(LINK_LEN);
            to.bytes(link::TRACE_ID, &trace);
            to.bytes(link::SPAN_ID, &id);
            to.fixed_32(link::FLAGS, SAMPLED_ANYWHERE);
        }
        if let Some(message) = self.failure {
            to.tag(span::STATUS, DELIMITED);
            to.len(status_len(message));
            to.bytes(status::MESSAGE, message.as_bytes());
            to.number(status::CODE, ERROR);
        }
    }

    /// The number of its bytes.
    pub(super) fn len(&self, Common(common): &Common) -> usize {
        let attributes = self.attributes().map(|(key, value)| delimited_len(attribute_len(key, value)));
        let link = self.follows.map_or(0, |_| delimited_len(LINK_LEN));
        let status = self.failure.map_or(0, |message| delimited_len(status_len(message)));
        let parts = [common.len(), delimited_len(self.id.len()), 2 * FIXED_64_LEN, link, status];
        parts.into_iter().chain(attributes).fold(0, usize::saturating_add)
    }

    fn attributes(&self) -> [(&'static str, Value<'_>); 3] {
        [
            ("item", Value::Digits(self.item)),
            ("execution.id", Value::Text(self.execution_id)),
            ("fencing.token", Value::Number(self.token)),
        ]
    }
}

/// The bytes of a span of this length in the spans of one scope.
pub(super) fn span_len(len: usize) -> usize {
    delimited_len(len)
}

/// `ExportTraceServiceRequest` with the spans of one scope: the bytes in front of them. `resource` and `scope` are bytes of those messages.
pub(super) fn request_head(resource: &[u8], scope: &[u8], spans_len: usize) -> Vec<u8> {
    let scope_len = delimited_len(scope.len()).saturating_add(spans_len);
    let resource_len = delimited_len(resource.len()).saturating_add(delimited_len(scope_len));
    let mut to = Writer::with_capacity(resource.len().saturating_add(scope.len()).saturating_add(32));
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
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// The bytes that were written.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// How many bytes were written.
    pub(super) fn written(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn attribute(&mut self, key: &str, value: Value<'_>) {
        self.tag(span::ATTRIBUTES, DELIMITED);
        self.len(attribute_len(key, value));
        self.bytes(KEY, key.as_bytes());
        self.tag(VALUE, DELIMITED);
        self.len(value_len(value));
        match value {
            Value::Text(text) => self.bytes(STRING_VALUE, text.as_bytes()),
            Value::Digits(number) => {
                self.tag(STRING_VALUE, DELIMITED);
                self.len(digits_len(number));
                // A vector takes everything.
                let _ = write!(self.0, "{number}");
            }
            Value::Number(number) => self.number(INT_VALUE, number.cast_unsigned()),
        }
    }

    #[inline]
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, DELIMITED);
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    #[inline]
    fn number(&mut self, field: u64, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn fixed_32(&mut self, field: u64, number: u32) {
        self.tag(field, FIXED_32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    #[inline]
    fn fixed_64(&mut self, field: u64, number: u64) {
        self.tag(field, FIXED_64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    #[inline]
    fn tag(&mut self, field: u64, layout: u64) {
        self.varint(field << 3 | layout);
    }

    #[inline]
    fn len(&mut self, len: usize) {
        self.varint(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// Nearly all numbers have one byte: tags and lengths.
    #[inline]
    fn varint(&mut self, number: u64) {
        match u8::try_from(number) {
            Ok(number @ ..=0x7f) => self.0.push(number),
            _ => self.long_varint(number),
        }
    }

    fn long_varint(&mut self, mut number: u64) {
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

/// The bytes of an attribute's `KeyValue`.
#[inline]
fn attribute_len(key: &str, value: Value<'_>) -> usize {
    delimited_len(key.len()).saturating_add(delimited_len(value_len(value)))
}

#[inline]
fn value_len(value: Value<'_>) -> usize {
    match value {
        Value::Text(text) => delimited_len(text.len()),
        Value::Digits(number) => delimited_len(digits_len(number)),
        Value::Number(number) => 1 + varint_len(number.cast_unsigned()),
    }
}

/// The bytes of a `Status`.
fn status_len(message: &str) -> usize {
    delimited_len(message.len()).saturating_add(2)
}

fn digits_len(number: u32) -> usize {
    usize::try_from(number.checked_ilog10().unwrap_or_default()).unwrap_or_default() + 1
}

/// The bytes of a delimited field whose tag has one byte.
#[inline]
fn delimited_len(len: usize) -> usize {
    len.saturating_add(1 + varint_len(u64::try_from(len).unwrap_or(u64::MAX)))
}

#[inline]
fn varint_len(number: u64) -> usize {
    // Zero has a byte, too.
    if number < 0x80 {
        return 1;
    }
    // Seven bits a byte.
    usize::try_from((u64::BITS - number.leading_zeros()).div_ceil(7)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
    use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span, span::SpanKind};
    use prost::Message as _;

    use super::*;

    fn common() -> Common {
        Common::new(
            ([7; 16], [3; 8]),
            "execution",
            &[("job.name", Value::Text("settlement")), ("attempt", Value::Number(1))],
        )
    }

    const SPAN: ExecutionSpan<'static> = ExecutionSpan {
        id: [9; 8],
        times: Times { begun: 1_732_795_200_000_000_001, ended: u64::MAX },
        item: 2,
        token: 7,
        execution_id: "one",
        follows: None,
        failure: None,
    };

    /// The spans as the types of the protocol read them.
    fn read(spans: &[ExecutionSpan<'_>]) -> Vec<Span> {
        let mut to = Writer::default();
        for span in spans {
            let (before, len) = (to.written(), span.len(&common()));
            span.write(&common(), len, &mut to);
            assert_eq!(to.written() - before, span_len(len), "{span:?}");
        }
        ScopeSpans::decode(to.into_bytes().as_slice()).unwrap().spans
    }

    fn attributes(span: &Span) -> Vec<(&str, Any)> {
        let value = |one: &KeyValue| one.value.clone().unwrap().value.unwrap();
        span.attributes.iter().map(|one| (one.key.as_str(), value(one))).collect()
    }

    fn text(text: &str) -> Any {
        Any::StringValue(text.to_owned())
    }

    #[test]
    fn a_span_reads_as_the_types_of_the_protocol_read_it() {
        let [span] = read(&[SPAN]).try_into().unwrap();
        assert_eq!((span.name.as_str(), span.kind()), ("execution", SpanKind::Internal));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (SPAN.times.begun, u64::MAX));
        assert_eq!((span.flags, &span.status, span.links.len()), (0x101, &None, 0));
        assert_eq!(
            attributes(&span),
            [
                ("job.name", text("settlement")),
                ("attempt", Any::IntValue(1)),
                ("item", text("2")),
                ("execution.id", text("one")),
                ("fencing.token", Any::IntValue(7)),
            ]
        );
        assert_eq!((span.trace_id, span.span_id, span.parent_span_id), (vec![7; 16], vec![9; 8], vec![3; 8]));
    }

    #[test]
    fn attributes_of_all_lengths_and_numbers_are_read_again() {
        for len in [0, 1, 120, 126, 127, 128, 300, 16_384] {
            let execution_id = "ü".repeat(len);
            let [span] = read(&[ExecutionSpan { execution_id: &execution_id, ..SPAN }]).try_into().unwrap();
            assert_eq!(attributes(&span)[3], ("execution.id", text(&execution_id)));
        }
        for token in [0, 1, 127, 128, 16_383, 16_384, i64::MAX, -1, i64::MIN] {
            let [span] = read(&[ExecutionSpan { token, ..SPAN }]).try_into().unwrap();
            assert_eq!(attributes(&span)[4], ("fencing.token", Any::IntValue(token)));
        }
        for item in [0, 9, 10, 99, 100, 4_294_967_295] {
            let [span] = read(&[ExecutionSpan { item, ..SPAN }]).try_into().unwrap();
            assert_eq!(attributes(&span)[2], ("item", text(&item.to_string())));
        }
    }

    #[test]
    fn a_link_and_a_failure_are_read_again() {
        for len in [0, 1, 127, 128, 1_200] {
            let message = "x".repeat(len);
            let follows = Some(([1; 16], [2; 8]));
            let failed = ExecutionSpan { follows, failure: Some(&message), ..SPAN };
            let [span, other] = read(&[failed, SPAN]).try_into().unwrap();
            let [link] = span.links.as_slice() else { panic!("{:?}", span.links) };
            assert_eq!((&link.trace_id, &link.span_id, link.flags), (&vec![1; 16], &vec![2; 8], 0x301));
            let status = span.status.unwrap();
            assert_eq!((status.code(), status.message), (StatusCode::Error, message));
            assert_eq!((other.links.len(), other.status), (0, None));
        }
    }

    #[test]
    fn a_request_reads_as_the_types_of_the_protocol_read_it() {
        for count in [0, 1, 3, 512] {
            let resource = Resource { dropped_attributes_count: 7, ..Resource::default() };
            let scope =
                InstrumentationScope { name: "sidekeeper".to_owned(), ..InstrumentationScope::default() };
            let mut spans = Writer::default();
            for _ in 0..count {
                SPAN.write(&common(), SPAN.len(&common()), &mut spans);
            }
            let mut spans = spans.into_bytes();
            let mut bytes = request_head(&resource.encode_to_vec(), &scope.encode_to_vec(), spans.len());
            bytes.append(&mut spans);
            let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
            let [of_resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
            let [of_scope] = of_resource.scope_spans.as_slice() else { panic!("{of_resource:?}") };
            assert_eq!((&of_resource.resource, &of_scope.scope), (&Some(resource), &Some(scope)));
            assert_eq!(of_scope.spans, read(&vec![SPAN; count]));
        }
    }
}
