//! The real shells, asked as a caller would ask them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use belay_shell::{Answer, Checker, Shell, UNSET_FOR_CHECK};

pub(crate) const BASH: &str = "bash";
pub(crate) const DASH: &str = "dash";

/// Runs a program to its end, and to the end of everything that holds its output.
#[expect(
    clippy::disallowed_methods,
    reason = "these tests compare with real shells, and use nothing of ours"
)]
pub(crate) fn run(program: &str, arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    for name in UNSET_FOR_CHECK {
        command.env_remove(name);
    }
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("these tests need `{program}`, which could not be run: {error}"),
    }
}

/// Asks the shell itself; for a shell not known by name, both bash and dash, and each may refuse.
#[derive(Debug)]
pub(crate) struct Real;

impl Checker for Real {
    fn ask(&self, shell: &Shell, line: &[u8]) -> Answer {
        let Ok(line) = std::str::from_utf8(line) else { return Answer::Unasked };
        let program = shell.program().to_string_lossy();
        let asked: &[&str] = match program.as_ref() {
            BASH => &[BASH],
            DASH => &[DASH],
            _ => &[BASH, DASH],
        };
        let answers = asked.iter().map(|program| {
            let output = run(program, &["-n", "-c", line], Path::new("/"));
            Answer::from_run(output.status.success(), &output.stderr)
        });
        answers
            .fold(Answer::Accepts, |so_far, answer| if so_far == Answer::Accepts { answer } else { so_far })
    }
}
