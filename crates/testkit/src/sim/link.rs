//! A connection between a daemon and a shim: an ordered queue each way. Nothing in it is ever reordered; what a dead
//! sender had handed over still arrives, and then the end.

use std::collections::VecDeque;

use belay_daemon::input::ShimId;
use belay_protocol::shim::{FromShim, ToShim};

#[derive(Debug)]
pub(crate) enum Packet<T> {
    Message(T),
    Closed,
}

/// One direction. Each packet has the moment at which it arrives, and those never decrease.
#[derive(Debug)]
pub(crate) struct Way<T> {
    queue: VecDeque<(u64, Packet<T>)>,
    last_ms: u64,
    closed: bool,
}

impl<T> Default for Way<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), last_ms: 0, closed: false }
    }
}

impl<T> Way<T> {
    /// Adds a packet and says when it arrives; nothing can be added behind the end.
    pub(crate) fn put(&mut self, arrives_ms: u64, packet: Packet<T>) -> Option<u64> {
        if self.closed {
            return None;
        }
        self.closed = matches!(packet, Packet::Closed);
        self.last_ms = self.last_ms.max(arrives_ms);
        self.queue.push_back((self.last_ms, packet));
        Some(self.last_ms)
    }

    pub(crate) fn take(&mut self, now_ms: u64) -> Option<Packet<T>> {
        let has_arrived = self.queue.front().is_some_and(|(at, _)| *at <= now_ms);
        if has_arrived { self.queue.pop_front().map(|(_, packet)| packet) } else { None }
    }

    /// Everything that is under way, however far.
    pub(crate) fn take_all(&mut self) -> Vec<Packet<T>> {
        self.queue.drain(..).map(|(_, packet)| packet).collect()
    }

    /// Nobody is there to read any more.
    pub(crate) fn forget(&mut self) {
        self.queue.clear();
        self.closed = true;
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) shim: usize,
    /// The daemon's generation, and its name for the shim.
    pub(crate) daemon: u64,
    pub(crate) id: ShimId,
    pub(crate) down: Way<ToShim>,
    pub(crate) up: Way<FromShim>,
}

impl Link {
    pub(crate) fn new(shim: usize, daemon: u64, id: ShimId) -> Self {
        Self { shim, daemon, id, down: Way::default(), up: Way::default() }
    }
}
