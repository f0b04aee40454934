//! End to end: the real command, a real daemon and real processes, each test in a home of its own. Nothing in here
//! reaches into the product; what a test knows, a user could know.

#![expect(
    clippy::unwrap_used,
    clippy::format_collect,
    reason = "a helper of a test fails by panicking, as the test does, and need not be fast"
)]

mod adopt;
mod asked;
mod attach;
mod attacks;
mod bad_days;
mod bad_disks;
mod binding;
mod brief;
mod budget;
mod client_reconnect;
mod clocks;
mod config;
mod crash;
mod crash_points;
mod daemon_log;
mod detach;
mod event_types;
mod events;
mod failures;
mod flood;
mod foreground;
mod grep;
mod half_closed;
mod head;
mod held;
mod holding;
mod hooks;
mod hostile;
mod idle;
mod lanes;
mod lines;
mod list_filters;
mod lists;
mod lost;
mod names;
mod notices;
mod notifications;
mod output;
mod patient;
mod people;
mod places;
mod pressure;
mod protocol_examples;
mod python_client;
mod raw;
mod readers;
mod reboot;
mod retention;
mod retry;
mod rights;
mod scripts;
mod sessions;
mod shell;
mod snapshot;
mod stall;
mod start;
mod start_resume;
mod stop;
mod stop_many;
mod stubborn;
mod support;
mod surroundings;
mod terminal;
mod tour;
mod versions;
mod views;
mod wait;
mod zoo;
