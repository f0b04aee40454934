//! What the verbs about the daemon itself take.

use std::time::Duration;

use clap::Args;
use clap_complete::Shell;

use crate::duration::parse as duration;

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Let it leave when it has held nothing for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) idle_exit: Option<Duration>,
    /// Print the daemon's state as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Stop every task first
    #[arg(long)]
    pub(crate) stop_tasks: bool,
    /// How long each task may take to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "stop_tasks")]
    pub(crate) grace: Option<Duration>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}
