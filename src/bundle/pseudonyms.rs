//! The words in place of addresses and names: the same one everywhere in a bundle. Pure.
//!
//! A name is learnt where a field has it alone. Texts are searched for all names that were learnt, and for addresses and instance ids, which
//! are known by their form. So the texts of a bundle come after the fields that have the names.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Between the address and the rest of an instance id.
const ID_SEPARATOR: &str = "@-@";

/// The kinds of names. The pseudonyms begin with these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An address.
    Address,
    /// A name of a machine.
    Host,
    /// The namespace.
    Namespace,
    /// A job.
    Job,
    /// The part of an instance id after the address, which is the instance's name if it has one.
    Instance,
    /// A lock or an election.
    Lock,
    /// A Java class, or the type of a job.
    Class,
    /// A user, a certificate or a token.
    Caller,
    /// Another program that waits for a lock, or holds it.
    Contender,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Address => "ip",
            Self::Host => "host",
            Self::Namespace => "namespace",
            Self::Job => "job",
            Self::Instance => "instance",
            Self::Lock => "lock",
            Self::Class => "class",
            Self::Caller => "caller",
            Self::Contender => "contender",
        }
    }
}

/// The pseudonyms of one bundle.
#[derive(Debug, Default)]
pub struct Pseudonyms {
    by_name: BTreeMap<String, String>,
    counts: BTreeMap<Kind, u32>,
    /// The names by their beginnings, the longest first, to find them in texts.
    starts: BTreeMap<String, Vec<String>>,
}

impl Pseudonyms {
    /// The pseudonym of a name, which is learnt. An empty name stays empty.
    pub fn name(&mut self, kind: Kind, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        if let Some(known) = self.by_name.get(name) {
            return known.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count = count.saturating_add(1);
        let pseudonym = format!("{}{count}", kind.word());
        self.by_name.insert(name.to_owned(), pseudonym.clone());
        let same_start = self.starts.entry(start(name).to_owned()).or_default();
        same_start.push(name.to_owned());
        same_start.sort_by_key(|name| std::cmp::Reverse(name.len()));
        pseudonym
    }

    /// The pseudonym of an instance id. A process id stays: it shows that the instance is Java's.
    pub fn instance(&mut self, id: &str) -> String {
        let Some((server, unique)) = id.split_once(ID_SEPARATOR) else {
            return self.name(Kind::Instance, id);
        };
        let unique = self.unique(unique);
        format!("{}{ID_SEPARATOR}{unique}", self.address(server))
    }

    fn unique(&mut self, unique: &str) -> String {
        if unique.bytes().all(|byte| byte.is_ascii_digit()) {
            return unique.to_owned();
        }
        self.name(Kind::Instance, unique)
    }

    /// The pseudonym of an address, or of the name of a machine.
    pub fn address(&mut self, text: &str) -> String {
        let is_address = text.parse::<Ipv4Addr>().is_ok() || text.parse::<Ipv6Addr>().is_ok();
        self.name(if is_address { Kind::Address } else { Kind::Host }, text)
    }

    /// Learns the hosts of `host:port,host:port/chroot`, and returns the text with pseudonyms.
    pub fn servers(&mut self, text: &str) -> String {
        let (servers, chroot) = text.split_at(text.find('/').unwrap_or(text.len()));
        let servers: Vec<_> = servers
            .split(',')
            .map(|server| {
                let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                match server.trim().rsplit_once(':').filter(|(_, port)| is_port(port)) {
                    Some((host, port)) => {
                        let host = host.trim_start_matches('[').trim_end_matches(']');
                        format!("{}:{port}", self.address(host))
                    }
                    None => self.address(server.trim()),
                }
            })
            .collect();
        let slash = if chroot.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", servers.join(","), self.name(Kind::Namespace, chroot.trim_start_matches('/')))
    }

    /// A text with pseudonyms in place of addresses, instance ids and the names that were learnt.
    pub fn text(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = None;
        while let Some(c) = rest.chars().next() {
            let (length, word) = self.at(rest, before).unwrap_or_else(|| (c.len_utf8(), c.to_string()));
            shown.push_str(&word);
            let (taken, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            before = taken.chars().next_back();
            rest = after;
        }
        shown
    }

    /// The length of the address, the id or the name at the beginning of a text, and its pseudonym. `before`: the character in front of it.
    fn at(&mut self, text: &str, before: Option<char>) -> Option<(usize, String)> {
        let first = text.chars().next()?;
        let is_start = !before.is_some_and(char::is_alphanumeric) || !first.is_alphanumeric();
        if is_start && let Some(name) = self.known(text) {
            return Some((name.len(), self.by_name.get(&name)?.clone()));
        }
        let is_in_number = before.is_some_and(|before| before.is_ascii_digit() || before == '.');
        if first.is_ascii_digit()
            && !is_in_number
            && let Some(found) = self.id_or_address(text)
        {
            return Some(found);
        }
        if is_start && (first.is_ascii_hexdigit() || first == ':') {
            let length = text.bytes().take_while(|byte| byte.is_ascii_hexdigit() || *byte == b':').count();
            let (address, _) = text.split_at_checked(length)?;
            if address.parse::<Ipv6Addr>().is_ok() {
                return Some((length, self.name(Kind::Address, address)));
            }
        }
        None
    }

    /// The longest name at the beginning of a text.
    fn known(&self, text: &str) -> Option<String> {
        let ends = |name: &str| {
            let after = text.get(name.len()..).and_then(|rest| rest.chars().next());
            let last = name.chars().next_back();
            !after.is_some_and(char::is_alphanumeric) || !last.is_some_and(char::is_alphanumeric)
        };
        let names = self.starts.get(start(text))?;
        names.iter().find(|name| text.starts_with(name.as_str()) && ends(name)).cloned()
    }

    fn id_or_address(&mut self, text: &str) -> Option<(usize, String)> {
        let (address, after) = text.split_at_checked(dotted_number(text.as_bytes()))?;
        address.parse::<Ipv4Addr>().ok()?;
        let pseudonym = self.name(Kind::Address, address);
        let Some(unique) = after.strip_prefix(ID_SEPARATOR) else {
            return Some((address.len(), pseudonym));
        };
        let end = unique.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
        let unique = unique.get(..end.unwrap_or(unique.len()))?.trim_end_matches('.');
        let length = address.len().checked_add(ID_SEPARATOR.len())?.checked_add(unique.len())?;
        Some((length, format!("{pseudonym}{ID_SEPARATOR}{}", self.unique(unique))))
    }

    /// Each pseudonym, and the name that it stands for.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_name.iter().map(|(name, pseudonym)| (pseudonym.as_str(), name.as_str()))
    }
}

/// The letters and digits at the beginning of a text, or its first character.
fn start(text: &str) -> &str {
    let word = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    let first = text.chars().next().map_or(0, char::len_utf8);
    text.get(..word.max(first)).unwrap_or(text)
}

/// The length of the digits at the beginning of a text, and of the single dots between them.
fn dotted_number(bytes: &[u8]) -> usize {
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let within =
        |at: &usize| digit_at(*at) || (bytes.get(*at) == Some(&b'.') && digit_at(at.saturating_add(1)));
    (0..bytes.len()).take_while(within).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_pseudonym_in_fields_and_in_texts() {
        let mut names = Pseudonyms::default();
        assert_eq!(names.name(Kind::Job, "order-sync"), "job1");
        assert_eq!(names.name(Kind::Job, "order"), "job2");
        assert_eq!(names.name(Kind::Lock, "order"), "job2", "one name, one pseudonym");
        assert_eq!(names.instance("10.0.0.7@-@worker-a"), "ip1@-@instance1");
        assert_eq!(names.instance("10.0.0.7@-@4711"), "ip1@-@4711");
        assert_eq!(names.instance("odd"), "instance2");
        assert_eq!(
            names.text("`order-sync`, order, reorder orders /orders/order-sync/config: 10.0.0.7@-@worker-a."),
            "`job1`, job2, reorder orders /orders/job1/config: ip1@-@instance1."
        );
        assert_eq!(
            names.text("at 10.0.0.8@-@9-3fa.c. And 10.0.0.80:2181"),
            "at ip2@-@instance3. And ip3:2181"
        );
        assert_eq!(names.text("1.2.3.4.5 256.0.0.1 version 1.2.3"), "1.2.3.4.5 256.0.0.1 version 1.2.3");
        assert_eq!(names.text("fe80::1 [::1]:80 03:12:44Z a::b"), "ip4 [ip5]:80 03:12:44Z ip6");
        assert_eq!(names.text(""), "");
        assert_eq!(names.name(Kind::Job, ""), "");
    }

    #[test]
    fn names_with_odd_characters_are_found() {
        let mut names = Pseudonyms::default();
        for name in ["-x", "\u{e4}\u{1f600}", "a b", "/top/of"] {
            names.name(Kind::Job, name);
        }
        assert_eq!(names.text("-x \u{e4}\u{1f600} a b a  b /top/of/a"), "job1 job2 job3 a  b job4/a");
        assert_eq!(names.text("\u{1f600}\u{e4}"), "\u{1f600}\u{e4}");
    }

    #[test]
    fn the_hosts_of_a_connect_string_are_learnt() {
        let mut names = Pseudonyms::default();
        assert_eq!(
            names.servers("zk1.internal:2181,10.0.0.3:2182,zk3/app"),
            "host1:2181,ip1:2182,host2/namespace1"
        );
        assert_eq!(names.servers("[fe80::1]:2181"), "ip2:2181");
        assert_eq!(names.text("cannot connect with zk1.internal:2181"), "cannot connect with host1:2181");
    }
}
