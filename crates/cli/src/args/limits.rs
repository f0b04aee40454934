//! Limits as flags: a length, or the wish to have none; and budgets.

use std::time::Duration;

use clap::Args;

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

/// A count, or a place in something that is counted.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number such as 20".to_owned())
}

// What a task may use. No doc comment: that would be taken for what the command does.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BudgetArgs {
    /// Stop it when it has written more than this in all
    #[arg(long = "max-output", value_name = "SIZE", value_parser = duration::parse_size)]
    pub(crate) output: Option<u64>,
    /// Stop it when its processes use more memory than this together
    #[arg(long = "max-memory", value_name = "SIZE", value_parser = duration::parse_size)]
    pub(crate) memory: Option<u64>,
    /// Stop it when it has more processes than this, threads counted as well
    #[arg(long = "max-processes", value_name = "N", value_parser = number)]
    pub(crate) processes: Option<u64>,
}
