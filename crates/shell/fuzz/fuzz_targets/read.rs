//! Reads any bytes as a line of any shell. Nothing may hang, grow without bound, break, or be changed in more than the
//! one `&`.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use belay_shell::{Answer, Limits, Reader, Shell, Verdict, Why, explain};
use libfuzzer_sys::fuzz_target;

const PROGRAMS: [&str; 4] = ["bash", "dash", "sh", "fish"];

/// Patient, so that only what never ends is late under the fuzzer's instruments.
static READER: LazyLock<Reader> =
    LazyLock::new(|| Reader::new(Limits { parse_time: Duration::from_secs(5), ..Limits::default() }));

fuzz_target!(|data: &[u8]| {
    let Some((first, line)) = data.split_first() else { return };
    let shell = Shell::new(PROGRAMS[usize::from(*first) % PROGRAMS.len()]);
    let reading = READER.read(line, &shell, &|_: &Shell, _: &[u8]| Answer::Accepts);
    assert!(!explain(&reading).is_empty());
    assert!(reading.ampersands.iter().all(|range| line[range.clone()] == *b"&"));
    match reading.verdict {
        Verdict::Held { why } => {
            assert!(!matches!(why, Why::TookTooLong | Why::Busy | Why::ReaderFailed), "{why}");
        }
        Verdict::Detach { command } => {
            assert_eq!(command.len(), line.len());
            let changed: Vec<_> = line.iter().zip(&command).filter(|(a, b)| a != b).collect();
            assert_eq!(changed, [(&b'&', &b' ')]);
        }
        Verdict::Plain | Verdict::SyntaxError { .. } => {}
    }
});
