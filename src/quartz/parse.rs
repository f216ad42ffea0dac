//! From text to an [`Expression`]: the fields, and the common meaning of their parts.

use std::ops::Range;

use super::Expression;
use super::days::{Days, DaysOfMonth, Marks};
use super::error::{Field, ParseError};
use super::item::{Item, Scanner, Span};
use super::set::Set;
use super::years::{YearSpan, Years};

/// See [`Expression::parse`].
pub(super) fn expression(text: &str) -> Result<Expression, ParseError> {
    if text.len() > Expression::MAX_LENGTH {
        let allowed = format!("at most {} bytes long, not {}", Expression::MAX_LENGTH, text.len());
        return Err(ParseError::new(None, text, 0..text.len(), allowed));
    }
    let spans = fields(text);
    let (seconds, minutes, hours, day_of_month, month, day_of_week, year) = match spans.as_slice() {
        [s, m, h, dom, mon, dow] => (s, m, h, dom, mon, dow, None),
        [s, m, h, dom, mon, dow, year] => (s, m, h, dom, mon, dow, Some(year)),
        _ => {
            let allowed = format!(
                "6 or 7 fields (seconds, minutes, hours, day of month, month, day of week, year), not {}",
                spans.len()
            );
            return Err(ParseError::new(None, text, 0..text.len(), allowed));
        }
    };
    let read = |field, span: &Range<usize>| FieldText { text, field, span: span.clone() };
    // In the order of the text, so that the error is about the first wrong field.
    let seconds = read(Field::Seconds, seconds).values()?;
    let minutes = read(Field::Minutes, minutes).values()?;
    let hours = read(Field::Hours, hours).values()?;
    let of_month = read(Field::DayOfMonth, day_of_month).days_of_month()?;
    let months = read(Field::Month, month).values()?;
    let day_of_week = read(Field::DayOfWeek, day_of_week);
    let days = days(of_month, &day_of_week)?;
    let years = year.map_or_else(|| Ok(Years::all()), |span| read(Field::Year, span).years())?;
    Ok(Expression { text: text.into(), seconds, minutes, hours, days, months, years })
}

/// The places of the fields: separated by blanks and tabs. As in Quartz, other control characters around a
/// field, such as the line end after the last one, are ignored.
fn fields(text: &str) -> Vec<Range<usize>> {
    let mut fields = Vec::with_capacity(7);
    let mut start = 0;
    for part in text.split([' ', '\t']) {
        let lead = part.len() - part.trim_start_matches(is_blank).len();
        let field = part.trim_matches(is_blank);
        if !part.is_empty() {
            fields.push(start + lead..start + lead + field.len());
        }
        start += part.len() + 1;
    }
    fields
}

fn is_blank(c: char) -> bool {
    c <= ' '
}

/// One field of the text.
struct FieldText<'t> {
    text: &'t str,
    field: Field,
    span: Range<usize>,
}

impl FieldText<'_> {
    /// The parts between commas, and their places.
    fn items(&self) -> Result<Vec<(Item, Range<usize>)>, ParseError> {
        let given = self.text.get(self.span.clone()).unwrap_or_default();
        let mut start = self.span.start;
        let mut items = Vec::new();
        for part in given.split(',') {
            let span = start..start + part.len();
            start = span.end + 1;
            items.push((Scanner::new(self.text, self.field, span.clone()).item()?, span));
        }
        Ok(items)
    }

    /// A field that is only a set of values.
    fn values(&self) -> Result<Set, ParseError> {
        let mut set = Set::default();
        for (item, span) in self.items()? {
            self.add(&mut set, item, span)?;
        }
        Ok(set)
    }

    fn years(&self) -> Result<Years, ParseError> {
        let mut years = Vec::new();
        for (item, range) in self.items()? {
            let Item::Span(Span { first, last, step }) = item else {
                return Err(self.refuse(range, self.field.forms()));
            };
            let span = YearSpan { first: first.unwrap_or(Years::FIRST), last, step };
            if span.last.is_some_and(|last| last < span.first) {
                return Err(self.refuse(range, "a range that ends in the year it begins or later"));
            }
            years.push(span);
        }
        Ok(Years(years))
    }

    /// The day-of-month field; `None` is `?`.
    fn days_of_month(&self) -> Result<Option<DaysOfMonth>, ParseError> {
        let mut days = DaysOfMonth::default();
        let items = self.items()?;
        let several = items.len() > 1;
        for (item, span) in items {
            match item {
                Item::Unspecified if several => {
                    return Err(self.refuse(span, "without `?` when there are several"));
                }
                Item::Unspecified => return Ok(None),
                Item::BeforeLast { days: before, weekday } => {
                    days.marks(weekday).from_end.insert(31 - before);
                }
                Item::Nearest(day) => days.nearest.from_start.insert(day),
                Item::Span(_) | Item::LastWeekday(_) | Item::NthWeekday { .. } => {
                    self.add(&mut days.exact.from_start, item, span)?;
                }
            }
        }
        Ok(Some(days))
    }

    /// The day-of-week field; `None` is `?`.
    fn days_of_week(&self) -> Result<Option<Days>, ParseError> {
        let items = self.items()?;
        if let [(item, span)] = items.as_slice() {
            return Ok(match *item {
                Item::Unspecified => None,
                Item::LastWeekday(weekday) => Some(Days::LastOfWeek(weekday)),
                Item::NthWeekday { weekday, nth } => Some(Days::NthOfWeek { weekday, nth }),
                Item::Span(_) | Item::BeforeLast { .. } | Item::Nearest(_) => {
                    let mut set = Set::default();
                    self.add(&mut set, *item, span.clone())?;
                    Some(Days::OfWeek(set))
                }
            });
        }
        let mut set = Set::default();
        for (item, span) in items {
            // Quartz reads `L` as Saturday only when it is alone.
            let given = self.text.get(span.clone()).unwrap_or_default();
            if !matches!(item, Item::Span(_)) || given.eq_ignore_ascii_case("L") {
                return Err(self.refuse(span, "without `?`, `L` and `#` when there are several"));
            }
            self.add(&mut set, item, span)?;
        }
        Ok(Some(Days::OfWeek(set)))
    }

    /// Adds the values of a span to `set`.
    fn add(&self, set: &mut Set, item: Item, range: Range<usize>) -> Result<(), ParseError> {
        let (Item::Span(span), Some((min, max))) = (item, self.field.bounds()) else {
            return Err(self.refuse(range, self.field.forms()));
        };
        let value = |given: Option<u32>, default| match given.map(i8::try_from) {
            None => Ok(default),
            Some(Ok(value)) if (min..=max).contains(&value) => Ok(value),
            Some(_) => Err(self.refuse(range.clone(), self.field.values())),
        };
        let (first, last) = (value(span.first, min)?, value(span.last, max)?);
        let size = max - min + 1;
        // Counted from the beginning of the field: 22-4 of the hours is 22 to 28 modulo 24.
        let (from, to) = (first - min, if last < first { last - min + size } else { last - min });
        let step = usize::try_from(span.step).unwrap_or(usize::MAX);
        (from..=to).step_by(step).for_each(|offset| set.insert(min + offset % size));
        Ok(())
    }

    fn refuse(&self, span: Range<usize>, allowed: impl Into<String>) -> ParseError {
        ParseError::new(Some(self.field), self.text, span, allowed)
    }
}

impl DaysOfMonth {
    fn marks(&mut self, weekday: bool) -> &mut Marks {
        if weekday { &mut self.nearest } else { &mut self.exact }
    }
}

/// Exactly one of the two day fields must be `?`.
fn days(of_month: Option<DaysOfMonth>, field: &FieldText<'_>) -> Result<Days, ParseError> {
    match (of_month, field.days_of_week()?) {
        (Some(days), None) => Ok(Days::OfMonth(days)),
        (None, Some(days)) => Ok(days),
        (Some(_), Some(_)) => {
            Err(field
                .refuse(field.span.clone(), "`?` when the day of month is given (or the day of month `?`)"))
        }
        (None, None) => Err(field.refuse(field.span.clone(), "given when the day of month is `?`")),
    }
}
