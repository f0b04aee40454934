//! The shell reader against a table written by hand, against the shells themselves, and against chance.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests fail loudly, and tell the seed"
)]

mod bounds;
mod guards;
mod properties;
mod real;
mod table;
mod truth;
mod verdicts;
