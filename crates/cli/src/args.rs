//! The command line, defined once: parsing, help and completions all come from here. Nothing is done here.

mod config;
mod daemon;
pub(crate) mod filter;
mod limits;
mod logs;
pub(crate) mod owners;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use belay_protocol::lane::LaneParams;
use belay_protocol::task::StallParams;
use clap::{Arg, Args, Command, FromArgMatches as _, ValueEnum};

pub(crate) use self::config::{ConfigAction, ConfigArgs};
pub(crate) use self::daemon::{
    CompletionsArgs, DaemonLogArgs, DoctorArgs, DownArgs, EventsArgs, GcArgs, LogLevel, RmArgs, StatusArgs,
    UpArgs,
};
pub(crate) use self::filter::PsArgs;
use self::filter::{Label, label};
pub(crate) use self::limits::{BudgetArgs, Limit, limit, number};
pub(crate) use self::logs::{LogsArgs, Stream};
use self::owners::{LanesArgs, SessionsArgs};
use crate::commands::lanes::parse as lane;
use crate::duration::{parse as duration, parse_size as size, parse_stall as stall};
use crate::keys::{Key, parse as key};

macro_rules! verbs {
    ($( $name:literal $variant:ident($args:ty), $about:literal, $examples:literal; )*) => {
        /// A command that was understood.
        #[derive(Debug)]
        pub(crate) enum Verb { $( $variant($args), )* }

        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$( $name ),*];

        /// The whole command line. What a verb takes is built only when that verb is used, or shown.
        pub(crate) fn command() -> Command {
            let command = base();
            $(
                let command = command.subcommand(
                    Command::new($name)
                        .about($about)
                        .after_help(concat!("Examples:\n", $examples))
                        .defer(|command| take_hyphens(<$args as Args>::augment_args(command))),
                );
            )*
            command
        }

        pub(crate) fn parse(args: &[OsString]) -> Result<Verb, clap::Error> {
            let matches = command().try_get_matches_from(args)?;
            match matches.subcommand() {
                $( Some(($name, found)) => Ok(Verb::$variant(<$args>::from_arg_matches(found)?)), )*
                _ => Err(command().error(clap::error::ErrorKind::MissingSubcommand, "a command is missing")),
            }
        }
    };
}

verbs! {
    "run" Run(Box<RunArgs>), "Run a command as a task: here in the foreground, or detached with -d",
    "  belay run -- cargo test                   here, with its output and its exit code
  belay run -d --name web -- npm run dev    in the background; prints the id
  belay run -d -c 'make && make check'      a line for the shell
  belay run --timeout 10m -- ./long-job     stopped after ten minutes; exit code 124
  belay run --max-memory 2G --max-output 100M -- ./untested
  belay run --explain -c 'a & b'            what would be done with the &; runs nothing
  belay run --pty -- vim notes              at a terminal of its own; Ctrl-B d leaves it running";
    "ps" Ps(PsArgs), "List the tasks that run",
    "  belay ps            what runs now
  belay ps -a         ended tasks too
  belay ps --tree     what was started by what
  belay ps --status failed --label team=web
  belay ps --json     one object a line, for scripts";
    "inspect" Inspect(InspectArgs), "Show everything about one task",
    "  belay inspect sh-4f
  belay inspect sh-4f --json";
    "logs" Logs(LogsArgs), "Show what a task wrote; `belay daemon-log` shows the daemon's own log",
    "  belay logs sh-4f                      all of it
  belay logs sh-4f --head 20            the first lines
  belay logs sh-4f -f --tail 20         the last lines, and what comes
  belay logs sh-4f --brief              its state, and the head and tail of its output
  belay logs sh-4f --grep 'error|warn' --context 2
  belay logs sh-4f --stream stderr --raw > errors.bin";
    "wait" Wait(WaitArgs), "Wait until tasks have ended, have written something, or have fallen silent",
    "  belay wait sh-4f                ends with the task's own exit code
  belay wait sh-4f sh-9a          0 if all of them completed
  belay wait sh-4f --timeout 30s  1 if it still runs then
  belay wait sh-4f sh-9a --any 1  the first of them
  belay wait sh-4f --match 'listening on port [0-9]+' --timeout 1m
  belay wait sh-4f --silence 5s   0 as soon as it has written nothing for so long";
    "stop" Stop(StopArgs), "Stop tasks, the whole process tree, and say that they are gone",
    "  belay stop sh-4f                          SIGTERM, and SIGKILL after the grace
  belay stop sh-4f sh-9a --grace 2s
  belay stop sh-4f --kill --reason 'runs away'
  belay stop sh-4f --cascade                with everything that it has started through Belay, leaf first
  belay stop sh-4f --dry-run                what would be stopped; stops nothing";
    "detach" Detach(DetachArgs), "Move tasks from the foreground to the background; nothing else about them changes",
    "  belay detach sh-4f       whoever waits for it is released, and it runs on";
    "attach" Attach(AttachArgs), "Go to a task that runs: see its screen, type to it, and leave again",
    "  belay attach sh-4f       its screen as it is now, with run --pty; Ctrl-B d leaves it running
  belay attach sh-4f       without a terminal: its last lines and what comes; Ctrl-C interrupts it, Ctrl-B leaves";
    "send" Send(SendArgs), "Write to the standard input of a task that has one, or press keys at its terminal",
    "  belay send sh-4f yes              the word and a line end
  belay send sh-4f - < answers      our standard input
  belay send sh-4f --eof            close it; at a terminal, type Ctrl-D
  belay send sh-4f ':wq' --key enter
  belay send sh-4f --key ctrl-c --key up --key enter";
    "signal" Signal(SignalArgs), "Send one signal to tasks, and nothing after it",
    "  belay signal USR1 sh-4f        to the process group that its first process began
  belay stop sh-4f               is how to end one";
    "shell" Shell(ShellArgs), "Be a shell whose every command is a task: for agents that let one choose theirs",
    "  belay shell -c 'make test'                       as bash -c would, and listed in belay ps
  ln -s \"$(command -v belay)\" ~/bin/belay-bash/bash; CLAUDE_CODE_SHELL=~/bin/belay-bash/bash claude
  BELAY_SHELL=/bin/dash belay shell script.sh      with another real shell behind it";
    "rm" Rm(RmArgs), "Forget ended tasks and their output",
    "  belay rm sh-4f sh-9a";
    "gc" Gc(GcArgs), "Remove what the rules of retention no longer keep",
    "  belay gc --dry-run     what would go
  belay gc --all         every ended task";
    "events" Events(EventsArgs), "Show what happened, in order",
    "  belay events
  belay events -f --after 120
  belay events -f --type task.ended --session review
  belay events --json | jq 'select(.type == \"task.ended\")'";
    "sessions" Sessions(SessionsArgs), "List sessions, open them, hold them, wait for them, end them",
    "  belay sessions
  eval \"$(belay sessions open --name review --export)\"   every later command here is in it
  belay sessions run --max-tasks 20 -- claude              what it starts ends with it
  belay sessions wait review --timeout 10m                 until nothing in it works any more
  belay sessions close review --reason 'done for today'";
    "lanes" Lanes(LanesArgs), "List lanes: who holds them, who waits, who may not have them",
    "  belay run -d --lane member-1 -- ./job          refused while somebody holds it
  belay run -d --lane member-1:queue -- ./job    waits for its turn
  belay lanes
  belay lanes release member-1                   lets in again whose task was stopped by somebody else";
    "up" Up(UpArgs), "Start the daemon; every command does that by itself when it is needed",
    "  belay up
  belay up --idle-exit 30m     let it leave after half an hour with nothing to hold";
    "down" Down(DownArgs), "End the daemon; tasks run on unless --stop-tasks is given",
    "  belay down
  belay down --stop-tasks --grace 5s";
    "status" Status(StatusArgs), "Show how the daemon is",
    "  belay status
  belay status --json";
    "doctor" Doctor(DoctorArgs), "Look for what is wrong, and say what to do",
    "  belay doctor";
    "daemon-log" DaemonLog(DaemonLogArgs), "Show the daemon's own log; `belay logs` shows the output of a task",
    "  belay daemon-log -n 20             the last lines: starts, adoptions, stops, refusals, faults
  belay daemon-log -f --level warn   wait for what goes wrong
  BELAY_LOG=debug belay up           start a daemon that logs more";
    "config" Config(ConfigArgs), "Show the settings and where each comes from, and change them",
    "  belay config                                all of them
  belay config set defaults.timeout 30m       for every task from now on that does not say otherwise
  belay config set hooks.on_end '[\"notify-send\", \"a task ended\"]'
  belay config unset defaults.timeout
  $EDITOR \"$(belay config path)\"";
    "completions" Completions(CompletionsArgs), "Print completions for a shell",
    "  belay completions bash > ~/.local/share/bash-completion/completions/belay
  belay completions zsh > ~/.zfunc/_belay
  belay completions fish > ~/.config/fish/completions/belay.fish";
}

/// Lets a number, a length of time or a size begin with a hyphen, so that whoever tries is told what it should be, and not
/// that there is no such option.
fn take_hyphens(command: Command) -> Command {
    let is_quantity = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default().iter();
        let mut names = names.map(|name| name.split_once('[').map_or(name.as_str(), |(name, _)| name));
        !arg.is_positional() && !arg.is_require_equals_set() && names.any(|name| QUANTITIES.contains(&name))
    };
    command
        .mut_args(|arg| if is_quantity(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(take_hyphens)
}

/// The names of values that are quantities.
const QUANTITIES: [&str; 6] = ["DURATION", "SIZE", "N", "LINES", "OFFSET", "SEQ"];

fn base() -> Command {
    Command::new("belay")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Owns every process a coding agent starts: lists them, reads them, stops them, and can say that they are gone")
        .after_help(
            "Examples:
  belay run -d --name web -- npm run dev    start something in the background
  belay logs web -f                         see what it writes
  belay stop web                            end it, and know that it is gone

A task is named by its id, by an unambiguous beginning of it, or by the name that it was given.
BELAY_HOME (state) and BELAY_RUNTIME_DIR (sockets) move everything.

Exit codes:
  0      done
  1      the answer is no: not found, refused, not so in time
  2      the command line was not understood
  3      a stop failed: something survives it
  4      the daemon could not be reached or started
run, wait and attach, of one task, end with its own code, or with
  124    a clock has stopped it
  126    it could not be started; 127 if its program was not found, also with run -d
  128+N  it died of signal N; 130 also if it was stopped and has no code of its own",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(false)
        .max_term_width(100)
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Do not wait: print the id and leave the task running
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// A line for the shell, instead of a command
    #[arg(short = 'c', value_name = "LINE", conflicts_with = "command")]
    pub(crate) line: Option<OsString>,
    /// Run nothing: say what would be done with the line, and with every & in it
    #[arg(long, requires = "line", conflicts_with_all = ["detach", "stdin", "token"])]
    pub(crate) explain: bool,
    /// The shell for -c; else bash where there is one, else sh
    #[arg(long, value_name = "SHELL", requires = "line")]
    pub(crate) shell: Option<OsString>,
    /// A name to know it by, wherever a command takes an id: it means the task of that name that lives, or else the last
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<OsString>,
    /// Put a label on the task, to find it and its events by; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,
    /// Where to run it; else here
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable in its environment
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<OsString>,
    /// Stop it when it has run so long; `none` for no limit although a setting gives one
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    pub(crate) timeout: Option<Limit>,
    /// What the timeout does while somebody waits for it; stop, unless a setting says otherwise
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) on_timeout: Option<OnTimeout>,
    /// What happens to it when this command dies without a word
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnDisconnect::Detach)]
    pub(crate) on_disconnect: OnDisconnect,
    /// Look so often whether it gets on; tell when it does not, or with :stop, stop it
    #[arg(long, value_name = "DURATION[:tell|:stop]", value_parser = stall)]
    pub(crate) stall: Option<StallParams>,
    /// Stop it when it has been detached so long, or `none`
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    pub(crate) ttl: Option<Limit>,
    /// Stop it when it has written nothing for so long, or `none`
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    pub(crate) silence: Option<Limit>,
    /// How long it may take to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Run it again, at most N times, when it fails by itself; it stays one task, with one log
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) retry: Option<u32>,
    /// How long after each failure; else 1s
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "retry")]
    pub(crate) retry_delay: Option<Duration>,
    /// Give it a standard input: ours, or with -d what `belay send` writes
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Run it at a terminal of its own: ours here in the foreground, else one of 24 rows and 80 columns
    #[arg(long)]
    pub(crate) pty: bool,
    /// Let standard error go where standard output goes, in the order in which both are written
    #[arg(long)]
    pub(crate) merge: bool,
    /// Hold this lane alone; what happens if somebody does: it is refused, waits, or replaces the holder
    #[arg(long, value_name = "NAME[:reject|queue|replace]", value_parser = lane)]
    pub(crate) lane: Option<LaneParams>,
    /// The session it belongs to; else the one we are in
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Let it outlive its session
    #[arg(long)]
    pub(crate) keep: bool,
    /// Two runs with the same token are one task
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// How much of its output is kept
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) output_limit: Option<u64>,
    #[command(flatten)]
    pub(crate) budgets: BudgetArgs,
    /// A line for the shell to run once when it has ended, with what there is to know in `BELAY_TASK_STATUS` and
    /// its like
    #[arg(long, value_name = "LINE")]
    pub(crate) notify: Option<String>,
    /// Print the task as JSON; in the foreground when it has ended, and its output is not shown
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// A run of this command with nothing said about it.
    pub(crate) fn of(command: Vec<OsString>) -> Self {
        let words = ["run".into(), "--".into()].into_iter().chain(command);
        let parsed = Self::augment_args(Command::new("run")).try_get_matches_from(words);
        match parsed.and_then(|found| Self::from_arg_matches(&found)) {
            Ok(args) => args,
            // A command behind `--` is always understood.
            Err(error) => error.exit(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fence {
    Auto,
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    Stop,
    Detach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDisconnect {
    Detach,
    Stop,
}

#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Until so many of them are done with, whichever are first; else all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) any: Option<u32>,
    /// Until a line of the output matches this regular expression; what is there already counts. A line that has no end
    /// yet, such as a prompt, counts when nothing has followed for 0.3 s; one longer than 1 MiB is searched in parts
    #[arg(long = "match", value_name = "REGEX")]
    pub(crate) matching: Option<String>,
    /// Look for the match from this absolute offset on
    #[arg(
        long,
        value_name = "OFFSET",
        value_parser = number,
        requires = "matching",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) after: u64,
    /// Look for the match in one of the two streams only
    #[arg(long, value_name = "STREAM", requires = "matching")]
    pub(crate) stream: Option<Stream>,
    /// Until nothing was written for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) silence: Option<Duration>,
    /// Wait until the command runs (exit code 1 if it could not be started)
    #[arg(long, conflicts_with_all = ["matching", "silence"])]
    pub(crate) started: bool,
    /// Wait no longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Let it finish what it has in hand
    #[arg(long, group = "level")]
    pub(crate) drain: bool,
    /// Begin with SIGINT
    #[arg(long, group = "level")]
    pub(crate) interrupt: bool,
    /// SIGKILL at once
    #[arg(long, group = "level")]
    pub(crate) kill: bool,
    /// First everything that it has started through Belay, leaf first
    #[arg(long)]
    pub(crate) cascade: bool,
    /// Stop nothing: show the processes that would be signalled, the tasks below, and what would happen to the lane
    #[arg(long, conflicts_with = "level")]
    pub(crate) dry_run: bool,
    /// Whether the owner of the task is fenced from its lane; auto: if you are not the owner
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) fence: Fence,
    /// How long each step may take before the next
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// What to write, with a line end after it unless keys follow; `-` for our standard input
    #[arg(value_name = "TEXT", required_unless_present_any = ["eof", "key"], allow_hyphen_values = true)]
    pub(crate) text: Option<OsString>,
    /// A key to press at its terminal after the text, as xterm sends it; may be given again: enter, tab, esc, space,
    /// backspace, delete, insert, up, down, left, right, home, end, pageup, pagedown, f1 to f12, ctrl-LETTER, alt-LETTER
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Vec<Key>,
    /// Close its standard input afterwards; at a terminal, type its end-of-file character once
    #[arg(long)]
    pub(crate) eof: bool,
    /// No line end after the text
    #[arg(short = 'n', long)]
    pub(crate) no_newline: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SignalArgs {
    /// INT, TERM, USR1, or a number
    #[arg(value_name = "SIGNAL")]
    pub(crate) signal: String,
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShellArgs {
    /// What the real shell is given, as it stands
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<OsString>,
}
