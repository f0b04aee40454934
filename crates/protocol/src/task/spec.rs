//! What a task runs: a shell command or an agent. What tasks of both kinds have is in `TaskStartParams` and `TaskInfo`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::shell::LineInfo;

/// The kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    Shell,
    Agent,
}

/// What to run, tagged by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskSpec {
    /// A command.
    Shell(ShellSpec),
    /// A coding agent that speaks ACP on its standard input and output.
    Agent(AgentSpec),
}

impl TaskSpec {
    pub const fn shell(&self) -> Option<&ShellSpec> {
        match self {
            Self::Shell(shell) => Some(shell),
            Self::Agent(_) => None,
        }
    }

    pub const fn shell_mut(&mut self) -> Option<&mut ShellSpec> {
        match self {
            Self::Shell(shell) => Some(shell),
            Self::Agent(_) => None,
        }
    }

    /// The size of the task's terminal; none if it gets no terminal.
    pub fn pty(&self) -> Option<TerminalSize> {
        self.shell().and_then(|shell| shell.pty)
    }

    pub const fn kind(&self) -> TaskKind {
        match self {
            Self::Shell(_) => TaskKind::Shell,
            Self::Agent(_) => TaskKind::Agent,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellSpec {
    pub command: ShellCommand,
    /// Give the command a standard input that `task/write` writes to; else it reads an empty file.
    #[serde(default)]
    pub stdin: bool,
    /// Run the command at a terminal of its own, of this size, instead of pipes. Everything it writes is then one stream, and it
    /// has a standard input, whatever `stdin` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Take the command's standard input as a descriptor from this abstract Unix socket of the caller's: the task's shim connects
    /// and receives it with one byte of anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_from: Option<String>,
    /// Send standard error where standard output goes, so that both are in the order in which they were written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
}

impl From<ShellCommand> for TaskSpec {
    /// The command with an empty standard input, on pipes.
    fn from(command: ShellCommand) -> Self {
        Self::Shell(command.into())
    }
}

impl From<ShellSpec> for TaskSpec {
    fn from(shell: ShellSpec) -> Self {
        Self::Shell(shell)
    }
}

impl From<ShellCommand> for ShellSpec {
    /// The command with an empty standard input, on pipes.
    fn from(command: ShellCommand) -> Self {
        Self { command, stdin: false, pty: None, stdin_from: None, merge: false }
    }
}

/// The command to run, tagged by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ShellCommand {
    /// A program and its arguments.
    Argv { argv: Vec<Bytes> },
    /// A line for a shell.
    Line {
        line: Bytes,
        /// Default: bash where there is one, else sh.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shell: Option<Bytes>,
    },
}

impl ShellCommand {
    /// A program and its arguments.
    pub fn argv<W: Into<Bytes>>(argv: impl IntoIterator<Item = W>) -> Self {
        Self::Argv { argv: argv.into_iter().map(Into::into).collect() }
    }
}

/// The size of a terminal, in characters. Neither is ever 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl TerminalSize {
    /// The size of a terminal that is shown nowhere.
    pub const USUAL: Self = Self { rows: 24, cols: 80 };
}

/// Who decides on the permission requests of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionPolicy {
    /// A client or a person.
    #[default]
    Ask,
    /// Every request is allowed, once.
    Allow,
    /// Every request is denied.
    Deny,
}

/// An agent to run. This version refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The name of a known agent, or of the agent that `argv` runs.
    pub agent: String,
    /// The command that runs the agent. Default: that of the known agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<Bytes>,
    /// The first prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Keep the agent after its turn, idle, for more prompts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stay: bool,
    #[serde(default)]
    pub permissions: PermissionPolicy,
}

/// What is particular to tasks of one kind, tagged by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskSpecInfo {
    Shell(ShellInfo),
    Agent(AgentInfo),
}

impl TaskSpecInfo {
    pub const fn kind(&self) -> TaskKind {
        match self {
            Self::Shell(_) => TaskKind::Shell,
            Self::Agent(_) => TaskKind::Agent,
        }
    }

    pub const fn shell(&self) -> Option<&ShellInfo> {
        match self {
            Self::Shell(shell) => Some(shell),
            Self::Agent(_) => None,
        }
    }

    pub const fn shell_mut(&mut self) -> Option<&mut ShellInfo> {
        match self {
            Self::Shell(shell) => Some(shell),
            Self::Agent(_) => None,
        }
    }

    /// The program of the leader and its arguments.
    pub fn argv(&self) -> &[Bytes] {
        match self {
            Self::Shell(shell) => &shell.argv,
            Self::Agent(agent) => &agent.argv,
        }
    }

    /// The size of the task's terminal; none if it has no terminal.
    pub const fn pty(&self) -> Option<TerminalSize> {
        match self {
            Self::Shell(shell) => shell.pty,
            Self::Agent(_) => None,
        }
    }

    /// What was done with the `&` of a shell line.
    pub const fn line(&self) -> Option<&LineInfo> {
        match self {
            Self::Shell(shell) => shell.line.as_ref(),
            Self::Agent(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShellInfo {
    pub argv: Vec<Bytes>,
    /// What was done with the `&` of a shell line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<LineInfo>,
    /// The size of its terminal now, or its last; none if it runs on pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentInfo {
    /// The name of the agent.
    pub agent: String,
    pub argv: Vec<Bytes>,
    /// It is kept after its turn, idle, for more prompts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stay: bool,
}
