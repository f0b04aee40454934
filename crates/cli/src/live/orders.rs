//! What was done to us and is passed on: signals, the detach key, the size of our window.

use std::time::Instant;

use belay_protocol::life::StopLevel;
use belay_protocol::methods::{TaskDetach, TaskResize, TaskSignal, TaskStop};
use belay_protocol::task::{StopFence, TaskDetachParams, TaskResizeParams, TaskSignalParams, TaskStopParams};

use super::engine::{Detach, Left, Live};
use super::ours;
use super::signals::Heard;
use crate::error::CliError;

impl Live<'_> {
    /// Ctrl-C asks once, insists, then kills.
    pub(super) fn hear(&mut self) {
        let heard = self.signals.take();
        if heard.resizes > 0 && self.raw.is_some() {
            self.size = Some(ours::size());
        }
        if self.is_shell() {
            return self.hear_as_shell(heard);
        }
        if heard.hangups > 0 {
            self.left.get_or_insert(Left::HungUp);
        }
        if heard.quits > 0 {
            self.leave_by_key();
        }
        for _ in 0..heard.interrupts {
            self.interrupts += 1;
            let (level, said) = match self.interrupts {
                1 => (StopLevel::Interrupt, "interrupting; once more to terminate it"),
                2 => (StopLevel::Terminate, "terminating; once more to kill it"),
                _ => (StopLevel::Kill, "killing"),
            };
            if self.interrupts <= 3 {
                self.say(&format!("belay: {said}"));
            }
            self.want(level);
        }
        if heard.terminates > 0 && self.is_viewer() {
            self.left.get_or_insert(Left::Told);
        } else if heard.terminates > 0 {
            self.say("belay: terminating");
            self.want(StopLevel::Terminate);
        }
    }

    /// What asks a shell to end ends the whole task, so that nothing of it is left; everything else goes on to the task as
    /// it is, and it may make of it what it likes.
    fn hear_as_shell(&mut self, heard: Heard) {
        for (times, signal) in [
            (heard.interrupts, "INT"),
            (heard.quits, "QUIT"),
            (heard.users[0], "USR1"),
            (heard.users[1], "USR2"),
        ] {
            if times > 0 {
                self.passed_on.push(signal);
            }
        }
        if heard.terminates > 0 || heard.hangups > 0 {
            self.want(StopLevel::Terminate);
        }
    }

    pub(super) fn give_signals(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone().filter(|_| self.last.is_none()) else { return Ok(()) };
        for signal in std::mem::take(&mut self.passed_on) {
            self.client
                .send::<TaskSignal>(&TaskSignalParams { id: id.clone(), signal: signal.to_owned() })?;
        }
        Ok(())
    }

    /// Somebody here has seen enough. Whoever looks on just goes; the caller is released by the daemon.
    pub(super) fn leave_by_key(&mut self) {
        if self.is_viewer() {
            self.left.get_or_insert(Left::ByKey);
        } else if self.detach == Detach::No {
            self.detach = Detach::Wanted;
        }
    }

    pub(super) fn want(&mut self, level: StopLevel) {
        let harder = self.order.is_none_or(|(before, _)| rank(level) > rank(before));
        if harder {
            self.order = Some((level, false));
        }
    }

    pub(super) fn give_order(&mut self) -> Result<(), CliError> {
        let (Some((level, false)), Some(id)) = (self.order, &self.id) else { return Ok(()) };
        if self.last.is_some() {
            return Ok(());
        }
        let reason = if self.broken.is_some() {
            "its output could not be written"
        } else if self.interrupts > 0 {
            "interrupted at the terminal"
        } else if self.is_shell() {
            "belay shell was told to end"
        } else {
            "belay run was told to terminate"
        };
        let params = TaskStopParams {
            cascade: false,
            fence: StopFence::Auto,
            id: id.clone(),
            level: Some(level),
            grace_ms: None,
            reason: Some(reason.to_owned()),
            actor: None,
            wait: false,
        };
        self.client.send::<TaskStop>(&params)?;
        self.order = Some((level, true));
        Ok(())
    }

    pub(super) fn give_detach(&mut self) -> Result<(), CliError> {
        let (Detach::Wanted, Some(id), None) = (self.detach, &self.id, &self.last) else { return Ok(()) };
        self.client.send::<TaskDetach>(&TaskDetachParams { id: id.clone(), actor: None })?;
        self.detach = Detach::Sent;
        Ok(())
    }

    /// One at a time: a window that is dragged says many, and only the last counts.
    pub(super) fn give_size(&mut self) -> Result<(), CliError> {
        let (Some(size), Some(id), None) = (self.size, &self.id, self.resizing) else { return Ok(()) };
        let params = TaskResizeParams { id: id.clone(), rows: size.rows, cols: size.cols };
        self.resizing = Some(self.client.send::<TaskResize>(&params)?);
        self.size = None;
        Ok(())
    }

    /// Once, when it takes long enough to wonder.
    pub(super) fn give_hint(&mut self) {
        if self.hint_at.is_some_and(|at| Instant::now() >= at) {
            self.hint_at = None;
            let viewer = self.is_viewer();
            if let Some(key) = &self.key {
                let what = if viewer { "leaves it running" } else { "moves it to the background" };
                self.context.hint(&format!("{} {what}", key.name));
            }
        }
    }
}

const fn rank(level: StopLevel) -> u8 {
    match level {
        StopLevel::Drain => 0,
        StopLevel::Interrupt => 1,
        StopLevel::Terminate => 2,
        StopLevel::Kill => 3,
    }
}
