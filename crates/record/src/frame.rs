//! Frames of the shim protocol: a length and JSON. Pure: bytes in, messages out.

use std::fmt;

use belay_protocol::read_json;
use belay_protocol::shim::MAX_FRAME_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A frame that cannot be read. The connection is of no more use.
#[derive(Debug)]
pub enum FrameError {
    TooLong(usize),
    NotUnderstood(serde_json::Error),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => write!(f, "a frame of {length} bytes, more than {MAX_FRAME_BYTES}"),
            Self::NotUnderstood(_) => f.write_str("a frame that is not understood"),
        }
    }
}

impl std::error::Error for FrameError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TooLong(_) => None,
            Self::NotUnderstood(error) => Some(error),
        }
    }
}

/// Appends a message as a frame.
pub fn put<M: Serialize>(out: &mut Vec<u8>, message: &M) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut *out, message).map_err(FrameError::NotUnderstood)?;
    let length = out.len() - start - 4;
    let Some(coded) = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME_BYTES) else {
        out.truncate(start);
        return Err(FrameError::TooLong(length));
    };
    out[start..start + 4].copy_from_slice(&coded.to_le_bytes());
    Ok(())
}

/// Collects bytes until they make messages.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    taken: usize,
}

impl Frames {
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.buffer[self.taken..];
        let Some((length, body)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let message = read_json(body).map_err(FrameError::NotUnderstood)?;
        self.taken += 4 + length;
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
            // A start carries a whole environment; what follows is small.
            self.buffer.shrink_to(64 * 1024);
        }
        Ok(Some(message))
    }
}
