//! Which note belongs to the disabling of an item or a server, and which instance ends a disabling? Decides nothing else.

use std::net::Ipv4Addr;

use jiff::Timestamp;

use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::{NoteView, ServerStatus};
use crate::extension::path::Noted;
use crate::job::{InstanceId, Item};

/// The note of a disabled item. `None`: it has none, or the item is not disabled.
pub fn of_item<'a>(view: &JobView, fleet: &'a FleetView, item: Item) -> Option<&'a NoteView> {
    let disabled_in = view.item(item)?.disabled_in?;
    fleet.note(Noted::Item(item)).filter(|note| note.is_about(disabled_in))
}

/// The note of a disabled server. `None`: it has none, or the server is not disabled.
pub fn of_server<'a>(view: &JobView, fleet: &'a FleetView, server: Ipv4Addr) -> Option<&'a NoteView> {
    let is_disabled = view.server(server) == Some(ServerStatus::Disabled);
    let disabled_in = view.server_changed(server).filter(|_| is_disabled)?;
    fleet.note(Noted::Server(server)).filter(|note| note.is_about(disabled_in))
}

/// The disablings that end by themselves: each with its note and its end.
pub fn ends<'a>(
    view: &'a JobView,
    fleet: &'a FleetView,
) -> impl Iterator<Item = (Noted, &'a NoteView, Timestamp)> {
    fleet.notes().filter_map(|(about, note)| {
        let until = note.note.until?;
        let valid = match about {
            Noted::Item(item) => of_item(view, fleet, item),
            Noted::Server(server) => of_server(view, fleet, server),
        };
        valid.map(|note| (about, note, until))
    })
}

/// The instance that ends disablings when their time has come: the leader, or the first instance of a sidecar if that is not a sidecar's.
/// A job whose servers are all disabled has no leader. `None`: no sidecar has an instance online.
pub fn keeper<'a>(view: &'a JobView, fleet: &'a FleetView) -> Option<&'a InstanceId> {
    let is_there = |id: &&InstanceId| !id.is_java() && view.instances().contains_key(*id);
    let leader = view.leader().map(|leader| &leader.instance).filter(is_there);
    leader.or_else(|| fleet.members().map(|(id, _)| id).find(is_there))
}
