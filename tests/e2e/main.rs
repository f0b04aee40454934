//! End to end: the real command, a real daemon and real processes, each test in a home of its own. Nothing in here
//! reaches into the product; what a test knows, a user could know.

mod clocks;
mod crash;
mod failures;
mod foreground;
mod output;
mod patient;
mod pressure;
mod start;
mod stop;
mod stubborn;
mod support;
mod zoo;
