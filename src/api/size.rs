//! The size of the messages that the API sends. Decides which parts of a state are left out when it exceeds
//! the limit. The size of a configuration bounds all other messages.

use prost::Message as _;

use crate::findings::problem::ProblemCode;
use crate::proto::{Problem, WatchAssignmentsResponse};

/// The largest message that is sent, in bytes: half of the default limit of gRPC libraries.
const SENT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Leaves out parts of a state until it is small enough. A problem in the state names these parts.
pub(super) fn fit(state: &mut WatchAssignmentsResponse) {
    if is_small(state) {
        return;
    }
    let mut left_out = vec!["the items' parameters"];
    for item in &mut state.items {
        item.item_parameter = None;
    }
    if !is_small(state)
        && let Some(configuration) = &mut state.configuration
    {
        left_out.push("the long texts of the configuration");
        configuration.sharding_item_parameters.clear();
        configuration.job_parameter.clear();
        configuration.description.clear();
        configuration.props.clear();
    }
    let (mut items, mut instances) = (0, 0);
    if !is_small(state) {
        // The other parts of a configuration and the problems are small.
        items = keep(&mut state.items, SENT_BYTES_MAX / 4);
        instances = keep(&mut state.instances, SENT_BYTES_MAX / 4);
    }
    let mut message =
        format!("the state is too large for a message; left out are {}", left_out.join(" and "));
    if items + instances > 0 {
        message.push_str(&format!(", {items} items and {instances} instances"));
    }
    message.push_str("; delete nodes that are not needed");
    let code = ProblemCode::StateTooLarge.as_str().to_owned();
    state.problems.push(Problem { path: String::new(), message, code });
}

/// Whether the state and the problem about its omitted parts fit into the limit.
fn is_small(state: &WatchAssignmentsResponse) -> bool {
    state.encoded_len() <= SENT_BYTES_MAX - 1_024
}

/// Keeps the first messages that fit into this number of bytes. Returns the number of the others.
fn keep<M: prost::Message>(messages: &mut Vec<M>, bytes: usize) -> usize {
    /// The most bytes of a list element's tag and length.
    const FRAME: usize = 12;
    let mut sum = 0;
    let fits = messages.iter().take_while(|message| {
        sum += message.encoded_len() + FRAME;
        sum <= bytes
    });
    let fits = fits.count();
    let beyond = messages.len() - fits;
    messages.truncate(fits);
    beyond
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{InstanceStatus, ItemStatus, JobConfiguration};

    fn state(items: u32, text: usize) -> WatchAssignmentsResponse {
        let item = |item| ItemStatus {
            item,
            item_parameter: Some("p".repeat(text)),
            instance_id: "10.0.0.1@-@an-instance-with-a-name".to_owned(),
            ..ItemStatus::default()
        };
        let configuration =
            JobConfiguration { job_parameter: "j".repeat(text), ..JobConfiguration::default() };
        WatchAssignmentsResponse {
            items: (0..items).map(item).collect(),
            configuration: Some(configuration),
            ..WatchAssignmentsResponse::default()
        }
    }

    #[test]
    fn the_largest_job_is_sent_complete() {
        let mut largest = state(10_000, 50);
        let before = largest.clone();
        fit(&mut largest);
        assert_eq!(largest, before);
    }

    #[test]
    fn a_too_large_state_first_loses_the_parts_that_can_be_read_elsewhere() {
        let mut state = state(10_000, 500);
        fit(&mut state);
        assert!(state.encoded_len() <= SENT_BYTES_MAX);
        assert_eq!(state.items.len(), 10_000);
        assert!(!state.configuration.unwrap().job_parameter.is_empty());
        assert!(state.problems[0].message.contains("parameters; delete"), "{:?}", state.problems);
        assert_eq!(state.problems[0].code, "STATE_TOO_LARGE");
    }

    #[test]
    fn a_folder_full_of_instances_is_cut() {
        let mut state = state(100_000, 2_000_000 / 100_000);
        let id = "x".repeat(100_000);
        state.instances = vec![InstanceStatus { instance_id: id, ..InstanceStatus::default() }; 30];
        fit(&mut state);
        assert!(state.encoded_len() <= SENT_BYTES_MAX);
        assert_eq!((state.instances.len(), state.items.is_empty()), (5, false));
        assert!(state.problems[0].message.contains("25 instances"), "{:?}", state.problems);
    }
}
