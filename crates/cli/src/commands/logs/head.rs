//! `--head`: so many lines from the beginning, and no more of it is asked for.

use belay_protocol::output::OutputSearchLine;

use belay_client::OutputPiece;

/// How many lines may still be shown; none for all.
#[derive(Debug)]
pub(super) struct Head {
    left: Option<u64>,
    /// The number of the last line that belongs to the last match.
    until: Option<u64>,
}

impl Head {
    pub(super) const fn new(lines: Option<u64>) -> Self {
        Self { left: lines, until: None }
    }

    /// Whether nothing more is wanted.
    pub(super) fn is_over(&self) -> bool {
        self.left == Some(0)
    }

    /// What of the output is within the first lines, whichever stream they are of.
    pub(super) fn cut(&mut self, mut pieces: Vec<OutputPiece>) -> Vec<OutputPiece> {
        let Some(left) = &mut self.left else { return pieces };
        for (place, piece) in pieces.iter_mut().enumerate() {
            if *left == 0 {
                pieces.truncate(place);
                break;
            }
            let OutputPiece::Chunk(chunk) = piece else { continue };
            let bytes = chunk.text.as_ref().map_or(chunk.data.0.as_slice(), String::as_bytes);
            let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
            let wanted = usize::try_from(*left - 1).unwrap_or(usize::MAX);
            if let Some(last) = ends.clone().nth(wanted) {
                match &mut chunk.text {
                    // What is replaced in a text is as long as before only by chance.
                    Some(text) => text.truncate(last + 1),
                    None => chunk.data.0.truncate(last + 1),
                }
                chunk.bytes = last as u64 + 1;
                *left = 0;
            } else {
                *left -= ends.by_ref().count() as u64;
            }
        }
        pieces
    }

    /// What of the lines that a search has found belongs to the first matches. True if nothing more of it does.
    pub(super) fn keep(&mut self, lines: &mut Vec<OutputSearchLine>, context: u32) -> bool {
        let Some(left) = &mut self.left else { return false };
        let mut over = *left == 0 && self.until.is_none();
        lines.retain(|found| {
            let within = self.until.is_none_or(|until| found.number <= until && !found.line.matched);
            over |= !within;
            if found.line.matched && *left > 0 {
                *left -= 1;
                self.until = (*left == 0).then(|| found.number.saturating_add(u64::from(context)));
            }
            within && !over
        });
        over || (*left == 0 && context == 0)
    }
}
