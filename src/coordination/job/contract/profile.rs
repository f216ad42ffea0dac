//! The profile of an instance, for the other sidecars.

use std::collections::BTreeSet;

/// The weight of an instance that does not say anything else.
pub const WEIGHT_DEFAULT: u32 = 1;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000;

/// Labels that an instance may have.
pub const LABELS_MAX: usize = 32;

/// How a profile names the rule by which items go to members by rank.
const RENDEZVOUS: &str = "rendezvous";

/// What an instance says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// How many items it wants in proportion to others, 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// What items may ask for.
    pub labels: BTreeSet<String>,
    /// Whether its sidecar divides items by rank when it leads. One that does not say so divides by the former rule.
    pub rendezvous: bool,
    /// Whether it is about to leave, and wants to be rid of its items.
    pub leaving: bool,
    /// Whether its application has no stream at the moment: it keeps its items, and wants no more.
    pub away: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            weight: WEIGHT_DEFAULT,
            labels: BTreeSet::new(),
            rendezvous: true,
            leaving: false,
            away: false,
        }
    }
}

impl Profile {
    pub(in crate::coordination) fn read(data: &[u8]) -> Self {
        let mut profile = Self { rendezvous: false, ..Self::default() };
        for line in String::from_utf8_lossy(data).lines() {
            match line.split_once(' ') {
                None if line == "leaving" => profile.leaving = true,
                None if line == "away" => profile.away = true,
                Some(("weight", weight)) => {
                    let weight = weight.parse().unwrap_or(WEIGHT_DEFAULT);
                    profile.weight = weight.clamp(1, WEIGHT_MAX);
                }
                Some(("rule", RENDEZVOUS)) => profile.rendezvous = true,
                Some(("label", label)) if profile.labels.len() < LABELS_MAX => {
                    profile.labels.insert(label.to_owned());
                }
                Some(_) | None => {}
            }
        }
        profile
    }

    /// The node's content.
    pub fn write(&self) -> String {
        let labels = self.labels.iter().map(|label| format!("label {label}\n"));
        let rule = self.rendezvous.then(|| format!("rule {RENDEZVOUS}\n"));
        let leaving = self.leaving.then(|| "leaving\n".to_owned());
        let away = self.away.then(|| "away\n".to_owned());
        std::iter::once(format!("weight {}\n", self.weight))
            .chain(labels)
            .chain(rule)
            .chain(leaving)
            .chain(away)
            .collect()
    }
}
