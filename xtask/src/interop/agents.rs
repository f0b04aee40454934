//! The agents that are tried: where each comes from, how one turn of it is run without anybody to ask, and how its shell
//! tool is called. What is checked of them is in `checks`.

use std::path::Path;
use std::process::Command;

use belay_os::Signal;
use serde_json::{Value, json};

use super::model::{Model, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    Claude,
    OpenCode,
}

/// A package of npm, and the program in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) program: &'static str,
}

/// What the agents run on. With an older one npm takes an older agent without a word.
pub(crate) const NODE: Package = Package { name: "node", version: "24", program: "node" };

impl Agent {
    pub(crate) const ALL: &[Self] = &[Self::Claude, Self::OpenCode];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::OpenCode => "opencode",
        }
    }

    pub(crate) fn package(self) -> Package {
        match self {
            Self::Claude => {
                Package { name: "@anthropic-ai/claude-code", version: "2.1.325", program: self.name() }
            }
            Self::OpenCode => Package { name: "opencode-ai", version: "1.18.33", program: self.name() },
        }
    }

    /// How whoever gives a running turn up tells the agent.
    pub(crate) fn cancels(self) -> &'static [(&'static str, Signal)] {
        match self {
            Self::Claude => &[("SIGINT", Signal::INT), ("SIGTERM", Signal::TERM)],
            Self::OpenCode => &[("SIGTERM", Signal::TERM)],
        }
    }

    /// One call of its shell tool.
    pub(crate) fn shell(self, line: &str) -> Step {
        match self {
            Self::Claude => call("Bash", json!({"command": line, "description": "try the shell"})),
            Self::OpenCode => call("bash", json!({"command": line, "description": "try the shell"})),
        }
    }

    /// The same in the background, where the tool has that.
    pub(crate) fn shell_in_background(self, line: &str) -> Option<Step> {
        match self {
            Self::Claude => {
                let arguments =
                    json!({"command": line, "description": "try the shell", "run_in_background": true});
                Some(call("Bash", arguments))
            }
            Self::OpenCode => None,
        }
    }

    /// One turn: with this shell and this model, and with nobody to answer questions.
    pub(crate) fn turn(self, program: &Path, shell: &Path, model: &Model) -> Command {
        let mut command = Command::new(program);
        match self {
            Self::Claude => {
                command.args(["-p", "--dangerously-skip-permissions", "--output-format", "stream-json"]);
                command.env("CLAUDE_CODE_SHELL", shell);
                command.env("ANTHROPIC_BASE_URL", model.address()).env("ANTHROPIC_API_KEY", "none");
                command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
                // Otherwise it hides its tools until they are searched for, and refuses to ask nobody as root.
                command.env("ENABLE_TOOL_SEARCH", "false").env("IS_SANDBOX", "1");
                command.arg("--verbose");
            }
            Self::OpenCode => {
                command.args(["run", "--format", "json"]);
                command.env("SHELL", shell);
                command.env("OPENCODE_CONFIG_CONTENT", opencode_settings(model).to_string());
                for off in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
                    command.env(format!("OPENCODE_DISABLE_{off}"), "1");
                }
            }
        }
        command.arg("Do what the script says.");
        command
    }
}

fn call(tool: &'static str, arguments: Value) -> Step {
    Step::Call { tool, arguments }
}

fn opencode_settings(model: &Model) -> Value {
    let limit = json!({"context": 100_000, "output": 8_000});
    json!({
        "model": "scripted/model", "small_model": "scripted/model",
        "permission": "allow", "autoupdate": false, "share": "disabled",
        "provider": {"scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": format!("{}/v1", model.address()), "apiKey": "none"},
            "models": {"model": {"name": "model", "tool_call": true, "limit": limit}},
        }},
    })
}
