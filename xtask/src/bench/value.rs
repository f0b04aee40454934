//! Measured values with their units. They say which direction is better and print themselves; they judge nothing.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

use super::measure::number;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    Seconds,
    PerSecond,
    BytesPerSecond,
    Bytes,
    Count,
    Ratio,
}

impl Unit {
    /// Whether a larger value is the better one.
    pub(crate) const fn is_more_better(self) -> bool {
        matches!(self, Self::PerSecond | Self::BytesPerSecond)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) amount: f64,
    pub(crate) unit: Unit,
}

impl Value {
    pub(crate) const fn new(amount: f64, unit: Unit) -> Self {
        Self { amount, unit }
    }

    pub(crate) fn bytes(bytes: u64) -> Self {
        Self::new(number(bytes), Unit::Bytes)
    }

    pub(crate) fn count(count: u64) -> Self {
        Self::new(number(count), Unit::Count)
    }
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Self {
        Self::new(time.as_secs_f64(), Unit::Seconds)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.amount;
        match self.unit {
            Unit::Seconds if amount < 1e-3 => write!(f, "{:.0} µs", amount * 1e6),
            Unit::Seconds if amount < 1e-2 => write!(f, "{:.2} ms", amount * 1e3),
            Unit::Seconds if amount < 1.0 => write!(f, "{:.1} ms", amount * 1e3),
            Unit::Seconds => write!(f, "{amount:.2} s"),
            Unit::PerSecond if amount >= 1e5 => write!(f, "{:.0} thousand/s", amount / 1e3),
            Unit::PerSecond => write!(f, "{amount:.0}/s"),
            Unit::BytesPerSecond => write!(f, "{:.2} GB/s", amount / 1e9),
            Unit::Bytes if amount < 1e6 => write!(f, "{:.3} MB", amount / 1e6),
            Unit::Bytes => write!(f, "{:.1} MB", amount / 1e6),
            Unit::Count => write!(f, "{amount:.0}"),
            Unit::Ratio if amount < 0.1 => write!(f, "{amount:.4}"),
            Unit::Ratio => write!(f, "{amount:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_with_unit() {
        let shown = |amount, unit| Value::new(amount, unit).to_string();
        assert_eq!(shown(0.000_897, Unit::Seconds), "897 µs");
        assert_eq!(shown(0.002_61, Unit::Seconds), "2.61 ms");
        assert_eq!(shown(1.44e9, Unit::BytesPerSecond), "1.44 GB/s");
        assert_eq!(shown(157_000.0, Unit::Bytes), "0.157 MB");
        assert_eq!(shown(0.0019, Unit::Ratio), "0.0019");
    }
}
