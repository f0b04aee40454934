//! What `belay logs` takes.

use clap::{Args, ValueEnum};

use super::limits::number;
use crate::duration::parse_size as size;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Go on until the task has ended
    #[arg(short, long, conflicts_with = "grep")]
    pub(crate) follow: bool,
    /// Begin at this absolute offset
    #[arg(long, value_name = "OFFSET", value_parser = number, conflicts_with = "tail")]
    pub(crate) after: Option<u64>,
    /// Only so many lines from the beginning; with --grep, the first so many matches
    #[arg(long, value_name = "LINES", value_parser = number, conflicts_with_all = ["follow", "after", "tail"])]
    pub(crate) head: Option<u64>,
    /// Begin so many lines before the end
    #[arg(long, value_name = "LINES", value_parser = number, conflicts_with = "grep")]
    pub(crate) tail: Option<u64>,
    /// Only one of the two streams
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Option<Stream>,
    /// Only lines that match this regular expression (Rust's regex: . is a character of UTF-8, and (?-u:.) any byte);
    /// exit code 1 if none does. A line longer than 1 MiB is searched in parts
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,
    /// Lines around each match, at most 50
    #[arg(
        long, value_name = "LINES", requires = "grep", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(..=i64::from(belay_protocol::output::OutputSearchParams::MAX_CONTEXT)),
    )]
    pub(crate) context: u32,
    /// For a model, or anybody with little room: the task and what to do next, then the head and the tail of its output
    /// within so many bytes
    #[arg(
        long, value_name = "SIZE", value_parser = size, num_args = 0..=1, default_missing_value = "16K", require_equals = true,
        conflicts_with_all = ["follow", "head", "tail", "grep", "stream", "raw", "json"],
    )]
    pub(crate) brief: Option<u64>,
    /// Print the bytes and nothing else, also on a terminal; with --json, base64 instead of text
    #[arg(long, conflicts_with = "grep")]
    pub(crate) raw: bool,
    /// Print one chunk (or matching line) a line as JSON, with stream, offset, time and text
    #[arg(long)]
    pub(crate) json: bool,
}
