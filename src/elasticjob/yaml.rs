//! A YAML document as a tree, with bounds for everything. Pure.
//!
//! This file reads only the syntax; `yaml_types` and `config_yaml` know the meaning of scalars. Source:
//! protocol 1.4 rules 6 to 8. Aliases of scalars are resolved within a budget. Aliases of lists and maps stay
//! unresolved, so no document can grow when it is read.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};

/// Bytes in the largest document that is read: ZooKeeper's default limit for a node.
pub(super) const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;

/// Levels of nesting. SnakeYAML, which all peers use, has the same limit.
const DEPTH_MAX: usize = 50;

/// The prefix of the tags that YAML itself defines.
const CORE_TAG: &str = "tag:yaml.org,2002:";

/// Why a text is not an accepted document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The mistake.
    pub reason: String,
}

/// A position in the source, in characters from its beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) index: usize,
    pub(super) column: usize,
}

/// The range of a node in the source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) start: Place,
    pub(super) end: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) extent: Extent,
    /// The full tag: `tag:yaml.org,2002:str`, `!local`.
    pub(super) tag: Option<String>,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar {
        text: String,
        /// Written without quotes and not as a block. Then its text decides its type.
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<(Node, Node)>),
    /// An alias of a list or map.
    Alias,
}

impl Node {
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar { text, .. } => Some(text),
            Content::Sequence(_) | Content::Mapping(_) | Content::Alias => None,
        }
    }

    /// Whether this is YAML's null: `~`, `null` or nothing, without quotes.
    pub(super) fn is_null(&self) -> bool {
        match (&self.content, self.core_tag()) {
            (_, Some("null")) => true,
            (Content::Scalar { text, plain: true }, None) => {
                self.tag.is_none() && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// The name after YAML's own prefix: `str`, `int`.
    pub(super) fn core_tag(&self) -> Option<&str> {
        self.tag.as_deref()?.strip_prefix(CORE_TAG)
    }

    /// The kind of node for error texts, without its content.
    pub(super) fn kind(&self) -> &'static str {
        match &self.content {
            _ if self.is_null() => "null",
            Content::Scalar { .. } => "a text",
            Content::Sequence(_) => "a list",
            Content::Mapping(_) => "a map",
            Content::Alias => "an alias of a list or map",
        }
    }

    /// Whether two nodes have the same value, at any position.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.tag == other.tag
            && match (&self.content, &other.content) {
                (Content::Scalar { text, plain }, Content::Scalar { text: other, plain: other_plain }) => {
                    text == other && plain == other_plain
                }
                (Content::Sequence(nodes), Content::Sequence(others)) => {
                    nodes.len() == others.len() && nodes.iter().zip(others).all(|(a, b)| a.same(b))
                }
                (Content::Mapping(pairs), Content::Mapping(others)) => {
                    pairs.len() == others.len()
                        && pairs.iter().zip(others).all(|((a, b), (c, d))| a.same(c) && b.same(d))
                }
                (Content::Alias, Content::Alias) => true,
                _ => false,
            }
    }
}

/// Checks size, encoding and characters. Returns the text without a byte order mark.
pub(super) fn decode(bytes: &[u8]) -> Result<&str, SyntaxError> {
    let error = |line, column, reason| SyntaxError { line, column, reason };
    if bytes.len() > DOCUMENT_BYTES_MAX {
        let reason = format!("the document has {} bytes; allowed are {DOCUMENT_BYTES_MAX}", bytes.len());
        return Err(error(1, 1, reason));
    }
    let text = std::str::from_utf8(bytes).map_err(|cause| {
        error(1, 1, format!("the document is not UTF-8 from byte {}", cause.valid_up_to()))
    })?;
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    for (line, number) in text.split('\n').zip(1..) {
        if let Some((column, c)) =
            line.chars().zip(1..).find_map(|(c, n)| (!is_printable(c)).then_some((n, c)))
        {
            let reason = format!("the character U+{:04X} may only stand as an escape", u32::from(c));
            return Err(error(number, column, reason));
        }
    }
    Ok(text)
}

/// Whether YAML 1.1 allows a character as it is.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{A0}'..='\u{FFFD}' | '\u{10000}'..)
}

/// Reads a text that must have exactly one document.
pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        scalars: BTreeMap::new(),
        budget: DOCUMENT_BYTES_MAX,
        depth: 0,
    };
    reader.document()
}

struct Reader<'input> {
    parser: Parser<'input, StrInput<'input>>,
    scalars: BTreeMap<usize, Content>,
    /// The bytes that aliases may still add.
    budget: usize,
    depth: usize,
}

impl<'input> Reader<'input> {
    fn document(&mut self) -> Result<Node, SyntaxError> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::Nothing | Event::DocumentEnd => {}
                Event::StreamEnd => {
                    return root.ok_or_else(|| error_at(&span, "the document is empty; it must be a map"));
                }
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(error_at(&span, "a second document begins; allowed is one"));
                }
                Event::DocumentStart(_) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, &span)?);
                }
                Event::Scalar(..)
                | Event::Alias(_)
                | Event::SequenceStart(..)
                | Event::SequenceEnd
                | Event::MappingStart(..)
                | Event::MappingEnd => return Err(error_at(&span, "a document must begin here")),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'input>, Span), SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(SyntaxError {
                line: error.marker().line(),
                column: error.marker().col() + 1,
                reason: error.info().to_owned(),
            }),
            None => Err(SyntaxError { line: 1, column: 1, reason: "the document ends early".to_owned() }),
        }
    }

    fn node(&mut self, event: Event<'input>, span: &Span) -> Result<Node, SyntaxError> {
        let start = Place { index: span.start.index(), column: span.start.col() };
        let mut end = span.end.index();
        let (tag, content) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let content = Content::Scalar { text: text.into_owned(), plain };
                if anchor > 0 {
                    self.scalars.insert(anchor, content.clone());
                }
                (tag.as_deref().map(full_tag), content)
            }
            Event::Alias(anchor) => (None, self.alias(anchor, span)?),
            Event::SequenceStart(_, tag) => {
                let (nodes, last) = self.nodes(span, &Event::SequenceEnd)?;
                end = last;
                (tag.as_deref().map(full_tag), Content::Sequence(nodes))
            }
            Event::MappingStart(_, tag) => {
                let (nodes, last) = self.nodes(span, &Event::MappingEnd)?;
                end = last;
                let mut pairs = Vec::with_capacity(nodes.len() / 2);
                let mut nodes = nodes.into_iter();
                while let (Some(key), Some(value)) = (nodes.next(), nodes.next()) {
                    pairs.push((key, value));
                }
                (tag.as_deref().map(full_tag), Content::Mapping(pairs))
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(error_at(span, "a value must stand here")),
        };
        Ok(Node { extent: Extent { start, end }, tag, content })
    }

    /// The nodes of a collection whose begin was read, and the index of its end.
    fn nodes(&mut self, span: &Span, end: &Event<'_>) -> Result<(Vec<Node>, usize), SyntaxError> {
        if self.depth == DEPTH_MAX {
            let reason = format!("lists and maps are nested too deeply; allowed are {DEPTH_MAX} levels");
            return Err(error_at(span, &reason));
        }
        self.depth += 1;
        let mut nodes = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == *end {
                self.depth -= 1;
                // The span of a closing bracket also covers the white space and comment that follow.
                return Ok((nodes, span.start.index() + usize::from(!span.is_empty())));
            }
            nodes.push(self.node(event, &span)?);
        }
    }

    fn alias(&mut self, anchor: usize, span: &Span) -> Result<Content, SyntaxError> {
        let Some(content) = self.scalars.get(&anchor) else { return Ok(Content::Alias) };
        if let Content::Scalar { text, .. } = content {
            self.budget = self.budget.checked_sub(text.len()).ok_or_else(|| {
                error_at(span, &format!("aliases add more than {DOCUMENT_BYTES_MAX} bytes to the document"))
            })?;
        }
        Ok(content.clone())
    }
}

fn full_tag(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

fn error_at(span: &Span, reason: &str) -> SyntaxError {
    SyntaxError { line: span.start.line(), column: span.start.col() + 1, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        decode(text.as_bytes()).and_then(parse).unwrap_err().to_string()
    }

    #[test]
    fn nothing_grows_without_bounds() {
        assert!(refused(&"[".repeat(51)).contains("nested too deeply; allowed are 50 levels"));
        // The scanner has a limit of its own.
        assert!(refused(&"[".repeat(10_000)).contains("recursion limit"));
        assert!(refused(&"- ".repeat(10_000)).contains("nested too deeply"));
        assert!(refused(&"a".repeat(DOCUMENT_BYTES_MAX + 1)).contains("allowed are 1048576"));

        let long = "x".repeat(DOCUMENT_BYTES_MAX / 2);
        assert!(refused(&format!("[&a {long}, *a, *a, *a]")).contains("aliases add more than"));

        let laughs = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n";
        let node = parse(laughs).unwrap();
        let Content::Mapping(pairs) = node.content else { panic!("{node:?}") };
        let Content::Sequence(nodes) = &pairs[2].1.content else { panic!("{pairs:?}") };
        assert!(matches!(nodes[0].content, Content::Alias));
    }

    #[test]
    fn places_count_characters() {
        let text = "\u{e9}: \u{1F600}\nb: !!int [1,\n 2] # end\n";
        let Content::Mapping(pairs) = parse(text).unwrap().content else { panic!() };
        let (key, value) = &pairs[1];
        assert_eq!((key.extent.start.index, key.extent.start.column), (5, 0));
        assert_eq!(value.core_tag(), Some("int"));
        let tail: String = text.chars().skip(value.extent.start.index).collect();
        assert!(tail.starts_with("!!int [1"), "{tail}");
        let tail: String = text.chars().skip(value.extent.end).collect();
        assert_eq!(tail, " # end\n");
    }

    #[test]
    fn refuses_the_documents_that_java_refuses() {
        for (text, reason) in [
            ("", "line 1, column 1: the document is empty"),
            ("# nothing\n", "the document is empty"),
            ("a: 1\n---\nb: 1\n", "a second document begins"),
            ("a:\n\tb: 1\n", "line 2"),
            ("a: \u{1}\n", "line 1, column 4: the character U+0001"),
            ("cron: * * * * * ?\n", "line 1"),
            ("cron: %a\n", "line 1"),
            ("cron: @a\n", "line 1"),
            ("a: b: c\n", "line 1"),
            ("a: [1\n", "line"),
            ("a: 'x\n", "line"),
            ("a: *nowhere\n", "line 1"),
        ] {
            assert!(refused(text).contains(reason), "{text:?}: {}", refused(text));
        }
        assert!(decode(b"a: \xFF").unwrap_err().to_string().contains("not UTF-8 from byte 3"));
    }
}
