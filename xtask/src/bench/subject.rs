//! The binaries under test: which there are in a run, and how many rounds a work has with each.

use std::path::{Path, PathBuf};

use super::world::exe;
use crate::run::Outcome;

/// Which of the binaries of a comparison this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    New,
    Old,
    /// The old binary once more: its difference from [`Role::Old`] is noise.
    OldAgain,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Old => "old",
            Self::OldAgain => "old again",
        }
    }
}

/// One binary under test.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) role: Role,
    pub(crate) exe: PathBuf,
    /// The build of this tool that belongs to the binary, if it is another one.
    pub(crate) tool: Option<PathBuf>,
    /// The rounds are outside: a work is run once a round for each binary.
    pub(crate) is_compared: bool,
}

impl Subject {
    /// The binary that was built with this tool, measured alone.
    pub(crate) fn alone() -> Outcome<Self> {
        Ok(Self { role: Role::New, exe: exe()?, tool: None, is_compared: false })
    }

    /// The binary that was built with this tool, another one, and that one again if noise is to be measured. If a build of this
    /// tool lies beside the other binary, that binary is measured with it.
    pub(crate) fn compared(old: &Path, with_noise: bool) -> Outcome<Vec<Self>> {
        let old = old.canonicalize().map_err(|error| format!("{}: {error}", old.display()))?;
        let tool = Some(old.with_file_name("xtask")).filter(|tool| tool.exists());
        let subject = |role, exe, tool| Self { role, exe, tool, is_compared: true };
        let mut subjects =
            vec![subject(Role::New, exe()?, None), subject(Role::Old, old.clone(), tool.clone())];
        if with_noise {
            subjects.push(subject(Role::OldAgain, old, tool));
        }
        Ok(subjects)
    }

    /// How many rounds a work has inside.
    pub(crate) const fn rounds(&self, alone: usize) -> usize {
        if self.is_compared { 1 } else { alone }
    }
}
