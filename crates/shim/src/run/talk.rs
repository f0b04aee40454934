//! A shim's conversation with a daemon: taking its connection, hearing what it wants, and being left by it. What is about
//! the life of a task goes to the core.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;

use belay_os::pty;
use belay_os::signal::Signal;
use belay_protocol::shim::{FromShim, Now, ToShim, WriteResult};
use belay_protocol::task::TerminalSize;

use super::{Shim, now};
use crate::core::Input;
use crate::link::Link;

impl Shim {
    /// A daemon connects: whoever comes last is the one, for only one can hold the home.
    pub(super) fn accept(&mut self) -> io::Result<()> {
        let Ok((stream, _)) = self.listener.accept() else { return Ok(()) };
        let ours = rustix::net::sockopt::socket_peercred(&stream)
            .is_ok_and(|peer| peer.uid == rustix::process::getuid());
        if ours {
            // The last words of a daemon that died are heard before the first of the next: a start may be among them.
            self.hear()?;
            if !self.leaving {
                self.watched = false;
                self.link = Some(Link::new(stream.into())?);
            }
        }
        Ok(())
    }

    pub(super) fn hear(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let open = link.fill(&mut self.buffer).unwrap_or(false);
        while let Some(message) = self.link.as_mut().and_then(|link| link.next().transpose()) {
            match message {
                Ok(message) => self.obey(message)?,
                Err(_) => return self.lose_daemon(),
            }
        }
        if open { Ok(()) } else { self.lose_daemon() }
    }

    fn obey(&mut self, message: ToShim) -> io::Result<()> {
        match message {
            // Nobody reads now, and somebody will.
            ToShim::Write { write, .. } if self.core.is_resting() => {
                let result = WriteResult::Full { pending: 0 };
                self.say(&FromShim::Written { write, result });
            }
            ToShim::Write { write, data, close, key, room } => {
                let offered = self.task.as_mut().map(|task| task.stdin.offer(&data.0, close, key, room));
                let (result, has_room) = offered.unwrap_or((WriteResult::Closed, false));
                self.say(&FromShim::Written { write, result });
                if has_room {
                    self.say(&FromShim::Room);
                }
            }
            ToShim::Resize { resize, size } => {
                let pty = self.resize(size);
                self.say(&FromShim::Resized { resize, pty });
            }
            ToShim::Signal { ask, signal } => {
                let processes = self.signal_group(signal);
                self.say(&FromShim::Signalled { ask, processes });
            }
            ToShim::Watch { on } => {
                self.watched = on;
                self.told_bytes = 0;
            }
            ToShim::Query { query } => {
                let answer = self.present(query);
                self.say(&FromShim::Now(Box::new(answer)));
            }
            message @ (ToShim::Hello { .. }
            | ToShim::Start(_)
            | ToShim::Admit { .. }
            | ToShim::Stop { .. }
            | ToShim::Detach { .. }
            | ToShim::Excuse { .. }
            | ToShim::SetStall { .. }
            | ToShim::OverBudget { .. }
            | ToShim::Ack { .. }) => {
                // What ended by itself before the stop, or the detach, reached it ended by itself.
                self.look_after_tree()?;
                self.feed(Input::Daemon(message))?;
            }
        }
        Ok(())
    }

    /// The command can read more, or will read no more.
    pub(super) fn pass_on_input(&mut self) {
        let Some(task) = &mut self.task else { return };
        // Who writes to one that nobody reads any more hears of it then.
        let _ = task.stdin.flush();
        if task.stdin.has_room_again() {
            self.say(&FromShim::Room);
        }
    }

    /// To the group that the leader began, and to whoever of it is left when the leader is gone.
    fn signal_group(&self, signal: i32) -> u64 {
        let leader = self.task.as_ref().and_then(|task| task.leader);
        match (leader, Signal::from_raw(signal)) {
            (Some(leader), Some(signal)) => self.tree.signal_group(leader.pid, signal).sent.len() as u64,
            _ => 0,
        }
    }

    /// The size that the terminal has now, or will have when its turn has come, or its next attempt.
    fn resize(&mut self, size: TerminalSize) -> Option<TerminalSize> {
        if self.core.is_queued() || self.core.is_resting() {
            self.core.pty()?;
            self.core.set_pty(size);
            return self.core.pty();
        }
        let slave = self.task.as_ref().and_then(|task| task.slave.as_ref())?;
        if pty::resize(slave, size.rows, size.cols).is_ok() {
            self.core.set_pty(size);
        }
        self.core.pty()
    }

    fn present(&self, query: u64) -> Now {
        let task = self.task.as_ref();
        Now {
            query,
            output: task.map(|task| task.output.info()).unwrap_or_default(),
            capture: task.and_then(|task| task.output.fault()),
            clocks: self.core.remaining(now()),
            stdin_open: task.is_some_and(|task| task.stdin.is_open()),
            pty: self.core.pty(),
        }
    }

    pub(super) fn lose_daemon(&mut self) -> io::Result<()> {
        self.link = None;
        self.link_broken = false;
        self.watched = false;
        self.keep_reachable();
        self.feed(Input::DaemonGone)
    }

    /// Makes the socket again if somebody removed it: the next daemon has no other way to us.
    fn keep_reachable(&mut self) {
        if self.core.task().is_none() || self.socket.exists() {
            return;
        }
        if let Some(dir) = self.socket.parent() {
            let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        }
        if let Ok(listener) = UnixListener::bind(&self.socket).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        }) {
            self.listener = listener;
        }
    }
}
