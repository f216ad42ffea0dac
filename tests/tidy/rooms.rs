//! The rooms of `src/coordination`: the ranks, and the fields that a room keeps private.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, code, files, none};

/// The rooms, from the ground up. A file uses files of its own room, without a circle, and of lower ranks; never of another
/// room of the same rank. The longest prefix counts.
const RANKS: [(&str, u8); 19] = [
    ("time.rs", 0),
    ("job/contract/", 0),
    ("lease.rs", 1),
    ("job/picture/", 1),
    ("job/frame/", 2),
    ("job/agenda.rs", 3),
    ("job/membership/", 4),
    ("job/rotation.rs", 4),
    ("job/ledger.rs", 4),
    ("job/execution/", 5),
    ("job/ownership/", 6),
    ("job/once/", 7),
    ("job/firing/", 8),
    ("job/failover/", 9),
    ("job/notices/", 10),
    ("job/lifecycle/", 11),
    ("job/participant.rs", 12),
    ("admin/", 12),
    ("", 13),
];

/// Known uses that the ranks do not allow. The list may only become shorter.
const UPWARD: [(&str, &str); 4] = [
    ("job/lifecycle/departure.rs", "job/participant.rs"),
    ("job/lifecycle/removal.rs", "job/participant.rs"),
    ("job/lifecycle/restart.rs", "job/participant.rs"),
    ("job/lifecycle/stream.rs", "job/participant.rs"),
];

/// Files beside `job/participant.rs` that have a piece of it. The list may only become shorter.
const PIECES_OF_THE_PARTICIPANT: [&str; 4] = [
    "job/lifecycle/departure.rs",
    "job/lifecycle/removal.rs",
    "job/lifecycle/restart.rs",
    "job/lifecycle/stream.rs",
];

/// Rooms' files whose fields others may touch, and how many. The numbers may only become smaller.
const OPEN_FIELDS: [(&str, usize); 7] = [
    ("job/execution/ending.rs", 4),
    ("job/execution/limit.rs", 1),
    ("job/execution/state.rs", 23),
    ("job/firing/schedule.rs", 3),
    ("job/once/state.rs", 18),
    ("job/ownership/member.rs", 7),
    ("job/participant.rs", 33),
];

const ROOT: &str = "src/coordination/";

/// The files of the rooms, by their paths below [`ROOT`].
struct Rooms(BTreeMap<String, File>);

impl Rooms {
    fn read() -> Self {
        let rooms = files().into_iter().filter(|file| file.is_rust_source());
        let rooms = rooms.filter_map(|file| Some((file.path.strip_prefix(ROOT)?.to_owned(), file)));
        Self(rooms.collect())
    }

    /// The file that a module path leads to; the rest of the path are names in it.
    fn resolve(&self, path: &[&str]) -> Option<&str> {
        let known = |name: String| self.0.get_key_value(&name).map(|(name, _)| name.as_str());
        (0..=path.len()).rev().find_map(|length| {
            let folder = path[..length].join("/");
            let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            known(format!("{folder}.rs")).or_else(|| known(format!("{prefix}mod.rs")))
        })
    }

    /// The files that a file uses.
    fn uses(&self, file: &str) -> BTreeSet<&str> {
        let text: String = self.0[file].text.lines().map(|line| format!("{}\n", code(line))).collect();
        let mut module: Vec<_> = file.trim_end_matches(".rs").split('/').collect();
        module.pop_if(|last| *last == "mod");
        let parent = &module[..module.len().saturating_sub(1)];
        let mut found = BTreeSet::new();
        for (start, base) in [("crate::coordination::", &[][..]), ("super::", parent)] {
            for (at, _) in text.match_indices(start).filter(|(at, _)| !text[..*at].ends_with("super::")) {
                // `super::*` in a module of tests is the file itself.
                for path in leaves(&text[at + start.len()..]).into_iter().filter(|path| !path[0].is_empty()) {
                    let path: Vec<_> = base.iter().copied().chain(path.iter().map(String::as_str)).collect();
                    found.extend(self.resolve(&path).filter(|used| *used != file));
                }
            }
        }
        found
    }
}

/// The paths that begin in a text: one, or those of a group in braces.
fn leaves(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    parts.push(&group[begin..at]);
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(&group[begin..at]);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return parts.into_iter().flat_map(leaves).collect();
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = text[..end].to_owned();
    match text[end..].strip_prefix("::") {
        Some(rest) => leaves(rest).into_iter().map(|rest| [vec![name.clone()], rest].concat()).collect(),
        None => vec![vec![name]],
    }
}

/// The room of a file, and its rank.
fn room(file: &str) -> (&'static str, u8) {
    let known = RANKS.iter().filter(|(prefix, _)| file.starts_with(prefix));
    *known.max_by_key(|(prefix, _)| prefix.len()).unwrap()
}

/// Whether one can come from a file back to it by uses within its room.
fn is_in_circle(from: &str, to: &str, uses: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![to]);
    while let Some(file) = open.pop() {
        if file == from {
            return true;
        }
        if seen.insert(file) {
            open.extend(uses[file].iter().filter(|used| room(used) == room(file)));
        }
    }
    false
}

/// Compares the violations that were found with the known ones.
fn compare<T: Ord + std::fmt::Debug>(found: BTreeSet<T>, known: BTreeSet<T>, instead: &str) -> Vec<String> {
    let new = found.difference(&known).map(|new| format!("{new:?}: {instead}"));
    let done = known.difference(&found).map(|done| format!("{done:?}: is mended; take it off the list"));
    new.chain(done).collect()
}

#[test]
fn rooms_use_lower_rooms_only() {
    let rooms = Rooms::read();
    let uses: BTreeMap<_, _> = rooms.0.keys().map(|file| (file.as_str(), rooms.uses(file))).collect();
    let is_wrong = |(from, to): &(&str, &str)| {
        let ((here, rank), (there, below)) = (room(from), room(to));
        // A folder's own file names what is in it.
        let is_folder = |file: &str| file.ends_with("mod.rs");
        if here == there {
            !is_folder(from) && is_in_circle(from, to, &uses)
        } else {
            below >= rank && !is_folder(from)
        }
    };
    let pairs = uses.iter().flat_map(|(from, to)| to.iter().map(|to| (*from, *to)));
    let found = pairs.filter(is_wrong).collect();
    none(&compare(
        found,
        UPWARD.into(),
        "a file uses its own room without a circle, and lower ranks: return a value, \
        or take an argument",
    ));
}

#[test]
fn the_participant_is_in_one_file() {
    let rooms = Rooms::read();
    let pieces = rooms.0.iter().filter(|(name, file)| {
        *name != "job/participant.rs" && file.text.lines().any(|line| line.starts_with("impl Participant"))
    });
    let pieces = pieces.map(|(name, _)| name.as_str()).collect();
    none(&compare(
        pieces,
        PIECES_OF_THE_PARTICIPANT.into(),
        "a decision is a function of its room, and not of the \
        participant",
    ));
}

#[test]
fn rooms_keep_their_fields_to_themselves() {
    let is_open = |line: &str| {
        let field = line.strip_prefix("    pub").map(|rest| rest.trim_start_matches(|c| c != ' '));
        let field = field.map(|rest| rest.trim_start_matches(" crate::coordination)").trim_start());
        let name = field.and_then(|field| field.split_once(':')).map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.is_empty() && name.chars().all(|c| c.is_lowercase() || c == '_' || c.is_numeric())
        })
    };
    let rooms = Rooms::read();
    let decides =
        rooms.0.iter().filter(|(name, _)| (3..=12).contains(&room(name).1) && !name.starts_with("admin/"));
    let open =
        decides.map(|(name, file)| (name.as_str(), file.text.lines().filter(|line| is_open(line)).count()));
    none(&compare(
        open.filter(|(_, fields)| *fields > 0).collect(),
        OPEN_FIELDS.into(),
        "fields of a room are private: \
        write a method that says what is asked",
    ));
}
