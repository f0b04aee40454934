//! The question put to the real shell: does it accept this line? The caller asks it; nothing is started here.

use crate::shell::Shell;

/// Variables that make a shell run files of their own before the line, and so must not be set when it is asked.
pub const UNSET_FOR_CHECK: [&str; 2] = ["BASH_ENV", "ENV"];

/// How much of a shell's complaint is kept, in characters.
const MAX_MESSAGE: usize = 300;

/// What the real shell says to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepts,
    /// It is a syntax error, in the shell's own words where it had any.
    Refuses {
        message: Option<String>,
    },
    /// It could not be asked: missing, too slow, killed.
    Unasked,
}

impl Answer {
    /// The answer from a run of `SHELL -n -c LINE` that ended by itself: whether its exit code was 0, and its stderr.
    /// Both are needed, because bash exits 0 after some syntax errors in `[[ … ]]`.
    pub fn from_run(exited_zero: bool, stderr: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stderr);
        let said = || text.lines().filter(|line| !line.is_empty() && !line.contains("warning:"));
        // Others speak there too: the loader, a library that was loaded before.
        let complaint = said().find(|line| is_about_syntax(line));
        if exited_zero && complaint.is_none() {
            return Self::Accepts;
        }
        let message = complaint.or_else(|| said().next());
        Self::Refuses { message: message.map(|line| line.chars().take(MAX_MESSAGE).collect()) }
    }
}

fn is_about_syntax(line: &str) -> bool {
    ["syntax error", "unexpected", ": line "].iter().any(|words| line.to_lowercase().contains(words))
}

/// Asks the shell that will run a line whether it accepts it, without running it: the line after
/// [`Shell::arguments_to_read`], with [`UNSET_FOR_CHECK`] unset, nothing on stdin, and a limit of time.
pub trait Checker {
    fn ask(&self, shell: &Shell, line: &[u8]) -> Answer;
}

impl<F: Fn(&Shell, &[u8]) -> Answer> Checker for F {
    fn ask(&self, shell: &Shell, line: &[u8]) -> Answer {
        self(shell, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_a_refusal_whatever_the_exit_code() {
        let refused = |text: &str| Answer::Refuses { message: Some(text.to_owned()) };
        assert_eq!(Answer::from_run(true, b""), Answer::Accepts);
        assert_eq!(Answer::from_run(false, b""), Answer::Refuses { message: None });
        assert_eq!(Answer::from_run(false, b"sh: 1: bad\nmore\n"), refused("sh: 1: bad"));
        assert_eq!(Answer::from_run(true, b"bash: syntax error\n"), refused("bash: syntax error"));
        assert_eq!(Answer::from_run(true, b"bash: warning: here-document\n"), Answer::Accepts);
        // What somebody else says is no word of the shell's.
        assert_eq!(Answer::from_run(true, b"ERROR: ld.so: object cannot be preloaded\n"), Answer::Accepts);
        assert_eq!(
            Answer::from_run(false, b"noise\nsh: 1: Syntax error: \")\"\n"),
            refused("sh: 1: Syntax error: \")\"")
        );
    }
}
