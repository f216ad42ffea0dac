//! The profile of an instance, for the other sidecars.

use std::collections::BTreeSet;

/// The weight of an instance that sets none.
pub const WEIGHT_DEFAULT: u32 = 1;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000;

/// The most labels of an instance.
pub const LABELS_MAX: usize = 32;

/// The line for the rule that gives seats to members by rank.
const RENDEZVOUS: &str = "rendezvous";

/// The line for the witnesses of missed fires.
const WITNESSES: &str = "witnesses";

/// The line for the cancels of whole fleets.
const CANCELS: &str = "cancels";

/// The line for the triggers of single items.
const TRIGGERS: &str = "triggers";

/// The profile that an instance publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The instance's share of items in proportion to others, 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// The labels that items may require.
    pub labels: BTreeSet<String>,
    /// Whether its sidecar allocates items by rank when it leads. A sidecar without this line applies the
    /// former rule.
    pub rendezvous: bool,
    /// Whether it reads the witnesses of missed fires in the ledger. A sidecar without this line knows only flags.
    pub witnesses: bool,
    /// Whether it obeys the cancels of whole fleets. A sidecar without this line is of an earlier version.
    pub cancels: bool,
    /// Whether it executes items for their triggers. A sidecar without this line is of an earlier version.
    pub triggers: bool,
    /// Whether the instance is about to leave and hands its items over.
    pub leaving: bool,
    /// Whether the instance is detached: it keeps its items and gets no others.
    pub detached: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            weight: WEIGHT_DEFAULT,
            labels: BTreeSet::new(),
            rendezvous: true,
            witnesses: true,
            cancels: true,
            triggers: true,
            leaving: false,
            detached: false,
        }
    }
}

impl Profile {
    /// Reads the node.
    pub fn read(data: &[u8]) -> Self {
        let (rendezvous, witnesses, cancels, triggers) = (false, false, false, false);
        let mut profile = Self { rendezvous, witnesses, cancels, triggers, ..Self::default() };
        for line in String::from_utf8_lossy(data).lines() {
            match line.split_once(' ') {
                None if line == "leaving" => profile.leaving = true,
                None if line == "away" => profile.detached = true,
                Some(("weight", weight)) => {
                    let weight = weight.parse().unwrap_or(WEIGHT_DEFAULT);
                    profile.weight = weight.clamp(1, WEIGHT_MAX);
                }
                Some(("rule", RENDEZVOUS)) => profile.rendezvous = true,
                Some(("reads", WITNESSES)) => profile.witnesses = true,
                Some(("reads", CANCELS)) => profile.cancels = true,
                Some(("reads", TRIGGERS)) => profile.triggers = true,
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
        let witnesses = self.witnesses.then(|| format!("reads {WITNESSES}\n"));
        let cancels = self.cancels.then(|| format!("reads {CANCELS}\n"));
        let triggers = self.triggers.then(|| format!("reads {TRIGGERS}\n"));
        let leaving = self.leaving.then(|| "leaving\n".to_owned());
        let detached = self.detached.then(|| "away\n".to_owned());
        std::iter::once(format!("weight {}\n", self.weight))
            .chain(labels)
            .chain(rule)
            .chain(witnesses)
            .chain(cancels)
            .chain(triggers)
            .chain(leaving)
            .chain(detached)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_as_they_were_written_and_nonsense_is_skipped() {
        let labels = ["a", "zone b"].map(str::to_owned).into();
        let profile = Profile { weight: 7, labels, leaving: true, detached: true, ..Profile::default() };
        assert_eq!(Profile::read(profile.write().as_bytes()), profile);
        let (rendezvous, witnesses, cancels, triggers) = (false, false, false, false);
        let earlier = Profile { rendezvous, witnesses, cancels, triggers, ..profile };
        assert_eq!(Profile::read(earlier.write().as_bytes()), earlier);
        assert!(!Profile::read(b"rule another\n").rendezvous);
        assert_eq!(Profile::read(b"weight 0\nweight\n\xff\xff x\nnews 5\n").weight, 1);
        assert_eq!(
            Profile::read(
                b"weight 4294967296\nrule rendezvous\nreads witnesses\nreads cancels\nreads triggers"
            ),
            Profile::default()
        );
        let many: String = (0..100).map(|label| format!("label {label}\n")).collect();
        assert_eq!(Profile::read(many.as_bytes()).labels.len(), LABELS_MAX);
    }
}
