//! The tokens that a sidecar accepts, each with what its callers may do, and the form of `token_file`. Pure.
//!
//! A set keeps the SHA-256 of each token, and not the token.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::config::{Names, Rights, Roles, Secret};

/// The most characters of a token's name.
const NAME_CHARS_MAX: usize = 64;
/// The most tokens: each call is compared with all of them.
const TOKENS_MAX: usize = 1_000;

type Hash = [u8; 32];

/// A token of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// Its name in the log. `None`: it is the only one, and has none.
    pub(super) name: Option<Arc<str>>,
    /// The most that its callers may do.
    pub(super) rights: Rights,
    hash: Hash,
}

/// The tokens that a sidecar accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet {
    tokens: Vec<Token>,
}

impl TokenSet {
    /// The set of this one token.
    pub fn of(token: &Secret) -> Self {
        Self {
            tokens: vec![Token { name: None, rights: Rights::ALL, hash: hash(token.reveal().as_bytes()) }],
        }
    }

    /// Reads the text of a file: one token, or lines of `NAME:ROLES:sha256=HASH[:jobs=PATTERNS]`, and comments that begin with `#`. The
    /// error names the line, and does not repeat it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<_> = (1_usize..)
            .zip(text.lines().map(str::trim))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .collect();
        if let [(_, token)] = lines.as_slice()
            && !token.contains(':')
        {
            return Secret::token(token).map(|token| Self::of(&token));
        }
        if lines.is_empty() || lines.len() > TOKENS_MAX {
            return Err(format!("it has {} tokens; allowed: 1 to {TOKENS_MAX}", lines.len()));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in lines {
            let token = parse_line(line).map_err(|reason| format!("line {number}: {reason}"))?;
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(format!("line {number}: an earlier line has the same name"));
            }
            tokens.push(token);
        }
        Ok(Self { tokens })
    }

    /// The token with this text. Its time does not depend on which one it is, or how much of it is right.
    pub(super) fn find(&self, given: &[u8]) -> Option<&Token> {
        let given = hash(given);
        self.tokens
            .iter()
            .fold(None, |found, token| if same(&given, &token.hash) { Some(token) } else { found })
    }
}

fn parse_line(line: &str) -> Result<Token, String> {
    const ALLOWED: &str =
        "allowed: `NAME:ROLES:sha256=HASH`, also with `:jobs=PATTERNS`, or one line with nothing but a token";
    let mut fields = line.split(':').map(str::trim);
    let (Some(name), Some(roles), Some(hash), names, None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(format!("it has not three or four fields; {ALLOWED}"));
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(is_name) {
        return Err(format!(
            "the name is not 1 to {NAME_CHARS_MAX} letters, digits, `_`, `.` and `-`; {ALLOWED}"
        ));
    }
    let roles = Roles::parse(roles).ok_or_else(|| {
        format!("the roles are not `attach`, `view` or `operate`, joined by `+`; {ALLOWED}")
    })?;
    let hash = hash.strip_prefix("sha256=").and_then(parse_hash).ok_or_else(|| {
        format!("the hash is not the 64 hexadecimal digits of a SHA-256 (`printf %s TOKEN | sha256sum`); {ALLOWED}")
    })?;
    let names = names.map_or(Ok(Names::ALL), |names| {
        let names = names.strip_prefix("jobs=").and_then(|names| Names::parse(names).ok());
        names.ok_or_else(|| format!("the fourth field is not `jobs=` and patterns of names; {ALLOWED}"))
    })?;
    Ok(Token { name: Some(name.into()), rights: Rights { roles, names }, hash })
}

fn parse_hash(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    hex::decode_to_slice(text, &mut hash).ok()?;
    Some(hash)
}

fn hash(text: &[u8]) -> Hash {
    Sha256::digest(text).into()
}

/// Whether two hashes are equal. The time does not depend on the place of a difference.
fn same(given: &Hash, expected: &Hash) -> bool {
    given.iter().zip(expected).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf %s abc | sha256sum`
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_file_has_one_token_or_named_ones_by_their_hashes() {
        let one = TokenSet::parse("# of the team\n\n abc \n").unwrap();
        let token = one.find(b"abc").unwrap();
        assert_eq!((token.name.clone(), token.rights.clone()), (None, Rights::ALL));
        let upper = ABC.to_uppercase();
        let named =
            TokenSet::parse(&format!("ops:operate:sha256={ABC}\napp : attach : sha256={upper}\n")).unwrap();
        assert_eq!(named.tokens.len(), 2);
        let other = TokenSet::parse(&format!("app:attach:sha256={ABC}")).unwrap();
        let found = other.find(b"abc").unwrap();
        let attach = Roles::parse("attach").unwrap();
        assert_eq!((found.name.as_deref(), found.rights.clone()), (Some("app"), attach.into()));
        let limited = TokenSet::parse(&format!("app:attach:sha256={ABC}:jobs=team-*+/team/*")).unwrap();
        let names = &limited.find(b"abc").unwrap().rights.names;
        assert!(names.include("team-a") && names.include("/team/a") && !names.include("a"));
    }

    #[test]
    fn only_the_same_text_is_the_same_token() {
        let set = TokenSet::parse("abc").unwrap();
        assert!(set.find(b"abc").is_some());
        for other in [&b""[..], b"ab", b"abd", b"abcd", b"ABC", ABC.as_bytes()] {
            assert!(set.find(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_and_not_repeated() {
        let good = format!("ops:operate:sha256={ABC}");
        for (wrong, part) in [
            ("secret:view".to_owned(), "line 2: it has not three or four fields"),
            ("secret".to_owned(), "line 2: it has not three or four fields"),
            (format!("secret:admin:sha256={ABC}"), "line 2: the roles"),
            (format!("sec ret:view:sha256={ABC}"), "line 2: the name"),
            (format!("{}:view:sha256={ABC}", "s".repeat(65)), "line 2: the name"),
            ("secret:view:sha256=00".to_owned(), "line 2: the hash"),
            (format!("secret:view:sha256={}", "g".repeat(64)), "line 2: the hash"),
            (format!("secret:view:md5={ABC}"), "line 2: the hash"),
            (format!("ops:view:sha256={ABC}"), "line 2: an earlier line"),
            (format!("secret:view:sha256={ABC}:secret"), "line 2: the fourth field"),
            (format!("secret:view:sha256={ABC}:jobs="), "line 2: the fourth field"),
            (format!("secret:view:sha256={ABC}:jobs=a:secret"), "line 2: it has not three or four fields"),
        ] {
            let reason = TokenSet::parse(&format!("{good}\n{wrong}")).unwrap_err();
            assert!(reason.contains(part) && !reason.contains("secret"), "{wrong}: {reason}");
        }
        assert!(TokenSet::parse("# nothing\n").unwrap_err().contains("0 tokens"));
        assert!(TokenSet::parse("a b").unwrap_err().starts_with("allowed: "));
    }
}
