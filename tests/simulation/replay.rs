//! A seed is a proof: the same one gives the same schedule, to the byte.

use crate::swarm::{Options, replay, schedule};

#[test]
fn the_same_seed_gives_the_same_timeline_byte_for_byte() {
    for seed in 0..100 {
        let options = Options::default();
        let (first, timeline) = replay(seed, &options);
        let (second, again) = replay(seed, &options);
        assert!(!timeline.is_empty());
        assert!(timeline == again, "seed {seed}: two timelines of one seed");
        let [first, second] = [first, second].map(|result| result.map(|summary| summary.steps));
        assert_eq!(first, second, "seed {seed}");
        // Writing the timeline changes nothing.
        let unwritten = schedule(seed, &options).map(|summary| summary.steps);
        assert_eq!(first, unwritten, "seed {seed}");
    }
}
