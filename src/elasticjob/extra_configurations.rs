//! Keeps `jobExtraConfigurations` as they are written, with tags and comments. Pure.
//!
//! The entries have tags of unknown Java classes. So this file never interprets them; it only cuts them out
//! of one document and puts them into the next. Source: protocol 1.4 rule 7.

use crate::elasticjob::yaml::{self, Content, Node};

pub(super) const KEY: &str = "jobExtraConfigurations";

/// Cuts the entry at `position` out of the root map of `text`: lines with their line ends, from the key on.
///
/// From a map in block style the entry is cut byte for byte, less the indentation of the whole map. From a
/// map in flow style (JSON) it becomes an entry of its own line, and its further lines are indented. `None`
/// if the cut text would have another meaning, because it uses an anchor or directive from elsewhere in the
/// document.
pub(super) fn cut(text: &str, root: &Node, position: usize) -> Option<String> {
    let Content::Mapping(pairs) = &root.content else { return None };
    let (key, value) = pairs.get(position)?;
    let in_flow = slice(text, root.extent.start.index, None).starts_with('{');
    let mut lines = if in_flow {
        let entry = slice(text, key.extent.start.index, Some(value.extent.end));
        entry.split_inclusive('\n').collect::<Vec<_>>().join(" ")
    } else {
        let indentation = key.extent.start.column;
        let next = pairs.get(position + 1).map(|(key, _)| key.extent.start);
        let end = next.map(|next| next.index.saturating_sub(next.column));
        let entry = slice(text, key.extent.start.index, end);
        let document_ends = |line: &&str| !["...", "---"].iter().any(|marker| line.starts_with(marker));
        entry
            .split_inclusive('\n')
            .take_while(document_ends)
            .map(|line| without_indentation(line, indentation))
            .collect()
    };
    if !lines.ends_with('\n') {
        lines.push('\n');
    }
    is_document_with(&lines, value).then_some(lines)
}

/// Whether the lines are a document with only this entry.
fn is_document_with(lines: &str, value: &Node) -> bool {
    let Ok(document) = yaml::parse(lines) else { return false };
    let Content::Mapping(pairs) = &document.content else { return false };
    matches!(pairs.as_slice(), [(key, kept)] if key.scalar() == Some(KEY) && kept.same(value))
}

/// The text between two positions, in characters.
fn slice(text: &str, start: usize, end: Option<usize>) -> &str {
    let byte = |index| text.char_indices().nth(index).map_or(text.len(), |(byte, _)| byte);
    text.get(byte(start)..end.map_or(text.len(), byte)).unwrap_or("")
}

fn without_indentation(line: &str, columns: usize) -> &str {
    let spaces = line.bytes().take(columns).take_while(|byte| *byte == b' ').count();
    line.get(spaces..).unwrap_or(line)
}
