//! What a reading says: the verdict on a line, why, where its `&` are, and the same in one sentence for people.

use std::fmt;
use std::ops::Range;

/// What was read in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub verdict: Verdict,
    /// Where the line has `&` as an operator of its own, in bytes. Not `&&`, `>&` or a quoted one; none from inside
    /// backquotes, whose text is not the line's own; and none if the line could not be taken apart.
    pub ampersands: Vec<Range<usize>>,
}

/// What is to be done with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing asynchronous can be seen in it. It runs as written; whether the shell accepts it is not promised.
    Plain,
    /// Its only top-level command is asynchronous. `command` is the line with a space where that `&` was.
    Detach { command: Vec<u8> },
    /// Something in it is asynchronous, or cannot be made out for certain: it runs as written and the tree is held.
    Held { why: Why },
    /// The shell does not accept it. It runs as written all the same, and the shell itself tells the user.
    SyntaxError { message: Option<String> },
}

/// Why a line is held rather than detached. `Display` gives a clause that follows "because".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    AmongOthers,
    InGroup,
    InFunction,
    InCompound,
    InSubstitution,
    Coprocess,
    CarriageReturn,
    NotUtf8,
    NulByte,
    TooLong,
    TooDeep,
    TookTooLong,
    Busy,
    ReaderRefused,
    ReaderFailed,
    Unclear,
    DialectsDisagree,
    ForeignShell,
    ShellNotAsked,
    ShellDisagrees,
}

impl Why {
    pub const ALL: [Self; 20] = [
        Self::AmongOthers,
        Self::InGroup,
        Self::InFunction,
        Self::InCompound,
        Self::InSubstitution,
        Self::Coprocess,
        Self::CarriageReturn,
        Self::NotUtf8,
        Self::NulByte,
        Self::TooLong,
        Self::TooDeep,
        Self::TookTooLong,
        Self::Busy,
        Self::ReaderRefused,
        Self::ReaderFailed,
        Self::Unclear,
        Self::DialectsDisagree,
        Self::ForeignShell,
        Self::ShellNotAsked,
        Self::ShellDisagrees,
    ];
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AmongOthers => "an asynchronous command stands among others in it",
            Self::InGroup => "an asynchronous command stands inside a group or subshell",
            Self::InFunction => "an asynchronous command stands inside a function",
            Self::InCompound => "an asynchronous command stands inside a loop, a condition or a case",
            Self::InSubstitution => "an asynchronous command stands inside a substitution",
            Self::Coprocess => "it starts a coprocess",
            Self::CarriageReturn => {
                "a carriage return is a character like any other to a shell, also after `&`"
            }
            Self::NotUtf8 => "it is not valid UTF-8",
            Self::NulByte => "it has a NUL byte in it",
            Self::TooLong => "it is too long to be read",
            Self::TooDeep => "it is nested too deeply to be read",
            Self::TookTooLong => "reading it took too long",
            Self::Busy => "too many lines are being read at this moment",
            Self::ReaderRefused => "the shell accepts it and the reader does not",
            Self::ReaderFailed => "the reader failed on it",
            Self::Unclear => "it has a construct that shells and readers take in different ways",
            Self::DialectsDisagree => "it means one thing in bash and another in a POSIX shell",
            Self::ForeignShell => "the shell is of another family, where `&` may mean anything",
            Self::ShellNotAsked => "the shell could not be asked whether it accepts it",
            Self::ShellDisagrees => "without the `&` it would not be the same command",
        })
    }
}

/// One sentence, for people and for models, on what is done with the `&` of a line.
pub fn explain(reading: &Reading) -> String {
    match &reading.verdict {
        Verdict::Plain => "Runs as written: no `&` in it starts anything in the background.".to_owned(),
        Verdict::Detach { .. } => {
            "`&` is not needed: the command becomes a detached task of its own, listed, readable and stoppable."
                .to_owned()
        }
        Verdict::Held { why } => format!(
            "Runs as written, because {why}; what it leaves behind is held under the task, listed and stoppable."
        ),
        Verdict::SyntaxError { message: None } => {
            "The shell does not accept this line; it runs as written, and the shell says what is wrong."
                .to_owned()
        }
        Verdict::SyntaxError { message: Some(message) } => {
            format!("The shell does not accept this line ({message}); it runs as written.")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_why_has_a_sentence_of_its_own() {
        let sentences: BTreeSet<String> = Why::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(sentences.len(), Why::ALL.len());
        for why in Why::ALL {
            let text = explain(&Reading { verdict: Verdict::Held { why }, ampersands: Vec::new() });
            assert!(text.starts_with("Runs as written, because ") && text.ends_with('.'), "{text}");
        }
    }

    // proves A5
    #[test]
    fn the_other_verdicts_are_told_too() {
        let told = |verdict| explain(&Reading { verdict, ampersands: Vec::new() });
        assert!(told(Verdict::Plain).contains("no `&`"));
        assert!(told(Verdict::Detach { command: Vec::new() }).starts_with("`&` is not needed"));
        assert!(told(Verdict::SyntaxError { message: None }).contains("does not accept"));
        assert!(told(Verdict::SyntaxError { message: Some("line 1: oh".to_owned()) }).contains("line 1: oh"));
    }
}
