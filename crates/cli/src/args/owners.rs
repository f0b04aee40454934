//! What `belay sessions` and `belay lanes` take.

use std::ffi::OsString;
use std::time::Duration;

use belay_protocol::task::StallParams;
use clap::{Args, Subcommand, ValueEnum};

use super::filter::{Label, label};
use crate::duration::{parse as duration, parse_stall as stall};

#[derive(Args, Debug)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    pub(crate) action: Option<SessionAction>,
    /// Ended sessions too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only sessions with this label; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionAction {
    /// Open a session, and print its id; it has to be renewed before each lease is over
    Open(OpenArgs),
    /// Run a command in a session of its own, which ends with it
    Run(RunInArgs),
    /// Hold a session on, or regain it
    Renew(OneArgs),
    /// Show one session
    Show(OneArgs),
    /// Wait until nothing in it works any more; exit code 1 if something does when the time is over
    Wait(DrainArgs),
    /// End a session; its tasks are stopped, or kept if it was opened so
    Close(CloseArgs),
    /// Show the ends that the session has not been told of yet, and take them as told
    Notices(NoticesArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnEnd {
    Stop,
    Keep,
}

// What a session can be opened with. No doc comment: that would be taken for what the command does.
#[derive(Args, Debug)]
pub(crate) struct PolicyArgs {
    /// A name to know it by
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Put a label on the session, to find it and its events by; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,
    /// How long it is held without being renewed; else one minute
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lease: Option<Duration>,
    /// How long a lost lease can be regained before the session ends; else half a minute
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lease_grace: Option<Duration>,
    /// What becomes of its tasks when it ends
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnEnd::Stop)]
    pub(crate) on_end: OnEnd,
    /// How many of its tasks may live at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tasks: Option<u64>,
    /// Stop a task of it that has run so long, unless the task says otherwise
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Stop a task of it that has been detached so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Stop a task of it that has written nothing for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) silence: Option<Duration>,
    /// Check its tasks for progress every DURATION; report a stall, or stop the task with `:stop`
    #[arg(long, value_name = "DURATION[:stop]", value_parser = stall)]
    pub(crate) stall: Option<StallParams>,
    /// How long a task of it may take to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct OpenArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Print what a shell has to evaluate so that every later command in it is done in the session's name
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
    /// Print the session and its token as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RunInArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Run it at a terminal of its own
    #[arg(long)]
    pub(crate) pty: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct OneArgs {
    /// The session: its id, a beginning of it, its name, or `user` for the standing one
    #[arg(value_name = "SESSION")]
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(crate) id: String,
    /// Wait no longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CloseArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(crate) id: String,
    /// What becomes of its tasks, instead of what was said when it was opened
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) on_end: Option<OnEnd>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NoticesArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(crate) id: String,
    /// Go on with what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Leave them as untold
    #[arg(long, conflicts_with = "follow")]
    pub(crate) peek: bool,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LanesArgs {
    #[command(subcommand)]
    pub(crate) action: Option<LaneAction>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LaneAction {
    /// Let a fenced owner have the lane again, and free it of what is left of an ended task
    Release(ReleaseArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The lane
    #[arg(value_name = "LANE")]
    pub(crate) name: String,
    /// Only this owner; else all
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
