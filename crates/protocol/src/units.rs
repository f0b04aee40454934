//! Durations and sizes as people write them, in flags and in settings: `500ms`, `10s`, `1h30m`, `7d`; `64KiB`, `10MB`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::task::{OnStall, StallParams};

const DURATION_HELP: &str = "write a duration as 500ms, 10s, 5m, 2h, 1h30m or 7d";
const SIZE_HELP: &str = "write a size as 4096, 64KiB, 10MiB or 1GB";

/// Longer than any clock is set to: a hundred years, so that adding to a moment never overflows.
const MAX_MS: u64 = 100 * 365 * 86_400_000;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a duration. Units come from large to small, each once; there is always one.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err(DURATION_HELP.to_owned());
    }
    let (mut rest, mut total, mut unit_before) = (text, 0_u64, None);
    while !rest.is_empty() {
        let (number, after) = split_number(rest);
        let letters = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        if unit.is_empty() && !number.is_empty() && next.is_empty() {
            return Err(format!("{number:?} has no unit: {DURATION_HELP}"));
        }
        let place = UNITS.iter().position(|(name, _)| *name == unit).ok_or(DURATION_HELP)?;
        if unit_before.is_some_and(|before| before >= place) {
            return Err(format!("units go from large to small, each once: {DURATION_HELP}"));
        }
        let value: u64 = number.parse().map_err(|_| DURATION_HELP)?;
        let part = value.checked_mul(UNITS[place].1).filter(|ms| *ms <= MAX_MS);
        total =
            part.and_then(|ms| total.checked_add(ms)).filter(|ms| *ms <= MAX_MS).ok_or("that is too long")?;
        (rest, unit_before) = (next, Some(place));
    }
    Ok(Duration::from_millis(total))
}

/// Reads how often a task is looked at, and what follows: `30s`, `30s:tell`, `5m:stop`.
pub fn parse_stall(text: &str) -> Result<StallParams, String> {
    let (time, policy) = match text.split_once(':') {
        None => (text, OnStall::Tell),
        Some((time, "tell")) => (time, OnStall::Tell),
        Some((time, "stop")) => (time, OnStall::Stop),
        Some(_) => return Err("write it as 30s, 30s:tell or 30s:stop".to_owned()),
    };
    Ok(StallParams { after_ms: millis(parse(time)?), policy })
}

/// Writes a duration so that [`parse`] reads the same again.
pub fn format(duration: Duration) -> String {
    let mut left = millis(duration);
    let mut text = String::new();
    for (name, ms) in UNITS {
        if left >= ms {
            let _ = write!(text, "{}{name}", left / ms);
            left %= ms;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a size. `K`, `M`, `G` are powers of 1024, as `KiB` and so on; `KB`, `MB`, `GB` are powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(SIZE_HELP.to_owned()),
    };
    let value: u64 = number.parse().map_err(|_| SIZE_HELP)?;
    value.checked_mul(factor).ok_or_else(|| "that is too large".to_owned())
}

/// Writes a size exactly, in the largest unit that it is a whole number of, so that [`parse_size`] reads the same again.
pub fn format_size(bytes: u64) -> String {
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => bytes.to_string(),
    }
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn looks_are_told_or_stop() {
        let stall = |after_ms, policy| Ok(StallParams { after_ms, policy });
        assert_eq!(parse_stall("30s"), stall(30_000, OnStall::Tell));
        assert_eq!(parse_stall("30s:tell"), stall(30_000, OnStall::Tell));
        assert_eq!(parse_stall("1m30s:stop"), stall(90_000, OnStall::Stop));
        for wrong in ["", ":stop", "30", "30s:", "30s:kill", "30s:tell:stop"] {
            assert!(parse_stall(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_read_as_they_are_written() {
        let read = |text| parse(text).map(millis);
        assert_eq!(read("500ms"), Ok(500));
        assert_eq!(read("10s"), Ok(10_000));
        assert_eq!(read("1h30m"), Ok(5_400_000));
        assert_eq!(read("7d"), Ok(604_800_000));
        assert_eq!(read("0s"), Ok(0));
        for wrong in
            ["", "5", "s", "-1s", "1.5h", "5x", "1m1h", "1s1s", "1s ", "99999999999999999999s", "200000d"]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("2m"), Ok(2 << 20));
        assert_eq!(parse_size("10MB"), Ok(10_000_000));
        for wrong in ["", "KiB", "-1", "1.5G", "1XB", "99999999999999TiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(ms in 0..MAX_MS) {
            let text = format(Duration::from_millis(ms));
            prop_assert_eq!(parse(&text).map(millis), Ok(ms), "{}", text);
        }

        #[test]
        fn a_size_that_is_written_is_read_again(bytes in any::<u64>(), shift in 0_u32..63) {
            let bytes = bytes >> shift << (shift / 2);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_breaks_the_reader(text in any::<String>()) {
            let _ = (parse(&text), parse_size(&text));
        }
    }
}
