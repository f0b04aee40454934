//! The detach prefix among the keys of a terminal: it and `d` detaches, it twice is it once, it and anything else is both.
//! Pure; what was typed comes in pieces of any size.

#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    key: Option<u8>,
    /// The prefix was pressed and nothing after it.
    armed: bool,
}

/// What became of some keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pressed {
    /// For the task.
    pub(super) bytes: Vec<u8>,
    /// Nothing after this counts.
    pub(super) detach: bool,
}

impl Prefix {
    pub(super) const fn new(key: Option<u8>) -> Self {
        Self { key, armed: false }
    }

    pub(super) fn press(&mut self, typed: &[u8]) -> Pressed {
        let Some(key) = self.key else { return Pressed { bytes: typed.to_vec(), detach: false } };
        let mut bytes = Vec::with_capacity(typed.len());
        for &byte in typed {
            match (std::mem::take(&mut self.armed), byte) {
                (true, b'd') => return Pressed { bytes, detach: true },
                (true, _) if byte == key => bytes.push(key),
                (true, _) => bytes.extend([key, byte]),
                (false, _) if byte == key => self.armed = true,
                (false, _) => bytes.push(byte),
            }
        }
        Pressed { bytes, detach: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut prefix = Prefix::new(Some(2));
        let mut all = (Vec::new(), false);
        for piece in pieces {
            let Pressed { bytes, detach } = prefix.press(piece);
            all.0.extend(bytes);
            all.1 |= detach;
        }
        all
    }

    #[test]
    fn the_prefix_is_kept_back_and_everything_else_is_not() {
        assert_eq!(pressed(&[b"ls -d\x02d more"]), (b"ls -d".to_vec(), true));
        assert_eq!(pressed(&[b"x\x02", b"d"]), (b"x".to_vec(), true));
        assert_eq!(pressed(&[b"\x02\x02d"]), (b"\x02d".to_vec(), false));
        assert_eq!(pressed(&[b"\x02\x02", b"\x02d"]), (b"\x02".to_vec(), true));
        assert_eq!(pressed(&[b"\x02", b"x\x03"]), (b"\x02x\x03".to_vec(), false));
        assert_eq!(pressed(&[b"\x1b[A\xff\0"]), (b"\x1b[A\xff\0".to_vec(), false));
    }

    #[test]
    fn switched_off_it_is_a_key_like_any_other() {
        assert_eq!(Prefix::new(None).press(b"\x02d").bytes, b"\x02d");
    }
}
