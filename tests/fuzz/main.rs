//! Every parser of bytes from outside takes what is in `corpus`, and that changed at random, without a panic (SE-14). `make fuzz` tries
//! a million inputs for each.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// How many changed inputs each parser gets besides, unless `FUZZ_INPUTS` says otherwise.
const CHANGED: u64 = 3_000;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

/// The kept inputs, in the order of their names.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = corpus(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Numbers that look random, the same in each run (`splitmix64`).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }
}

/// Bytes removed, changed, repeated, or taken from another input.
fn changed(inputs: &[Vec<u8>], draw: &mut Draw) -> Vec<u8> {
    let mut input = inputs[draw.below(inputs.len())].clone();
    for _ in 0..=draw.below(4) {
        let at = draw.below(input.len() + 1);
        let end = at + draw.below((input.len() - at).min(16) + 1);
        match draw.below(4) {
            0 => drop(input.drain(at..end)),
            1 if at < input.len() => input[at] = u8::try_from(draw.below(256)).unwrap(),
            2 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let other = &inputs[draw.below(inputs.len())];
                let from = draw.below(other.len() + 1);
                let to = from + draw.below((other.len() - from).min(64) + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    input
}

#[test]
fn se_14_the_kept_inputs_and_changed_ones_make_no_parser_panic() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (count, seed) = (number("FUZZ_INPUTS").unwrap_or(CHANGED), number("FUZZ_SEED").unwrap_or(1));
    let only = std::env::var("FUZZ_TARGET").ok().filter(|name| !name.is_empty());
    let chosen = |name: &str| only.as_deref().is_none_or(|only| only == name);
    assert!(targets::TARGETS.iter().any(|(name, _)| chosen(name)), "FUZZ_TARGET names no parser: {only:?}");
    for (name, target) in targets::TARGETS.iter().filter(|(name, _)| chosen(name)) {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "{name} has no input");
        inputs.iter().for_each(|input| target(input));
        let mut draw = Draw(seed);
        for _ in 0..count {
            let input = changed(&inputs, &mut draw);
            // The input is shown, because the panic is about something inside the parser.
            if std::panic::catch_unwind(|| target(&input)).is_err() {
                panic!("{name} fails for {}", input.escape_ascii());
            }
        }
    }
}

#[test]
fn se_14_every_corpus_has_a_parser() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let found: BTreeSet<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let wanted: BTreeSet<_> = targets::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, wanted);
}
