//! What `belay config` takes.

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) action: Option<ConfigAction>,
    /// Print it as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Print one setting's value
    #[command(after_help = "Examples:\n  belay config get retention.age")]
    Get {
        /// As in the file, with its table
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Write a setting into the file; comments in there stay
    #[command(
        after_help = "Examples:\n  belay config set defaults.silence 10m\n  belay config set daemon.max_tasks 500"
    )]
    Set {
        /// As in the file, with its table
        #[arg(value_name = "KEY")]
        key: String,
        /// As in the file; a text without its quotes
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
    },
    /// Take a setting out of the file
    #[command(after_help = "Examples:\n  belay config unset defaults.silence")]
    Unset {
        /// As in the file, with its table
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Print where the file is, or would be
    #[command(after_help = "Examples:\n  $EDITOR \"$(belay config path)\"")]
    Path,
}
