//! Every environment variable that Belay reads or sets, once, with its meaning; the name of the file of settings, and what the
//! daemon writes into its lock for clients.

/// In the home. What is set by a variable counts before what is set in there.
pub const CONFIG_FILE: &str = "config.toml";

/// In the home: the daemon's log, and its older part after a rotation.
pub const LOG_FILE: &str = "daemon.log";
pub const OLD_LOG_FILE: &str = "daemon.log.1";

/// In `daemon.lock` of the home, behind the process id: clients are to find a socket. A daemon that starts or leaves does not say so.
pub const SERVING: &str = "serving\n";

/// Where the state lives: journal, output, log. Default: `$XDG_STATE_HOME/belay`, else `~/.local/state/belay`.
pub const HOME: &str = "BELAY_HOME";

/// Where the sockets live. Default: `$BELAY_HOME/run` when a home was named, else `$XDG_RUNTIME_DIR/belay`.
pub const RUNTIME_DIR: &str = "BELAY_RUNTIME_DIR";

/// How long a daemon that holds nothing waits before it leaves, as `30m` or `never`. Read when the daemon starts.
pub const IDLE_EXIT: &str = "BELAY_IDLE_EXIT";

/// Rules for what is kept, as `age=7d,tasks=20000,output=4GiB,events=200000`. Read when the daemon starts.
pub const RETENTION: &str = "BELAY_RETENTION";

/// `off` makes the daemon do without cgroups, as on a machine that has none. Read when the daemon starts.
pub const CGROUP: &str = "BELAY_CGROUP";

/// How much the daemon writes to its log: `error`, `warn`, `info`, `debug` or `trace`, or a list that sets the level of single
/// modules, as `info,belay_daemon::shims=debug`. Default: `info`. Read when the daemon starts.
pub const LOG: &str = "BELAY_LOG";

/// The key with which one leaves a task that goes on: `ctrl-b`, `^g`, or `none`. In a foreground `belay run` it moves the task
/// to the background; at a terminal of the task's own it is a prefix, and `d` after it does.
pub const DETACH_KEY: &str = "BELAY_DETACH_KEY";

/// A point in the daemon's work at which it ends itself as `kill -9` would: for tests of recovery.
pub const CRASH_AT: &str = "BELAY_CRASH_AT";

/// Set in every task: its id.
pub const TASK: &str = "BELAY_TASK";

/// Set in every task: the home of the daemon that holds it. No daemon of that home is started from inside, because it
/// would be a part of the task and die with it.
pub const TASK_HOME: &str = "BELAY_TASK_HOME";

/// The beginning of the variables in which a hook is told of the task that has ended: `BELAY_TASK_ID`, `_STATUS` and so on.
pub const TASK_FACT: &str = "BELAY_TASK_";

/// Set in every task: the session it belongs to.
pub const SESSION: &str = "BELAY_SESSION";

/// Set in every task: a token that proves to be this task. With the token of a session, everything is done in its name.
pub const TOKEN: &str = "BELAY_TOKEN";

/// The home of the daemon that gave the token, where that is not said by `BELAY_TASK_HOME`: it is shown to no other.
pub const TOKEN_HOME: &str = "BELAY_TOKEN_HOME";

/// The real shell behind `belay shell`. Default: the first of the name it is called by, or bash, or sh, in PATH.
pub const SHELL: &str = "BELAY_SHELL";

/// Set in what `belay shell -c` runs: a shell started from there belongs to that task already, and is not made another.
pub const BRIDGED: &str = "BELAY_BRIDGED";
