//! Keys by name, and the bytes that xterm sends for them in its ordinary mode. Who gets them is not decided here.

/// What one key sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) Vec<u8>);

const NAMED: &[(&str, &[u8])] = &[
    ("enter", b"\r"),
    ("tab", b"\t"),
    ("esc", b"\x1b"),
    ("space", b" "),
    ("backspace", b"\x7f"),
    ("delete", b"\x1b[3~"),
    ("insert", b"\x1b[2~"),
    ("up", b"\x1b[A"),
    ("down", b"\x1b[B"),
    ("right", b"\x1b[C"),
    ("left", b"\x1b[D"),
    ("home", b"\x1b[H"),
    ("end", b"\x1b[F"),
    ("pageup", b"\x1b[5~"),
    ("pagedown", b"\x1b[6~"),
    ("f1", b"\x1bOP"),
    ("f2", b"\x1bOQ"),
    ("f3", b"\x1bOR"),
    ("f4", b"\x1bOS"),
    ("f5", b"\x1b[15~"),
    ("f6", b"\x1b[17~"),
    ("f7", b"\x1b[18~"),
    ("f8", b"\x1b[19~"),
    ("f9", b"\x1b[20~"),
    ("f10", b"\x1b[21~"),
    ("f11", b"\x1b[23~"),
    ("f12", b"\x1b[24~"),
];

pub(crate) fn parse(name: &str) -> Result<Key, String> {
    let lower = name.to_ascii_lowercase();
    if let Some((_, bytes)) = NAMED.iter().find(|(named, _)| *named == lower) {
        return Ok(Key(bytes.to_vec()));
    }
    let letter = |prefix: &str| match lower.strip_prefix(prefix)?.as_bytes() {
        [letter @ b'a'..=b'z'] => Some(*letter),
        _ => None,
    };
    match (letter("ctrl-"), letter("alt-")) {
        (Some(letter), _) => Ok(Key(vec![letter & 0x1f])),
        (None, Some(letter)) => Ok(Key(vec![0x1b, letter])),
        (None, None) => {
            let names: Vec<&str> = NAMED.iter().map(|(named, _)| *named).collect();
            Err(format!("there is no such key; keys are {}, ctrl-LETTER, alt-LETTER", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_xterm_sends() {
        let bytes = |name: &str| parse(name).unwrap().0;
        assert_eq!(bytes("ctrl-c"), b"\x03");
        assert_eq!(bytes("Ctrl-D"), b"\x04");
        assert_eq!(bytes("alt-x"), b"\x1bx");
        assert_eq!(bytes("enter"), b"\r");
        assert_eq!(bytes("f12"), b"\x1b[24~");
        for bad in ["", "ctrl-", "ctrl-1", "f13", "ctrl-cc", "return"] {
            let error = parse(bad).unwrap_err();
            assert!(
                error.contains("enter, tab") && error.ends_with("ctrl-LETTER, alt-LETTER"),
                "{bad}: {error}"
            );
        }
    }
}
