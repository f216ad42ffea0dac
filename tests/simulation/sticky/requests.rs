//! The answers to the requests of a candidate, for the worlds that it is simulated in.

use sidekeeper::coordination::sticky::contract::{Effect, Input};
use sidekeeper::tree::Error;

/// The answer to a request. `None`: it has none.
pub fn answer(effect: &Effect, result: Result<(), Error>) -> Option<Input> {
    match effect {
        Effect::Commit(number, _) => Some(Input::Committed(*number, result)),
        Effect::CreateParents => Some(Input::ParentsCreated(result)),
        Effect::Notify(_) | Effect::Answer(..) | Effect::GiveUpSession => None,
    }
}
