//! Our standard input on its way to the task: bytes as they come, or the keys of our terminal without the detach prefix.

use std::time::Instant;

use belay_protocol::methods::TaskWrite;
use belay_protocol::task::TaskWriteParams;
use rustix::io::Errno;

use super::engine::{Left, Live};
use super::feed::{self, Feed};
use crate::caller;
use crate::error::CliError;

impl Live<'_> {
    /// Keys are always read, or the way out would be shut when the task reads nothing.
    pub(super) fn wants_input(&self) -> bool {
        self.raw.is_some() || self.feed.as_ref().is_some_and(Feed::wants_input)
    }

    pub(super) fn give_input(&mut self) -> Result<(), CliError> {
        let (Some(feed), Some(id)) = (&mut self.feed, &self.id) else { return Ok(()) };
        if let Some(portion) = feed.next(Instant::now()) {
            let key = Some(format!("{}-{}", self.token, portion.number));
            let room_ms = caller::room_ms(&self.client);
            let params =
                TaskWriteParams { id: id.clone(), data: portion.data, close: portion.close, key, room_ms };
            feed.sent(self.client.send::<TaskWrite>(&params)?);
        }
        Ok(())
    }

    pub(super) fn read_input(&mut self) {
        let mut buffer = vec![0; feed::CHUNK_BYTES];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(length) if self.raw.is_some() => self.keys(&buffer[..length]),
            Ok(length) => {
                if let Some(feed) = &mut self.feed {
                    feed.input(&buffer[..length]);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) if self.raw.is_some() => self.keys(&[]),
            Err(errno) => {
                if let Some(feed) = &mut self.feed {
                    feed.input(&[]);
                }
                self.say(&format!("belay: standard input: {}", std::io::Error::from(errno)));
            }
        }
    }

    fn keys(&mut self, typed: &[u8]) {
        if typed.is_empty() {
            // A terminal in raw mode has no end of file: it is gone.
            self.left.get_or_insert(Left::HungUp);
            return;
        }
        let pressed = self.prefix.press(typed);
        self.lost_keys += self.feed.as_mut().map_or(0, |feed| feed.keys(&pressed.bytes));
        if pressed.detach {
            self.leave_by_key();
        }
    }
}
