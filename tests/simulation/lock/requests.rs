//! The answers to the requests of a contender, for the worlds that it is simulated in.

use sidekeeper::coordination::lock::contract::{Effect, Input};
use sidekeeper::tree::Error;

/// The answer to a request that has failed. `None`: it has none.
pub fn failed(effect: &Effect, error: &Error) -> Option<Input> {
    let error = error.clone();
    Some(match effect.clone() {
        Effect::Create(attempt, _) => Input::Created(attempt, Err(error)),
        Effect::CreateParents => Input::ParentsCreated(Err(error)),
        Effect::CreateDelay(path) => Input::DelayCreated(path, Err(error)),
        Effect::List(look) => Input::Listed(look, Err(error)),
        Effect::Find(attempt, path) => Input::Found(attempt, path, Err(error)),
        Effect::ReadFirst(name) => Input::FirstRead(name, None),
        Effect::Delete(path) => Input::Deleted(path, Err(error)),
        Effect::WatchOwn(_)
        | Effect::WatchBefore(_)
        | Effect::WatchQueue(_)
        | Effect::Notify(_)
        | Effect::GiveUpSession => return None,
    })
}
