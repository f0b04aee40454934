//! Limits as flags: a length, or the wish to have none.

use std::time::Duration;

use crate::duration;

/// A limit that was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    After(Duration),
}

impl Limit {
    pub(crate) fn ms(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::After(time) => Some(duration::millis(time)),
        }
    }
}

pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    duration::parse(text).map(Limit::After).map_err(|help| format!("{help}, or none"))
}
