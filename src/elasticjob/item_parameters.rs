//! The parameters of items, `0=Beijing,1=Shanghai`, parsed as Java parses them. Pure.
//!
//! Source: protocol 6.3. Java throws at each fire when the text is malformed, so malformed text must be
//! refused before it reaches the registry.

use std::collections::BTreeMap;

use crate::elasticjob::java;
use crate::excerpt::Excerpt;
use crate::job::Item;

/// Why a text is not a list of item parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("part {position}, `{part}`, {reason}; allowed: {}", ItemParametersError::ALLOWED)]
pub struct ItemParametersError {
    /// The number of the part, from 1.
    pub position: usize,
    /// The part as written, shortened.
    pub part: String,
    /// The rule that the part breaks.
    pub reason: &'static str,
}

impl ItemParametersError {
    /// The allowed texts, for error texts that name the error themselves.
    pub const ALLOWED: &str =
        "pairs `item=value` joined by `,`, where a value is not empty and has neither `,` nor `=`";
}

/// Reads the parameters by item. Numbers may be negative or beyond the items; such parameters are never used.
///
/// Of several parameters for one item the last counts. Java also accepts digits beyond ASCII; this does not.
pub fn parse(text: &str) -> Result<BTreeMap<i32, String>, ItemParametersError> {
    let mut parameters = BTreeMap::new();
    if text.is_empty() {
        return Ok(parameters);
    }
    for (part, position) in java::split(text, ',').into_iter().zip(1..) {
        let error = |reason| ItemParametersError { position, part: Excerpt::of(part).into_string(), reason };
        let pair = java::split(java::trim(part), '=');
        let [item, value] = pair.as_slice() else {
            return Err(error("is not one item and one value"));
        };
        let item = java::trim(item).parse().map_err(|_| error("does not begin with a 32-bit integer"))?;
        parameters.insert(item, java::trim(value).to_owned());
    }
    Ok(parameters)
}

/// The parameter of this item.
pub fn of_item(parameters: &BTreeMap<i32, String>, item: Item) -> Option<&str> {
    parameters.get(&i32::try_from(item.0).ok()?).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(i32, String)> {
        parse(text).unwrap().into_iter().collect()
    }

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn reads_pairs_with_white_space_and_signs() {
        assert_eq!(parsed(" 0 = a b ,\t+1=c,-1=d,"), [(-1, "d".into()), (0, "a b".into()), (1, "c".into())]);
        assert_eq!(parsed(","), []);
        assert_eq!(parsed("0=a,0=b"), [(0, "b".into())]);
    }

    #[test]
    fn drops_trailing_equal_signs_as_java_does() {
        assert_eq!(parsed("0=a="), [(0, "a".into())]);
        assert_eq!(parsed("0=a=="), [(0, "a".into())]);
        assert_eq!(parsed("0= ="), [(0, String::new())]);
    }

    #[test]
    fn names_the_part_that_is_wrong() {
        for (text, part) in [
            ("0=a,,1=b", "part 2, ``,"),
            ("0=", "part 1, `0=`,"),
            ("0=a=b", "part 1, `0=a=b`,"),
            (" ", "part 1, ` `,"),
            ("0=a,x=b", "part 2, `x=b`,"),
            ("=a", "part 1, `=a`,"),
            ("2147483648=a", "part 1, `2147483648=a`,"),
            ("1.0=a", "part 1, `1.0=a`,"),
        ] {
            assert!(refused(text).starts_with(part), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn finds_the_parameter_of_an_item() {
        let parameters = parse("0=a,2=c").unwrap();
        assert_eq!(of_item(&parameters, Item(2)), Some("c"));
        assert_eq!(of_item(&parameters, Item(1)), None);
        assert_eq!(of_item(&parameters, Item(u32::MAX)), None);
    }
}
