//! A connection with a queue of what goes out: written at once where the other side reads, kept in order where not.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

use tokio::net::UnixStream;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Outbox {
    stream: UnixStream,
    queue: RefCell<VecDeque<Vec<u8>>>,
    /// How much of the first entry has left.
    sent: Cell<usize>,
    queued_bytes: Cell<usize>,
    changed: Notify,
    drained: Notify,
    closing: Cell<bool>,
    broken: Cell<bool>,
}

impl Outbox {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            queue: RefCell::default(),
            sent: Cell::new(0),
            queued_bytes: Cell::new(0),
            changed: Notify::new(),
            drained: Notify::new(),
            closing: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    pub(crate) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Queues a message and writes as much as the other side takes now. Says how many bytes have left.
    pub(crate) fn push(&self, message: Vec<u8>) -> usize {
        if self.broken.get() {
            return message.len();
        }
        self.queued_bytes.set(self.queued_bytes.get() + message.len());
        let was_empty = self.queue.borrow().is_empty();
        self.queue.borrow_mut().push_back(message);
        if !was_empty {
            return 0;
        }
        let left = self.write_now();
        if !self.queue.borrow().is_empty() {
            self.changed.notify_one();
        }
        left
    }

    /// Close when everything has left.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.changed.notify_one();
        self.drained.notify_waiters();
    }

    pub(crate) const fn is_closing(&self) -> bool {
        self.closing.get() || self.broken.get()
    }

    fn write_now(&self) -> usize {
        let mut total = 0;
        let mut queue = self.queue.borrow_mut();
        while let Some(first) = queue.front() {
            match self.stream.try_write(&first[self.sent.get()..]) {
                Ok(written) => {
                    total += written;
                    self.sent.set(self.sent.get() + written);
                    if self.sent.get() == first.len() {
                        queue.pop_front();
                        self.sent.set(0);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The reader notices the end of the connection and tells the core.
                    self.broken.set(true);
                    total += queue.iter().map(Vec::len).sum::<usize>() - self.sent.get();
                    queue.clear();
                    self.sent.set(0);
                    break;
                }
            }
        }
        self.queued_bytes.set(self.queued_bytes.get() - total);
        total
    }

    /// Writes whatever could not be written at once, for as long as the connection lives.
    pub(crate) async fn run(&self, wrote: impl Fn(usize)) {
        loop {
            if self.queue.borrow().is_empty() {
                self.drained.notify_waiters();
                if self.is_closing() {
                    return;
                }
                self.changed.notified().await;
                continue;
            }
            if self.stream.writable().await.is_err() {
                return;
            }
            let left = self.write_now();
            if left > 0 {
                self.drained.notify_waiters();
                wrote(left);
            }
        }
    }

    /// Waits until no more than so much is queued.
    pub(crate) async fn below(&self, bytes: usize) {
        while self.queued_bytes.get() > bytes && !self.is_closing() {
            self.drained.notified().await;
        }
    }
}
