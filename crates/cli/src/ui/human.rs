//! Times and sizes as people say them. What programs read is written elsewhere.

use belay_protocol::Timestamp;

/// A length of time, to two units: `850 ms`, `12s`, `3m 12s`, `2h 5m`, `4d 3h`.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}s"),
        60..3600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => pair(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

fn pair(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit} {small}{small_unit}")
    }
}

/// How long something took, where tenths of a second count: `12 ms`, `3.2 s`, `3m 12s`.
pub(crate) fn took(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => duration(ms),
    }
}

/// From one moment to another by the calendar's clock; never less than nothing.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0)
}

/// `3m 12s ago`.
pub(crate) fn ago(moment: Timestamp, now: Timestamp) -> String {
    match between(moment, now) {
        0..1000 => "just now".to_owned(),
        ms => format!("{} ago", duration(ms)),
    }
}

/// A size in the units of memory: `512 B`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10 / 1024;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// `1 process`, `3 processes`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The name of a signal by its number on Linux.
pub(crate) fn signal(number: i32) -> String {
    const NAMES: [&str; 32] = [
        "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU",
        "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number).ok().and_then(|at| NAMES.get(at)) {
        Some(name) if !name.is_empty() => format!("SIG{name}"),
        _ => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_two_units() {
        let said = [0, 999, 1000, 59_999, 192_000, 7_200_000, 7_500_000, 356_400_000].map(duration);
        assert_eq!(said, ["0 ms", "999 ms", "1s", "59s", "3m 12s", "2h", "2h 5m", "4d 3h"]);
        assert_eq!([12, 3_250, 61_000].map(took), ["12 ms", "3.2 s", "1m 1s"]);
        assert_eq!(ago(Timestamp(5000), Timestamp(1000)), "just now");
    }

    #[test]
    fn sizes_are_said_in_the_units_of_memory() {
        let said = [0, 1023, 1024, 1536, 1 << 20, u64::MAX].map(size);
        assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "15.9 EiB"]);
    }

    #[test]
    fn signals_have_names() {
        assert_eq!([1, 9, 15, 31, 34].map(signal), ["SIGHUP", "SIGKILL", "SIGTERM", "SIGSYS", "signal 34"]);
    }
}
