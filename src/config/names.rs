//! Which jobs, locks and elections callers may use: patterns of names, and their form in settings. Pure.
//!
//! A pattern is a name in which `*` stands for any characters. One that begins with `/` is for locks and elections that are named by
//! their paths; the others are for names. Only `*` alone is for both.

use std::sync::Arc;

/// The text that may stand for anything.
const WILDCARD: char = '*';
/// Joins patterns.
const JOIN: char = '+';
/// The most bytes of a pattern: longer than the longest name.
const PATTERN_BYTES_MAX: usize = 300;

/// The names that callers may use. Several limits may be in force; each can only take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// A name has to fit one pattern of each limit.
    limits: Vec<Arc<[String]>>,
}

impl Names {
    /// All names.
    pub const ALL: Self = Self { limits: Vec::new() };

    /// Reads patterns, joined by `+`. The error names the mistake and the allowed form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let patterns: Vec<_> = text.split(JOIN).map(str::to_owned).collect();
        let wrong = patterns.iter().find(|pattern| {
            pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX || pattern.chars().any(char::is_control)
        });
        match wrong {
            Some(pattern) => Err(format!(
                "`{pattern}` is no pattern of names; allowed: 1 to {PATTERN_BYTES_MAX} bytes, in which `*` stands for any characters, \
                 like `billing-*`; several are joined by `+`"
            )),
            None => Ok(Self::of(patterns)),
        }
    }

    /// The names that fit one of these patterns.
    fn of(patterns: Vec<String>) -> Self {
        let are_all = patterns.iter().any(|pattern| *pattern == WILDCARD.to_string());
        Self { limits: if are_all { Vec::new() } else { vec![patterns.into()] } }
    }

    /// The names that are in one of these.
    pub(super) fn any_of(several: &[Self]) -> Self {
        if several.iter().any(Self::are_all) {
            return Self::ALL;
        }
        let patterns = several.iter().flat_map(|names| &names.limits).flat_map(|limit| limit.iter().cloned());
        Self::of(patterns.collect())
    }

    /// The names that are in both.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.limits.extend(other.limits.iter().cloned());
        self
    }

    /// Whether all names are among them.
    pub fn are_all(&self) -> bool {
        self.limits.is_empty()
    }

    /// Whether this name or path is among them.
    pub fn include(&self, name: &str) -> bool {
        self.limits.iter().all(|limit| limit.iter().any(|pattern| fits(pattern, name)))
    }
}

/// Whether a name or a path fits a pattern.
fn fits(pattern: &str, name: &str) -> bool {
    if pattern.starts_with('/') != name.starts_with('/') {
        return false;
    }
    let mut parts = pattern.split(WILDCARD);
    let Some(rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    // The first place is the best one: it leaves the most for the parts behind it.
    parts.all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        Names::parse(text).unwrap()
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, fit, others) in [
            ("bill", vec!["bill"], vec!["", "bil", "bills", "abill", "Bill"]),
            ("bill*", vec!["bill", "billing"], vec!["bil", "a-bill"]),
            ("*bill", vec!["bill", "a-bill"], vec!["billing", "/a/bill"]),
            ("a*a", vec!["aa", "aba"], vec!["a", "ab"]),
            ("a*b*c", vec!["abc", "a-b-c", "abbc", "abcbc"], vec!["ac", "acb", "bac"]),
            ("a**c", vec!["ac", "abc"], vec!["a"]),
            ("ab*bc", vec!["abbc"], vec!["abc"]),
            ("/team/*", vec!["/team/", "/team/x/y"], vec!["team/x", "/team", "/teams/x"]),
            ("/*", vec!["/a"], vec!["a"]),
            ("a+/b", vec!["a", "/b"], vec!["b", "/a"]),
            ("*", vec!["a", "/a", ""], vec![]),
            ("a+*", vec!["b", "/b"], vec![]),
        ] {
            let names = names(pattern);
            for name in fit {
                assert!(names.include(name), "{pattern} {name:?}");
            }
            for name in others {
                assert!(!names.include(name), "{pattern} {name:?}");
            }
        }
        for wrong in ["", "+", "a+", "a\nb", &"a".repeat(301)] {
            assert!(Names::parse(wrong).unwrap_err().contains("is no pattern of names"), "{wrong:?}");
        }
    }

    #[test]
    fn each_limit_can_only_take_away() {
        let both = names("a*").and(&names("*z+ab"));
        for (name, is_in) in [("az", true), ("ab", true), ("abc", false), ("z", false), ("a", false)] {
            assert_eq!(both.include(name), is_in, "{name}");
        }
        assert!(!both.are_all());
        assert!(names("*").are_all() && Names::ALL.and(&names("*")).are_all());
        assert_eq!(Names::ALL.and(&names("a")), names("a"));
    }

    #[test]
    fn a_list_has_the_names_of_all_its_entries() {
        let list = Names::any_of(&[names("a"), names("b*+/c")]);
        for (name, is_in) in [("a", true), ("bb", true), ("/c", true), ("c", false)] {
            assert_eq!(list.include(name), is_in, "{name}");
        }
        assert!(Names::any_of(&[names("a"), Names::ALL]).are_all());
    }
}
