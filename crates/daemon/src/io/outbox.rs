//! A connection with a queue of what goes out: written at once where the other side reads, kept in order where not.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Notify;

/// How long is waited when there is no descriptor left to watch a connection with.
const NO_DESCRIPTOR: std::time::Duration = std::time::Duration::from_millis(50);

/// Where every connection reads to: one at a time, and never across a wait.
pub(crate) type Scratch = RefCell<Box<[u8]>>;

#[derive(Debug)]
pub(crate) struct Outbox {
    /// The connection, watched for what comes in only, which is what tokio does for the reading end of a pipe. Room for
    /// what goes out is watched for only while something has to wait for it: otherwise every message that the other side
    /// takes would wake us.
    stream: Receiver,
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
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Receiver::from_owned_fd_unchecked(stream.into())?,
            queue: RefCell::default(),
            sent: Cell::new(0),
            queued_bytes: Cell::new(0),
            changed: Notify::new(),
            drained: Notify::new(),
            closing: Cell::new(false),
            broken: Cell::new(false),
        })
    }

    /// Waits until something has come in, and hands it on. Says how much it was: nothing, at the end of the connection.
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

    /// Whether the other side has closed altogether, and not its writing side alone.
    pub(crate) fn is_hung_up(&self) -> bool {
        // Of that one is told without asking.
        let mut look = [PollFd::new(&self.stream, PollFlags::empty())];
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() || !look[0].revents().is_empty()
    }

    /// Waits until the other side has closed altogether, which it may do at any time, or has been sent everything before a close. What
    /// could be read would be ready all the time.
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

    /// A watch that asks for nothing is told of a hang-up only. It is watched in turn for having something to tell. Without a descriptor for
    /// it there is no telling whether anybody listens: that is taken as a hang-up.
    async fn hang_up(&self) -> io::Result<()> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&watch, &self.stream, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
        Receiver::from_owned_fd_unchecked(watch)?.readable().await
    }

    /// Queues a message and writes as much as the other side takes now. Says how many bytes have left. Through a broken
    /// connection none ever will: whoever sends more the more has left must come to an end.
    pub(crate) fn push(&self, message: Vec<u8>) -> usize {
        if self.broken.get() {
            return 0;
        }
        self.queued_bytes.set(self.queued_bytes.get() + message.len());
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
                    // Whoever reads here or at the other end learns of it.
                    let _ = shutdown(&self.stream, Shutdown::Both);
                    return;
                }
                self.changed.notified().await;
                continue;
            }
            if self.empty_queue(&wrote).await.is_err() {
                // No descriptor to wait with, mostly: whoever closes one makes room. The connection is good meanwhile.
                tokio::time::sleep(NO_DESCRIPTOR).await;
            }
        }
    }

    /// Writes as the other side reads, until nothing is left.
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
}
