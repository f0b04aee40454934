//! The key with which one leaves a task that goes on. For a task on pipes the terminal itself watches for it, in the place
//! of its quit key: what is typed ahead stays where it is, and nothing is read here. For one at a terminal it is a prefix.

use std::ffi::OsStr;

use belay_protocol::vars;
use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use signal_hook::consts::SIGQUIT;

use crate::caller::ProcStatus;
use crate::error::CliError;

/// Ctrl-B, as one would say it to tmux.
const DEFAULT_KEY: u8 = 0x02;

/// A terminal whose quit key is the detach key, until this is dropped.
#[derive(Debug)]
pub(super) struct DetachKey {
    before: Termios,
    pub(super) name: String,
}

impl DetachKey {
    /// None where there is no terminal, where we are in the background of it, where the key is switched off or what it sends is
    /// ignored, and where we are only part of what runs there: a script's shell, or `make`, would be hit by the key too.
    pub(super) fn take(status: ProcStatus) -> Result<Option<Self>, CliError> {
        let Some(key) = prefix()?.filter(|_| !status.ignores(SIGQUIT)) else { return Ok(None) };
        let stdin = rustix::stdio::stdin();
        // Setting a terminal from the background would stop us.
        let own = rustix::process::getpid();
        let ours = rustix::process::getpgrp() == own && tcgetpgrp(stdin).is_ok_and(|group| group == own);
        let (true, Ok(before)) = (ours, tcgetattr(stdin)) else { return Ok(None) };
        let mut with_key = before.clone();
        with_key.special_codes[SpecialCodeIndex::VQUIT] = key;
        if tcsetattr(stdin, OptionalActions::Now, &with_key).is_err() {
            return Ok(None);
        }
        Ok(Some(Self { before, name: name(key) }))
    }
}

impl Drop for DetachKey {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The key that was chosen; none if it is switched off.
pub(super) fn prefix() -> Result<Option<u8>, CliError> {
    let setting = std::env::var_os(vars::DETACH_KEY);
    parse(setting.as_deref().filter(|text| !text.is_empty()))
}

/// As people say it.
pub(super) fn name(key: u8) -> String {
    format!("Ctrl-{}", char::from(key | 0x40))
}

fn parse(setting: Option<&OsStr>) -> Result<Option<u8>, CliError> {
    let Some(setting) = setting else { return Ok(Some(DEFAULT_KEY)) };
    let text = setting.to_string_lossy().to_ascii_lowercase();
    if text == "none" {
        return Ok(None);
    }
    let letter = text.strip_prefix("ctrl-").or_else(|| text.strip_prefix('^')).map(str::as_bytes);
    match letter {
        // Those that a terminal needs itself stay what they are.
        Some([letter @ b'a'..=b'z']) if !b"cdhijmqsz".contains(letter) => Ok(Some(letter & 0x1f)),
        _ => Err(CliError::usage(format!("{} is {text:?}, which is no key for that", vars::DETACH_KEY))
            .hint("ctrl-b, or another letter that the terminal does not use itself; none switches it off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_people_do() {
        let key = |text: &str| parse(Some(OsStr::new(text))).unwrap();
        assert_eq!(parse(None).unwrap(), Some(2));
        assert_eq!([key("ctrl-b"), key("^G"), key("none")], [Some(2), Some(7), None]);
        for bad in ["", "b", "ctrl-c", "ctrl-", "^zz", "ctrl-1"] {
            assert!(parse(Some(OsStr::new(bad))).is_err(), "{bad}");
        }
    }
}
