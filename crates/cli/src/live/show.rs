//! What goes to our own streams: the task's output, and what we have to say ourselves.

use belay_client::OutputPiece;
use belay_protocol::life::StopLevel;
use belay_protocol::methods::OutputFollow;
use belay_protocol::output::{OutputFollowParams, OutputFrom as Begin, StreamName};
use rustix::io::Errno;

use super::engine::{Detach, Left, Live};
use super::sink::Progress;
use crate::commands::logs::gap_text;
use crate::error::CliError;

impl Live<'_> {
    pub(super) fn show(&mut self, pieces: Vec<OutputPiece>) {
        for piece in pieces {
            match piece {
                OutputPiece::Chunk(chunk) => self.put(chunk.stream, &chunk.data.0),
                OutputPiece::Gap { from, to } => self.say(&gap_text(from, to)),
            }
        }
    }

    /// Writes it all, unless somebody here goes before. A signal does not wait for a reader that does not read.
    pub(super) fn put(&mut self, stream: StreamName, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.left.is_none() {
            match self.sink.write_some(stream, rest, &self.signals) {
                Ok(Progress::Wrote(length)) => {
                    if let Some(raw) = &mut self.raw {
                        raw.modes.feed(&rest[..length]);
                    }
                    rest = &rest[length..];
                }
                Ok(Progress::Signal) => {
                    self.hear();
                    // A connection that cannot be replaced is noticed by the next read.
                    let _ = self.give_order().and_then(|()| self.give_detach());
                    if self.detach == Detach::Sent {
                        // Nobody reads here now; the log has it all.
                        return;
                    }
                }
                Err(errno) => return self.cannot_write(stream, errno),
            }
        }
    }

    fn cannot_write(&mut self, stream: StreamName, errno: Errno) {
        // What a terminal says that is gone. Its SIGHUP may come later, by way of the shell.
        if errno == Errno::IO && self.sink.is_terminal(stream) {
            self.left = Some(Left::HungUp);
            return;
        }
        self.sink.close(stream);
        self.broken.get_or_insert(CliError::output(&errno.into()));
        if self.is_viewer() {
            self.left = Some(Left::Unread);
        } else {
            self.refollow = true;
            self.want(StopLevel::Terminate);
        }
    }

    /// Goes on with the one stream that is still read, if there is one.
    pub(super) fn follow_what_is_read(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone().filter(|_| self.refollow && self.from.is_some()) else {
            return Ok(());
        };
        self.refollow = false;
        if let Some(fed_by) = self.output_call.take() {
            self.client.unsubscribe(fed_by)?;
        }
        if let Some(stream) = self.sink.open_stream() {
            let from = Begin::Offset { offset: self.cursor.next() };
            let params = OutputFollowParams { id, from, stream: Some(stream), text: false };
            self.output_call = Some(self.client.send::<OutputFollow>(&params)?);
        }
        Ok(())
    }

    /// Whoever called this shell has gone without a word, as one does that is killed.
    pub(super) fn nobody_reads(&mut self) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            self.cannot_write(stream, Errno::PIPE);
        }
    }

    /// A line for people; while the terminal is the task's, it waits.
    pub(super) fn say(&mut self, line: &str) {
        if self.raw.is_some() {
            self.notes.push(line.to_owned());
        } else {
            self.context.note(line);
        }
    }
}
