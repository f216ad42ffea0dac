//! The cron vectors: recorded answers of Quartz, for every shape of expression and around clock changes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::fmt::Write as _;
use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use sidekeeper::quartz::{Expression, parse_time_zone};

/// One question to Quartz. Keys that are not named here are information for people.
#[derive(Deserialize)]
struct Vector {
    expr: String,
    tz: String,
    after: Timestamp,
    /// The next instants, in order; `null` after the last one.
    next: Option<Vec<Option<Timestamp>>>,
    #[serde(default)]
    invalid: bool,
    /// Malformed text that Quartz's parser happens to accept: it may be refused, or evaluated as given.
    #[serde(default)]
    lenient: bool,
    /// The answer of version 2.5.2, where it differs from the version of `next`.
    quartz_2_5_2: Option<Newer>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Newer {
    Next(Vec<Option<Timestamp>>),
    Verdict(String),
}

/// The required answer.
enum Expected<'v> {
    Refusal,
    Next(&'v [Option<Timestamp>]),
    RefusalOrNext(&'v [Option<Timestamp>]),
}

/// Quartz searches to 100 years after the year of its start; these answers were recorded in 2026. `next_after` counts
/// from the given instant, so it may find later instants than Quartz.
const RECORDED_HORIZON: i16 = 2126;

impl Vector {
    fn expected(&self) -> Expected<'_> {
        let next = match (&self.quartz_2_5_2, &self.next) {
            (Some(Newer::Next(next)), _) => Some(next),
            (Some(Newer::Verdict(verdict)), _) => {
                assert_eq!(verdict, "invalid", "{}: unknown verdict", self.expr);
                return Expected::Refusal;
            }
            (None, _) if self.invalid => None,
            (None, next) => next.as_ref(),
        };
        match next {
            Some(next) if self.lenient => Expected::RefusalOrNext(next),
            Some(next) => Expected::Next(next),
            None => Expected::Refusal,
        }
    }

    fn check(&self, counts: &mut Counts) -> Result<(), String> {
        let zone = parse_time_zone(&self.tz).map_err(|error| error.to_string())?;
        match (Expression::parse(&self.expr), self.expected()) {
            (Err(_), Expected::Refusal) => counts.refused += 1,
            (Err(_), Expected::RefusalOrNext(_)) => counts.malformed_refused += 1,
            (Err(error), Expected::Next(_)) => return Err(format!("refused: {error}")),
            (Ok(_), Expected::Refusal) => return Err("accepted, must be refused".to_owned()),
            (Ok(expression), Expected::Next(next) | Expected::RefusalOrNext(next)) => {
                assert!(!next.is_empty(), "{}: a vector without an answer checks nothing", self.expr);
                let given = answers(&expression, self.after, &zone, next.len());
                if given != next {
                    return Err(format!("expected {}\n       given {}", line(next), line(&given)));
                }
                counts.evaluated += 1;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Counts {
    evaluated: usize,
    refused: usize,
    malformed_refused: usize,
}

fn answers(
    expression: &Expression,
    mut after: Timestamp,
    zone: &TimeZone,
    count: usize,
) -> Vec<Option<Timestamp>> {
    let recorded = |instant: &Timestamp| zone.to_datetime(*instant).year() <= RECORDED_HORIZON;
    let mut answers = Vec::new();
    for _ in 0..count {
        let next = expression.next_after(after, zone).filter(recorded);
        answers.push(next);
        after = next.unwrap_or(after);
    }
    answers
}

fn line(answers: &[Option<Timestamp>]) -> String {
    answers
        .iter()
        .map(|answer| answer.map_or("none".to_owned(), |at| at.to_string()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn run(file: &str, folder: PathBuf) {
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let vectors: Vec<Vector> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(!vectors.is_empty(), "{}: no vectors", path.display());

    let (mut counts, mut failures, mut failed) = (Counts::default(), String::new(), 0);
    for vector in &vectors {
        if let Err(problem) = vector.check(&mut counts) {
            failed += 1;
            writeln!(failures, "`{}` in {} after {}: {problem}", vector.expr, vector.tz, vector.after)
                .unwrap();
        }
    }
    println!("{file}: {} vectors, {failed} failed, {counts:?}", vectors.len());
    assert_eq!(counts.evaluated + counts.refused + counts.malformed_refused + failed, vectors.len());
    assert!(failures.is_empty(), "{failed} of {} vectors of {file} failed:\n{failures}", vectors.len());
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

#[test]
fn every_vector_is_answered_as_quartz_answers_it() {
    let folder =
        std::env::var_os("SIDEKEEPER_VECTORS").map_or_else(|| fixtures().join("vectors"), PathBuf::from);
    run("quartz-cron-vectors.json", folder);
}
