//! Checks that a client and this sidecar can work together. The client's API level is in its request to
//! attach. Pure.
//!
//! The level is not a release's version: it grows when one of the two needs a feature of the other that older
//! ones do not have. New optional fields and events do not raise it, because older programs ignore them.

use tonic::Status;

use crate::excerpt::Excerpt;
use crate::proto::AttachRequest;
use crate::reason::Reason;

use crate::listen::refusal::with_metadata;

/// This sidecar's level (`AttachRequest.api_level` in the protos).
pub(super) const API_LEVEL: u32 = 2;
/// The lowest level of a client library that this sidecar supports. Add a line to the changelog when you
/// raise it.
const CLIENT_API_LEVEL_MIN: u32 = 1;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Refuses a client library that is too old for this sidecar, or for which this sidecar is too old. A request
/// without a level does not come from a library, and is accepted.
pub(super) fn check(request: &AttachRequest) -> Result<(), Status> {
    let client = if request.client.is_empty() {
        "the client".to_owned()
    } else {
        Excerpt::of(&request.client).into_string()
    };
    if let Some(level) = request.api_level.filter(|level| *level < CLIENT_API_LEVEL_MIN) {
        let text = format!(
            "{client} is too old for this sidecar: it speaks API level {level}, and sidecar {VERSION} needs at least \
             {CLIENT_API_LEVEL_MIN}; upgrade the client library to that of sidecar {VERSION} or newer"
        );
        return Err(refusal(Reason::ClientTooOld, text, request));
    }
    let needed = request.sidecar_api_level_min;
    if needed > API_LEVEL {
        let text = format!(
            "sidecar {VERSION} is too old for {client}: it speaks API level {API_LEVEL}, and the client needs at least \
             {needed}; upgrade the sidecar to the release of the client or newer"
        );
        return Err(refusal(Reason::SidecarTooOld, text, request));
    }
    Ok(())
}

fn refusal(reason: Reason, text: String, request: &AttachRequest) -> Status {
    let level = request.api_level.map(|level| level.to_string()).unwrap_or_default();
    let metadata = [
        ("client", Excerpt::of(&request.client).into_string()),
        ("client_api_level", level),
        ("client_api_level_min", CLIENT_API_LEVEL_MIN.to_string()),
        ("sidecar_version", VERSION.to_owned()),
        ("sidecar_api_level", API_LEVEL.to_string()),
        ("sidecar_api_level_min", request.sidecar_api_level_min.to_string()),
    ];
    with_metadata(reason, text, metadata.map(|(key, value)| (key.to_owned(), value)))
}
