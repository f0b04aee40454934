//! The first look, without any grammar: most lines have no `&` that could stand alone, whatever is quoted or not.
//! It may say "perhaps" where there is none; it never says "none" where there is one.

/// Whether an `&` of its own, or the word `coproc`, may be somewhere in the line. If not, it is [`crate::Verdict::Plain`]
/// to every shell, and need not be read.
pub fn may_be_asynchronous(line: &[u8]) -> bool {
    has_coproc(line) || has_lone_ampersand(line)
}

fn has_coproc(line: &[u8]) -> bool {
    // A word can be written across a line continuation, so that its letters need not stand side by side.
    let letters: Vec<u8> = without_continuations(line);
    letters.windows(6).any(|window| window == b"coproc")
}

/// A backslash before a line end takes both away.
pub(crate) fn without_continuations(line: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(line.len());
    for &byte in line {
        if byte == b'\n' && kept.last() == Some(&b'\\') {
            kept.pop();
        } else {
            kept.push(byte);
        }
    }
    kept
}

/// Only `&&`, `>&` and `<&` are let pass, and only where no backslash can have taken their first character away.
fn has_lone_ampersand(line: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = line[at..].iter().position(|&byte| byte == b'&') {
        let start = at + found;
        let run = line[start..].iter().take_while(|&&byte| byte == b'&').count();
        let before = |back: usize| start.checked_sub(back).map(|index| line[index]);
        let joined = match run {
            1 => matches!(before(1), Some(b'<' | b'>')) && before(2) != Some(b'\\'),
            2 => before(1) != Some(b'\\'),
            _ => false,
        };
        if !joined {
            return true;
        }
        at = start + run;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_ones_pass() {
        for line in ["", "ls", "a && b", "make 2>&1 | tail", "a&&b<&3", "x >&- && y"] {
            assert!(!may_be_asynchronous(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn any_that_could_stand_alone_is_seen() {
        for line in [
            "x &",
            "'&'",
            r"x \&& y",
            r"x \>& y",
            "x &&& y",
            "x |& y",
            "x &> f",
            "a;& b",
            "coproc x",
            "co\\\nproc x",
        ] {
            assert!(may_be_asynchronous(line.as_bytes()), "{line}");
        }
    }
}
