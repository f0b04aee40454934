//! Ids of tasks and sessions: opaque, unguessable, safe in a path. Making randomness is not done here; it is handed in.

use std::fmt;

/// What a task is. Both kinds share one id space, the same verbs and the same states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Shell,
    Agent,
}

impl Kind {
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Shell => "sh-",
            Self::Agent => "ag-",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Agent => "agent",
        }
    }
}

/// The id of a task: `sh-` or `ag-` and sixteen characters that carry eighty random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(String);

/// Text that is no task id. The text itself is not repeated, because it may be hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task id looks like sh-3kq7w0x2m9d4c8ab: a kind and sixteen letters or digits")
    }
}

impl std::error::Error for BadId {}

/// Crockford's alphabet, lower case: no letter that is read as a digit, none that spells a word by accident.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const BODY_CHARS: usize = 16;

/// Sixteen characters that carry eighty random bits, behind a prefix.
fn encode(prefix: &str, random: [u8; 10]) -> String {
    let mut text = String::with_capacity(prefix.len() + BODY_CHARS);
    text.push_str(prefix);
    let mut bits: u32 = 0;
    let mut held = 0;
    for byte in random {
        bits = (bits << 8) | u32::from(byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(char::from(ALPHABET[((bits >> held) & 31) as usize]));
        }
    }
    text
}

/// Whether the text is what follows a prefix, or the beginning of it.
fn is_body(text: &str) -> bool {
    !text.is_empty() && text.len() <= BODY_CHARS && text.bytes().all(|b| ALPHABET.contains(&b))
}

/// The id of a session: `se-` and sixteen characters that carry eighty random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(String);

impl SessionId {
    const PREFIX: &str = "se-";

    pub fn from_random(random: [u8; 10]) -> Self {
        Self(encode(Self::PREFIX, random))
    }

    /// Whether the text could be the beginning of an id, or a whole one.
    pub fn is_prefix(text: &str) -> bool {
        text.strip_prefix(Self::PREFIX).is_some_and(is_body)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TaskId {
    pub fn from_random(kind: Kind, random: [u8; 10]) -> Self {
        Self(encode(kind.prefix(), random))
    }

    pub fn parse(text: &str) -> Result<Self, BadId> {
        let body = text.strip_prefix("sh-").or_else(|| text.strip_prefix("ag-")).ok_or(BadId)?;
        if body.len() == BODY_CHARS && is_body(body) { Ok(Self(text.to_owned())) } else { Err(BadId) }
    }

    /// Whether the text could be the beginning of an id, so that it is worth looking up.
    pub fn is_prefix(text: &str) -> bool {
        let body = text.strip_prefix("sh-").or_else(|| text.strip_prefix("ag-"));
        body.is_some_and(|body| body.is_empty() || is_body(body))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn kind(&self) -> Kind {
        if self.0.starts_with(Kind::Agent.prefix()) { Kind::Agent } else { Kind::Shell }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_random_id_parses_back_and_is_safe_in_a_path(random: [u8; 10], agent: bool) {
            let kind = if agent { Kind::Agent } else { Kind::Shell };
            let id = TaskId::from_random(kind, random);
            prop_assert_eq!(TaskId::parse(id.as_str()), Ok(id.clone()));
            prop_assert_eq!(id.kind(), kind);
            prop_assert!(id.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            let session = SessionId::from_random(random);
            prop_assert!(SessionId::is_prefix(session.as_str()) && !TaskId::is_prefix(session.as_str()));
        }

        #[test]
        fn different_randomness_gives_different_ids(a: [u8; 10], b: [u8; 10]) {
            let same = TaskId::from_random(Kind::Shell, a) == TaskId::from_random(Kind::Shell, b);
            prop_assert_eq!(same, a == b);
        }

        // proves X2
        #[test]
        fn hostile_text_is_no_id(text in ".*") {
            if let Ok(id) = TaskId::parse(&text) {
                prop_assert!(!id.as_str().contains(['/', '.', '\0', '\n', '%', '*']));
            }
        }
    }

    #[test]
    fn near_misses_are_refused() {
        for bad in [
            "",
            "sh-",
            "sh-3kq7w0x2m9d4c8a",
            "sh-3kq7w0x2m9d4c8abc",
            "xx-3kq7w0x2m9d4c8ab",
            "sh-3KQ7w0x2m9d4c8ab",
            "sh-../../../etc/pas",
            " sh-3kq7w0x2m9d4c8ab",
        ] {
            assert_eq!(TaskId::parse(bad), Err(BadId), "{bad:?}");
        }
    }
}
