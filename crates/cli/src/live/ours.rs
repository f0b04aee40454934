//! Our own terminal: whether it is ours to use, its size, and raw mode, in which every key goes to the task. It is put back
//! however we end.

use belay_protocol::task::TerminalSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

use super::modes::Modes;
use crate::error::CliError;

/// A terminal on standard input and output that we are in the foreground of.
#[derive(Debug)]
pub(crate) struct Ours {
    before: Termios,
}

impl Ours {
    pub(crate) fn find() -> Option<Self> {
        let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        if !isatty(stdout) {
            return None;
        }
        let before = tcgetattr(stdin).ok()?;
        // From the background it would stop us to change anything.
        let ours = tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp());
        ours.then_some(Self { before })
    }

    pub(super) fn make_raw(self) -> Result<Raw, CliError> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)
            .map_err(|errno| CliError::io("set up the terminal", &errno.into()))?;
        Ok(Raw { before: self.before, modes: Modes::default() })
    }
}

/// Our terminal in raw mode, until this is dropped.
#[derive(Debug)]
pub(super) struct Raw {
    before: Termios,
    /// What the task has changed about the terminal.
    pub(super) modes: Modes,
}

impl Raw {
    /// Puts it back. Whoever goes while the task is at it begins on a line of their own.
    pub(super) fn give_back(self, amid: bool) {
        let own_line = amid && !self.modes.in_alternate_screen();
        drop(self);
        if own_line {
            write(b"\n");
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        write(&self.modes.undo());
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// To a terminal that may be gone: then there is nothing to put back.
fn write(mut bytes: &[u8]) {
    while let Ok(length @ 1..) = rustix::io::write(rustix::stdio::stdout(), bytes) {
        bytes = &bytes[length..];
    }
}

/// The size of our terminal.
pub(super) fn size() -> TerminalSize {
    window().unwrap_or(TerminalSize::USUAL)
}

fn window() -> Option<TerminalSize> {
    let size = tcgetwinsize(rustix::stdio::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize { rows: size.ws_row, cols: size.ws_col })
}

/// What a new task's terminal is to have: the size of ours, or what the environment says, or what is usual.
pub(crate) fn size_for_task() -> TerminalSize {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u16>().ok().filter(|number| *number > 0);
    window().unwrap_or_else(|| TerminalSize {
        rows: number("LINES").unwrap_or(TerminalSize::USUAL.rows),
        cols: number("COLUMNS").unwrap_or(TerminalSize::USUAL.cols),
    })
}
