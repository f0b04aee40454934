//! Moments on the wire: RFC 3339 in UTC with milliseconds. Elapsed time is never computed from these.
//!
//! A list of a thousand tasks writes and reads three thousand of them, and every end of a task a dozen. So the one form that is ever
//! written has a short way through here; whatever else there is goes through the library, which also judges the short way.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970, written as `2026-01-31T12:00:00.000Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

/// As long as any moment of the years 0 to 9999.
const LENGTH: usize = 24;

const DAY_MS: i64 = 86_400_000;

/// The days from the first of March of the year 0 to the first of January 1970, and in 400 years. The calendar repeats itself after
/// those, and a year that begins in March has its leap day at the end.
const DAYS_BEFORE_1970: i64 = 719_468;
const DAYS_IN_400_YEARS: i64 = 146_097;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Ok(text)) = self.written().as_ref().map(|text| std::str::from_utf8(text)) {
            return f.write_str(text);
        }
        let moment = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        write!(f, "{moment:.3}")
    }
}

impl Timestamp {
    pub fn parse(text: &str) -> Option<Self> {
        let others = || text.parse::<jiff::Timestamp>().ok().map(|moment| Self(moment.as_millisecond()));
        Self::read(text.as_bytes()).or_else(others)
    }

    /// In the form that is written; `None` for a year that does not have four digits.
    fn written(self) -> Option<[u8; LENGTH]> {
        let (days, ms) = (self.0.div_euclid(DAY_MS), self.0.rem_euclid(DAY_MS));
        let [year, month, day] = date(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let parts = [
            (0, 4, year),
            (5, 2, month),
            (8, 2, day),
            (11, 2, ms / 3_600_000),
            (14, 2, ms / 60_000 % 60),
            (17, 2, ms / 1_000 % 60),
            (20, 3, ms % 1_000),
        ];
        for (at, digits, mut number) in parts {
            for place in text.get_mut(at..at + digits)?.iter_mut().rev() {
                *place += u8::try_from(number % 10).ok()?;
                number /= 10;
            }
        }
        (0..=9999).contains(&year).then_some(text)
    }

    /// Of the form that is written and nothing else.
    fn read(text: &[u8]) -> Option<Self> {
        let mut shape: [u8; LENGTH] = text.try_into().ok()?;
        shape.iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'0');
        if shape != *b"0000-00-00T00:00:00.000Z" {
            return None;
        }
        let part = |at: usize, digits: usize| {
            text[at..at + digits].iter().fold(0, |number, byte| number * 10 + i64::from(byte - b'0'))
        };
        let (year, month, day) = (part(0, 4), part(5, 2), part(8, 2));
        let days = days(year, month, day);
        let (hour, minute, second) = (part(11, 2), part(14, 2), part(17, 2));
        // A day that there is not comes back as another.
        let is_real = (1..=12).contains(&month) && date(days) == [year, month, day];
        (is_real && hour < 24 && minute < 60 && second < 60)
            .then(|| Self(days * DAY_MS + hour * 3_600_000 + minute * 60_000 + second * 1_000 + part(20, 3)))
    }
}

/// Year, month and day of a day since 1970.
const fn date(days: i64) -> [i64; 3] {
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days.div_euclid(DAYS_IN_400_YEARS), days.rem_euclid(DAYS_IN_400_YEARS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    [era * 400 + year + later, month, day]
}

/// The day since 1970 that this is.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * month + 2) / 5 + day - 1 + 365 * year + year / 4 - year / 100;
    era * DAYS_IN_400_YEARS + day - DAYS_BEFORE_1970
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.written().as_ref().map(|text| std::str::from_utf8(text)) {
            Some(Ok(text)) => serializer.serialize_str(text),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not an RFC 3339 time in UTC"))
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LENGTH, Timestamp};

    /// The first moment of the year 0, and the last that the library knows, on the last but one day of 9999.
    const FIRST: i64 = -62_167_219_200_000;
    const LAST: i64 = 253_402_207_200_000;

    fn judged(moment: Timestamp) -> String {
        format!("{:.3}", jiff::Timestamp::from_millisecond(moment.0).unwrap())
    }

    proptest! {
        #[test]
        fn the_short_way_is_the_way_of_the_library(ms in FIRST..=LAST, at in 0..LENGTH, byte in b' '..b'~') {
            let moment = Timestamp(ms);
            let text = moment.to_string();
            prop_assert_eq!(&text, &judged(moment));
            prop_assert_eq!(Timestamp::read(text.as_bytes()), Some(moment));
            prop_assert_eq!(serde_json::to_string(&moment).unwrap(), format!("\"{text}\""));
            // What is nearly a moment is one to both or to the library alone.
            let mut near = text.into_bytes();
            near[at] = byte;
            let near = String::from_utf8(near).unwrap();
            let theirs = near.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
            let ours = Timestamp::parse(&near).map(|moment| moment.0).filter(|ms| *ms <= LAST);
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn the_edges_are_right_too() {
        for edge in
            [FIRST, LAST, 0, -1, 951_782_399_999, 951_782_400_000, 4_107_542_399_999, 4_107_542_400_000]
        {
            let moment = Timestamp(edge);
            assert_eq!(moment.to_string(), judged(moment));
            assert_eq!(Timestamp::read(moment.to_string().as_bytes()), Some(moment));
        }
        // Beyond them there is the library.
        for far in [FIRST - 1, i64::MIN, i64::MAX] {
            assert_eq!(Timestamp(far).written(), None);
            assert!(!Timestamp(far).to_string().is_empty());
        }
        for no_day in ["2025-02-29T00:00:00.000Z", "2026-13-01T00:00:00.000Z", "2026-00-01T00:00:00.000Z"] {
            assert_eq!(Timestamp::parse(no_day), None, "{no_day}");
        }
    }

    #[test]
    fn moments_are_written_in_utc_with_milliseconds() {
        let moment = Timestamp(1_767_225_600_007);
        assert_eq!(moment.to_string(), "2026-01-01T00:00:00.007Z");
        assert_eq!(Timestamp::parse("2026-01-01T00:00:00.007Z"), Some(moment));
        assert_eq!(Timestamp::parse("yesterday"), None);
    }
}
