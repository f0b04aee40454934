//! A connection with a queue of outgoing messages: written at once if the peer reads, kept in order if not.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Notify;

/// The pause when there is no descriptor left to poll a connection with.
const NO_DESCRIPTOR: std::time::Duration = std::time::Duration::from_millis(50);

/// The buffer that every connection reads into: one at a time, never across an await.
pub(crate) type Scratch = RefCell<Box<[u8]>>;

#[derive(Debug)]
pub(crate) struct Connection {
    /// The socket, polled for input only, which is what tokio does for the reading end of a pipe. It is polled for output
    /// only while something waits to be written: otherwise every message that the peer reads would wake this thread.
    stream: Receiver,
    queue: RefCell<VecDeque<Vec<u8>>>,
    /// How much of the first entry has left.
    sent: Cell<usize>,
    queued_bytes: Cell<usize>,
    /// How much of the queue, from its beginning, ends with the last reply in it.
    reply_bytes: Cell<usize>,
    changed: Notify,
    drained: Notify,
    /// What kept the peer from being read from may be over.
    relieved: Notify,
    closing: Cell<bool>,
    broken: Cell<bool>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Receiver::from_owned_fd_unchecked(stream.into())?,
            queue: RefCell::default(),
            sent: Cell::new(0),
            queued_bytes: Cell::new(0),
            reply_bytes: Cell::new(0),
            changed: Notify::new(),
            drained: Notify::new(),
            relieved: Notify::new(),
            closing: Cell::new(false),
            broken: Cell::new(false),
        })
    }

    /// Waits for input and hands it on. Returns how much it was: 0 at the end of the connection.
    pub(crate) async fn read(&self, scratch: &Scratch, take: impl FnOnce(&[u8])) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            let mut room = scratch.borrow_mut();
            match self.stream.try_read(&mut room) {
                Ok(length) => {
                    take(room.get(..length).unwrap_or_default());
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_closing() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the peer has closed the connection altogether, not only its writing side.
    pub(crate) fn is_hung_up(&self) -> bool {
        // A hang-up is reported without being asked for.
        let mut look = [PollFd::new(&self.stream, PollFlags::empty())];
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() || !look[0].revents().is_empty()
    }

    /// Waits until the peer has closed the connection altogether, or has been sent everything before a close. Input is not polled
    /// for: it would be ready all the time.
    pub(crate) async fn until_over(&self) {
        let closed = async {
            while !(self.is_closing() && self.queue.borrow().is_empty()) {
                self.drained.notified().await;
            }
        };
        tokio::select! {
            _ = self.hang_up() => {}
            () = closed => {}
        }
    }

    /// An epoll instance that asks for no event reports a hang-up only; it is polled itself for having something to report.
    /// Without a descriptor for it, whether the peer listens is not known: that counts as a hang-up.
    async fn hang_up(&self) -> io::Result<()> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&watch, &self.stream, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
        Receiver::from_owned_fd_unchecked(watch)?.readable().await
    }

    /// Queues a message and writes as much as the peer accepts now. Returns how many bytes have left: none through a broken
    /// connection, so that a sender that goes on as bytes leave comes to an end.
    pub(crate) fn push(&self, message: Vec<u8>, is_reply: bool) -> usize {
        if self.broken.get() {
            return 0;
        }
        self.queued_bytes.set(self.queued_bytes.get() + message.len());
        if is_reply {
            self.reply_bytes.set(self.queued_bytes.get());
        }
        let was_empty = self.queue.borrow().is_empty();
        self.queue.borrow_mut().push_back(message);
        if !was_empty {
            return 0;
        }
        let left = self.write_now(|bytes| Ok(send(&self.stream, bytes, SendFlags::NOSIGNAL)?));
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

    fn write_now(&self, write: impl Fn(&[u8]) -> io::Result<usize>) -> usize {
        let mut total = 0;
        let mut queue = self.queue.borrow_mut();
        while let Some(first) = queue.front() {
            match write(&first[self.sent.get()..]) {
                Ok(written) => {
                    total += written;
                    self.sent.set(self.sent.get() + written);
                    if self.sent.get() == first.len() {
                        queue.pop_front();
                        self.sent.set(0);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The reading side notices the end of the connection and reports it to the core.
                    self.broken.set(true);
                    total += queue.iter().map(Vec::len).sum::<usize>() - self.sent.get();
                    queue.clear();
                    self.sent.set(0);
                    break;
                }
            }
        }
        self.queued_bytes.set(self.queued_bytes.get() - total);
        self.reply_bytes.set(self.reply_bytes.get().saturating_sub(total));
        total
    }

    /// Writes what could not be written at once, for as long as the connection lives.
    pub(crate) async fn run(&self, wrote: impl Fn(usize)) {
        loop {
            if self.queue.borrow().is_empty() {
                self.drained.notify_waiters();
                if self.is_closing() {
                    // Readers at both ends learn of it.
                    let _ = shutdown(&self.stream, Shutdown::Both);
                    return;
                }
                self.changed.notified().await;
                continue;
            }
            if self.empty_queue(&wrote).await.is_err() {
                // Mostly no descriptor to poll with, until one is closed. The connection is good meanwhile.
                tokio::time::sleep(NO_DESCRIPTOR).await;
            }
        }
    }

    /// Writes as the peer reads, until nothing is left.
    async fn empty_queue(&self, wrote: &impl Fn(usize)) -> io::Result<()> {
        let room = Sender::from_owned_fd_unchecked(self.stream.as_fd().try_clone_to_owned()?)?;
        while !self.queue.borrow().is_empty() {
            room.writable().await?;
            let left = self.write_now(|bytes| room.try_write(bytes));
            if left > 0 {
                self.drained.notify_waiters();
                wrote(left);
            }
        }
        Ok(())
    }

    /// Waits until no more than so much is queued.
    pub(crate) async fn below(&self, bytes: usize) {
        while self.queued_bytes.get() > bytes && !self.is_closing() {
            self.drained.notified().await;
        }
    }

    /// Waits until something holds, looked at again after each [`Self::may_go_on`]; no longer than the connection lives.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) {
        while !holds() && !self.is_closing() {
            tokio::select! {
                () = self.relieved.notified() => {}
                () = self.drained.notified() => {}
                _ = self.hang_up() => return,
            }
        }
    }

    pub(crate) fn may_go_on(&self) {
        self.relieved.notify_waiters();
    }

    /// Waits until every reply in the queue has left; gives up when nothing has left for so long.
    pub(crate) async fn replies_read(&self, stall: std::time::Duration) {
        while self.reply_bytes.get() > 0 && !self.broken.get() {
            let before = self.reply_bytes.get();
            let waited = tokio::time::timeout(stall, self.drained.notified()).await;
            if waited.is_err() && self.reply_bytes.get() == before {
                return;
            }
        }
    }
}
