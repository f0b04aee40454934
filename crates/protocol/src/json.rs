//! Reading a message: JSON in bytes that somebody else has sent. What is in it is not looked at here.

use serde::Deserialize;

/// Reads a message. Its bytes are looked through once for being text, and not again for every word in them.
pub fn read_json<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> serde_json::Result<M> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        // It knows where the fault is; and what nobody asks for need not be text.
        Err(_) => serde_json::from_slice(bytes),
    }
}
