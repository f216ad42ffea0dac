//! The content of a name's node: the instance that has the name, and its profile. The node outlives the instance.

use crate::extension::profile::Profile;
use crate::job::InstanceId;

/// The record of a named instance. It outlives the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// The instance that has the name, or had it last.
    pub instance: InstanceId,
    /// The instance's profile.
    pub profile: Profile,
    /// The version of the node.
    pub version: i32,
}

impl NameRecord {
    /// Reads the node.
    pub fn read(data: &[u8], version: i32) -> Self {
        let text = String::from_utf8_lossy(data);
        let instance = text.lines().find_map(|line| line.strip_prefix("instance ")).unwrap_or_default();
        Self { instance: InstanceId::from_registry(instance), profile: Profile::read(data), version }
    }

    /// The node's content.
    pub fn write(instance: &InstanceId, profile: &Profile) -> String {
        format!("instance {instance}\n{}", profile.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written_and_nonsense_names_no_instance() {
        let profile = Profile { weight: 7, labels: ["gpu".to_owned()].into(), ..Profile::default() };
        let instance = InstanceId::from_registry("10.0.0.1@-@worker-0");
        let text = NameRecord::write(&instance, &profile);
        assert_eq!(
            text,
            "instance 10.0.0.1@-@worker-0\nweight 7\nlabel gpu\nrule rendezvous\nreads witnesses\nreads cancels\nreads triggers\n"
        );
        assert_eq!(NameRecord::read(text.as_bytes(), 3), NameRecord { instance, profile, version: 3 });
        assert_eq!(NameRecord::read(b"\xff\ninstance", 0).instance, InstanceId::from_registry(""));
    }
}
