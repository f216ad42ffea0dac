//! Which note belongs to the disabling of an item or a server? Decides nothing else.

use std::net::Ipv4Addr;

use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::{NoteView, ServerStatus};
use crate::extension::path::Noted;
use crate::job::Item;

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
