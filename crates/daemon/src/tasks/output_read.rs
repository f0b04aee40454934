//! One read of a task's output: where it begins, what it returns, and the message that carries it. A log in memory is small and
//! is read at once; a log on disk is read by a worker, because its index can be as large as the log.

use std::path::PathBuf;
use std::sync::Arc;

use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::notifications;
use belay_protocol::output::{OutputChunk, OutputChunkNotification, OutputFrom, OutputReadResult};
use belay_protocol::rpc::RequestId;
use belay_record::convert::Wire as _;
use belay_record::reader::keep_characters_whole;
use belay_record::{LogReader, MemoryLog, Piece, Slice, Stream};

use crate::requests::{Caller, notification_line};

/// What is read. A worker can run it: it refers to nothing of the core.
#[derive(Clone, Debug)]
pub struct OutputRead {
    pub(super) task: String,
    pub(super) dir: PathBuf,
    /// The log, if it is in memory.
    pub(super) memory: Option<Arc<MemoryLog>>,
    pub(super) from: OutputFrom,
    pub(super) max_bytes: usize,
    pub(super) stream: Option<Stream>,
    /// How many bytes the task has written, if it has ended.
    pub(super) ended_bytes: Option<u64>,
    pub(super) message: ReadMessage,
}

/// The message that the bytes are put into, so that the core need not touch them.
#[derive(Clone, Debug)]
pub(super) enum ReadMessage {
    /// None: only the position is asked for.
    None,
    /// A notification of this subscription.
    Chunk { follow: u64, request: RequestId, text: bool },
    /// The reply to an `output/read`.
    Reply { caller: Caller, text: bool },
}

/// What a read found.
#[derive(Clone, Debug, Default)]
pub struct OutputPage {
    /// Where the read began.
    pub(super) from: u64,
    /// Where the next one begins.
    pub(super) next: u64,
    /// None where there is nothing to say.
    pub(super) line: Option<Vec<u8>>,
}

impl OutputRead {
    pub(crate) const fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub fn run(&self) -> Result<OutputPage, RpcError> {
        let unreadable = |error: std::io::Error| {
            let message = format!("the output of task {} cannot be read: {error}", self.task);
            RpcError::new(ErrorKind::Internal, message)
        };
        let log = self.open().map_err(unreadable)?;
        let bytes = self.ended_bytes.unwrap_or_else(|| log.end());
        let from = match self.from {
            OutputFrom::Offset { offset } if offset > bytes => {
                let message =
                    format!("offset {offset} is beyond the end: the task has written {bytes} bytes");
                return Err(RpcError::invalid("from", message).from_position(bytes));
            }
            OutputFrom::Offset { offset } => offset,
            OutputFrom::TailLines { lines } => log.tail_offset(lines, self.stream).map_err(unreadable)?,
        };
        let slice = log.read(from, self.max_bytes, self.stream).map_err(unreadable)?;
        Ok(match &self.message {
            ReadMessage::None => OutputPage { from, next: from, line: None },
            ReadMessage::Chunk { follow, request, text } => {
                self.chunk_page(request, *follow, *text, from, slice, &log)
            }
            ReadMessage::Reply { caller, text } => self.reply_page(caller, *text, from, slice, &log, bytes),
        })
    }

    fn open(&self) -> std::io::Result<LogReader> {
        match &self.memory {
            Some(memory) => LogReader::in_memory(Arc::clone(memory)),
            None => LogReader::open(&self.dir),
        }
    }

    fn chunk_page(
        &self,
        request: &RequestId,
        follow: u64,
        text: bool,
        from: u64,
        mut slice: Slice,
        log: &LogReader,
    ) -> OutputPage {
        if text {
            self.keep_characters_whole(&mut slice, log);
        }
        let next = slice.next;
        let is_empty = slice.pieces.is_empty() && slice.gaps.is_empty();
        let line = if is_empty { None } else { chunk_line(request, &self.task, follow, slice, text) };
        OutputPage { from, next, line }
    }

    /// For text: no character is split between this page and the next one.
    fn keep_characters_whole(&self, slice: &mut Slice, log: &LogReader) {
        let is_last = self.ended_bytes.is_some() && slice.next >= log.end();
        keep_characters_whole(slice, is_last, log.end());
    }

    fn reply_page(
        &self,
        caller: &Caller,
        text: bool,
        from: u64,
        mut slice: Slice,
        log: &LogReader,
        bytes: u64,
    ) -> OutputPage {
        let ended = self.ended_bytes.is_some();
        if text {
            self.keep_characters_whole(&mut slice, log);
        }
        if ended && slice.next == log.end() && slice.next < bytes {
            // The last bytes were lost to a full disk.
            slice.gaps.push([slice.next, bytes]);
            slice.next = bytes;
        }
        let next = slice.next;
        let result = OutputReadResult {
            id: self.task.clone(),
            chunks: chunks(slice.pieces, text),
            gaps: slice.gaps,
            next,
            bytes,
            eof: ended && next >= bytes,
        };
        OutputPage { from, next, line: caller.reply_line(&result) }
    }
}

fn chunks(pieces: Vec<Piece>, text: bool) -> Vec<OutputChunk> {
    let chunk = |Piece { stream, offset, at_ms, data }| {
        let chunk = OutputChunk::of_bytes(stream.to_wire(), offset, Timestamp(at_ms), data);
        if text { chunk.into_text() } else { chunk }
    };
    pieces.into_iter().map(chunk).collect()
}

/// The notification of a subscription.
pub(super) fn chunk_line(
    request: &RequestId,
    task: &str,
    follow: u64,
    slice: Slice,
    text: bool,
) -> Option<Vec<u8>> {
    let chunks = chunks(slice.pieces, text);
    let params = OutputChunkNotification {
        request: request.clone(),
        id: task.to_owned(),
        follow,
        chunks,
        gaps: slice.gaps,
        next: slice.next,
    };
    notification_line::<notifications::OutputChunk>(&params)
}
