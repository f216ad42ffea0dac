//! The quotas that operators set for nodes. Servers with `enforceQuota` refuse what goes beyond the hard limits.
//!
//! A quota is a node of ZooKeeper's own, outside of every chroot: its limits in `zookeeper_limits`, and what is used in
//! `zookeeper_stats`, which the servers keep up to date.

use zookeeper_client as zk;

use super::convert::{self, from_the_top};
use crate::registry::Error;
use crate::tree::{Path, Quota};

/// The nodes of quotas are below.
const QUOTAS: &str = "/zookeeper/quota";

/// The quotas of a node and of the nodes above it. `client` has the chroot as its root.
pub(super) async fn of(client: &zk::Client, chroot: &Path, path: &Path) -> Result<Vec<Quota>, Error> {
    let client = client.clone().chroot("/").map_err(|_| Error::Refused("the root is refused".to_owned()))?;
    let above = if chroot.is_root() { Vec::new() } else { from_the_top(chroot) };
    let above = above.iter().map(Path::to_string);
    let below = from_the_top(path);
    let below =
        below.iter().map(|node| if chroot.is_root() { node.to_string() } else { format!("{chroot}{node}") });
    let mut found = Vec::new();
    for node in above.chain(below) {
        let Some(limits) = read(&client, &format!("{QUOTAS}{node}/zookeeper_limits"), path).await? else {
            continue;
        };
        let Some(used) = read(&client, &format!("{QUOTAS}{node}/zookeeper_stats"), path).await? else {
            continue;
        };
        found.extend(quotas(&node, &limits, &used));
    }
    Ok(found)
}

/// The text of a node; `None`: there is no such node.
async fn read(client: &zk::Client, node: &str, of: &Path) -> Result<Option<String>, Error> {
    match client.get_data(node).await {
        Ok((data, _)) => Ok(Some(String::from_utf8_lossy(&data).into_owned())),
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(convert::error(error, of)),
    }
}

/// The hard limits in the texts of the two nodes.
fn quotas(node: &str, limits: &str, used: &str) -> Vec<Quota> {
    let kinds = [("countHardLimit", "count", false), ("byteHardLimit", "bytes", true)];
    let quota = |(limit, name, is_of_bytes)| {
        let (limit, used) = (number(limits, limit)?, number(used, name)?);
        Some(Quota { path: node.to_owned(), is_of_bytes, used, limit })
    };
    kinds.into_iter().filter_map(quota).collect()
}

/// A number of a text such as `count=7,bytes=90=;byteHardLimit=-1;countHardLimit=10`. `None`: there is none, or -1.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut parts = text.split([',', ';']).map(|part| part.trim().split('='));
    parts.find_map(|mut part| (part.next() == Some(name)).then(|| part.next()?.trim().parse().ok()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_limits_are_read_and_others_are_not() {
        let quota = |is_of_bytes, used, limit| Quota { path: "/a".to_owned(), is_of_bytes, used, limit };
        let both = "count=-1,bytes=-1=;byteHardLimit=900;countHardLimit=10";
        assert_eq!(quotas("/a", both, "count=7,bytes=90"), [quota(false, 7, 10), quota(true, 90, 900)]);
        // As an operator writes it by hand.
        let by_hand = "count=-1,bytes=-1,byteHardLimit=-1;countHardLimit=10";
        assert_eq!(quotas("/a", by_hand, "count=100,bytes=10000"), [quota(false, 100, 10)]);
        for (limits, used) in [
            ("count=5,bytes=-1", "count=7,bytes=90"),
            ("countHardLimit=10", ""),
            ("countHardLimit=x", "count=7"),
            ("", ""),
        ] {
            assert_eq!(quotas("/a", limits, used), [], "{limits}");
        }
        assert_eq!(quotas("/a", "countHardLimit=0", "count=1")[0].percent(), 100);
    }
}
