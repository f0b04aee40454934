//! Frames on their way out: whole lines in order, the first of them perhaps written in part.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::request::Request;

/// What a driver writes next.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    /// To be sent with the first byte.
    pub(crate) fds: &'a [OwnedFd],
}

/// Frames that have not been written whole.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    frames: VecDeque<Line>,
    /// How much of the first one was written.
    written: usize,
}

#[derive(Debug)]
enum Line {
    /// As it was made.
    Request(Arc<Request>),
    /// The same request for a new connection.
    Again { request: Arc<Request>, line: Vec<u8> },
    /// Of the codec itself.
    Own(Vec<u8>),
}

impl Line {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Request(request) => &request.line,
            Self::Again { line, .. } | Self::Own(line) => line,
        }
    }

    fn request(&self) -> Option<&Request> {
        match self {
            Self::Request(request) | Self::Again { request, .. } => Some(request),
            Self::Own(_) => None,
        }
    }
}

impl Outgoing {
    pub(super) fn push_request(&mut self, request: Arc<Request>) {
        self.frames.push_back(Line::Request(request));
    }

    pub(super) fn push_again(&mut self, request: Arc<Request>, line: Vec<u8>) {
        self.frames.push_back(Line::Again { request, line });
    }

    pub(super) fn push_line(&mut self, line: Vec<u8>) {
        self.frames.push_back(Line::Own(line));
    }

    pub(super) fn frame(&self) -> Option<Frame<'_>> {
        let first = self.frames.front()?;
        let fds = first.request().filter(|_| self.written == 0).map_or(&[][..], |request| &request.fds);
        Some(Frame { bytes: &first.bytes()[self.written..], fds })
    }

    /// Returns the call that the bytes belong to.
    pub(super) fn wrote(&mut self, bytes: usize) -> Option<i64> {
        let first = self.frames.front()?;
        let id = first.request().map(|request| request.id).filter(|_| bytes > 0);
        self.written += bytes;
        if self.written >= first.bytes().len() {
            self.frames.pop_front();
            self.written = 0;
        }
        id
    }

    /// Drops a request of which nothing was written.
    #[cfg(any(feature = "tokio", test))]
    pub(super) fn withdraw(&mut self, id: i64) {
        self.frames.retain(|line| line.request().is_none_or(|request| request.id != id));
    }

    /// Drops everything: the connection is lost.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
