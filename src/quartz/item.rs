//! One part of a field, between commas: its grammar, without the meaning of the whole field.

use std::ops::Range;

use super::error::{Field, ParseError};

/// A part of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// `?`
    Unspecified,
    /// `*`, a value, a range, a step.
    Span(Span),
    /// `L`, `L-3`, `LW`, `L-3W` of a day of month.
    BeforeLast { days: i8, weekday: bool },
    /// `15W`.
    Nearest(i8),
    /// `6L`, `FRIL`.
    LastWeekday(i8),
    /// `6#3`, `FRI#3`.
    NthWeekday { weekday: i8, nth: i8 },
}

/// The values `first`, `first + step`, ... up to `last`. The range wraps if `last` is smaller than `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// `None`: the field's smallest value.
    pub(super) first: Option<u32>,
    /// `None`: the field's largest value.
    pub(super) last: Option<u32>,
    /// At least 1.
    pub(super) step: u32,
}

impl Span {
    fn one(value: u32) -> Self {
        Self { first: Some(value), last: Some(value), step: 1 }
    }

    /// Quartz: a step of 0 keeps only the first value; with `*` it has no effect. A range keeps its end,
    /// which must still be a value of the field.
    fn with_step(self, step: u32) -> Self {
        match self.first {
            Some(first) if step == 0 && self.last.is_none() => Self::one(first),
            Some(_) if step == 0 => Self { step: u32::MAX, ..self },
            _ => Self { step: step.max(1), ..self },
        }
    }
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The largest number that Quartz can read.
const MAX_NUMBER: u32 = 2_147_483_647;

/// Reads one part of a field.
pub(super) struct Scanner<'t> {
    text: &'t str,
    field: Field,
    item: Range<usize>,
    at: usize,
}

impl<'t> Scanner<'t> {
    /// Starts to read the part of `text` at `item`.
    pub(super) fn new(text: &'t str, field: Field, item: Range<usize>) -> Self {
        Self { text, field, at: item.start, item }
    }

    /// Reads the part to its end.
    pub(super) fn item(mut self) -> Result<Item, ParseError> {
        let item = if self.eat('?') {
            self.unspecified()?
        } else if self.eat('*') || self.rest().starts_with('/') {
            self.every()?
        } else if let Some((number, _)) = self.number()? {
            self.after_number(number)?
        } else if let Some(name) = self.name() {
            self.after_name(name)?
        } else if self.eat('L') {
            self.last()?
        } else {
            return Err(self.malformed());
        };
        if self.rest().is_empty() { Ok(item) } else { Err(self.malformed()) }
    }

    fn unspecified(&self) -> Result<Item, ParseError> {
        match self.field {
            Field::DayOfMonth | Field::DayOfWeek => Ok(Item::Unspecified),
            Field::Seconds | Field::Minutes | Field::Hours | Field::Month | Field::Year => {
                Err(self.malformed())
            }
        }
    }

    /// Reads what follows `*`.
    fn every(&mut self) -> Result<Item, ParseError> {
        let all = Span { first: None, last: None, step: 1 };
        Ok(Item::Span(match self.step(Some(self.max_step()))? {
            Some(step) => all.with_step(step),
            None => all,
        }))
    }

    fn after_number(&mut self, number: u32) -> Result<Item, ParseError> {
        if self.field == Field::DayOfMonth && self.eat('W') {
            return Ok(Item::Nearest(self.small(number)?));
        }
        if let Some(item) = self.weekday_suffix(number)? {
            return Ok(item);
        }
        if self.eat('-') {
            let (last, _) = self.number()?.ok_or_else(|| self.malformed())?;
            let range = Span { first: Some(number), last: Some(last), step: 1 };
            // Quartz checks the size of a step everywhere but here.
            return Ok(Item::Span(self.step(None)?.map_or(range, |step| range.with_step(step))));
        }
        Ok(Item::Span(match self.step(Some(self.max_step()))? {
            Some(step) => Span { first: Some(number), last: None, step: 1 }.with_step(step),
            None => Span::one(number),
        }))
    }

    fn after_name(&mut self, first: u32) -> Result<Item, ParseError> {
        if let Some(item) = self.weekday_suffix(first)? {
            return Ok(item);
        }
        let mut span = Span::one(first);
        if self.eat('-') {
            span.last = Some(self.name().ok_or_else(|| self.malformed())?);
        }
        // Quartz ignores the text after a name. A step is accepted, and has no effect there.
        self.step(None)?;
        Ok(Item::Span(span))
    }

    /// `L` or `#3` after a weekday.
    fn weekday_suffix(&mut self, weekday: u32) -> Result<Option<Item>, ParseError> {
        if self.field != Field::DayOfWeek {
            return Ok(None);
        }
        if self.eat('L') {
            return Ok(Some(Item::LastWeekday(self.small(weekday)?)));
        }
        if !self.eat('#') {
            return Ok(None);
        }
        let start = self.at;
        let nth =
            self.number()?.and_then(|(nth, _)| i8::try_from(nth).ok()).filter(|nth| (1..=5).contains(nth));
        match nth {
            Some(nth) => Ok(Some(Item::NthWeekday { weekday: self.small(weekday)?, nth })),
            None => Err(self.refuse(start..self.item.end, "1 to 5 after `#`")),
        }
    }

    /// Reads what follows `L`.
    fn last(&mut self) -> Result<Item, ParseError> {
        if self.field == Field::DayOfWeek {
            return Ok(Item::Span(Span::one(7)));
        }
        if self.field != Field::DayOfMonth {
            return Err(self.malformed());
        }
        let mut days = 0;
        if self.eat('-') {
            let (number, span) = self.number()?.ok_or_else(|| self.malformed())?;
            days = i8::try_from(number)
                .ok()
                .filter(|days| *days <= 30)
                .ok_or_else(|| self.refuse(span, "0 to 30 after `L-`"))?;
        }
        Ok(Item::BeforeLast { days, weekday: self.eat('W') })
    }

    /// `/5`, if there is one.
    fn step(&mut self, max: Option<u32>) -> Result<Option<u32>, ParseError> {
        if !self.eat('/') {
            return Ok(None);
        }
        let start = self.at;
        let (step, span) =
            self.number()?.ok_or_else(|| self.refuse(start..self.item.end, "a number after `/`"))?;
        match max {
            Some(max) if step > max => Err(self.refuse(span, format!("at most {max} after `/`"))),
            _ => Ok(Some(step)),
        }
    }

    fn max_step(&self) -> u32 {
        match self.field {
            Field::Seconds | Field::Minutes => 59,
            Field::Hours => 23,
            Field::DayOfMonth => 31,
            Field::Month => 12,
            Field::DayOfWeek => 7,
            Field::Year => MAX_NUMBER,
        }
    }

    /// A number and its place, if the text continues with one.
    fn number(&mut self) -> Result<Option<(u32, Range<usize>)>, ParseError> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Ok(None);
        }
        let span = self.at..self.at + digits;
        self.at = span.end;
        let number = self.text.get(span.clone()).and_then(|digits| digits.parse().ok());
        match number.filter(|number| *number <= MAX_NUMBER) {
            Some(number) => Ok(Some((number, span))),
            None => Err(self.refuse(span, self.field.values())),
        }
    }

    /// The number of a month or a weekday, if the text continues with its name.
    fn name(&mut self) -> Option<u32> {
        let names: &[&str] = match self.field {
            Field::Month => &MONTHS,
            Field::DayOfWeek => &WEEKDAYS,
            Field::Seconds | Field::Minutes | Field::Hours | Field::DayOfMonth | Field::Year => return None,
        };
        let given = self.rest().get(..3)?;
        let index = names.iter().position(|name| name.eq_ignore_ascii_case(given))?;
        self.at += 3;
        u32::try_from(index + 1).ok()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.rest().chars().next().is_some_and(|c| c.eq_ignore_ascii_case(&wanted));
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..self.item.end).unwrap_or_default()
    }

    /// A value of the field.
    fn small(&self, value: u32) -> Result<i8, ParseError> {
        let in_bounds =
            |value: &i8| self.field.bounds().is_some_and(|(min, max)| (min..=max).contains(value));
        let value = i8::try_from(value).ok().filter(in_bounds);
        value.ok_or_else(|| self.refuse(self.item.clone(), self.field.values()))
    }

    fn malformed(&self) -> ParseError {
        self.refuse(self.item.clone(), self.field.forms())
    }

    fn refuse(&self, span: Range<usize>, allowed: impl Into<String>) -> ParseError {
        ParseError::new(Some(self.field), self.text, span, allowed)
    }
}
