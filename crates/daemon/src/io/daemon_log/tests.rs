//! The log's lines and its files, without a daemon.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use belay_protocol::Timestamp;

use super::file::LogFile;
use super::{subscriber, without_data};
use crate::config::bounds;
use crate::settings::LogLevels;

const AT: Timestamp = Timestamp(1_767_225_600_007);

fn open(home: &Path, limit_bytes: u64) -> LogFile {
    let (file, opened) = LogFile::open(home, limit_bytes);
    opened.unwrap();
    file
}

fn read(home: &Path, name: &str) -> String {
    fs::read_to_string(home.join(name)).unwrap()
}

/// What the log holds after these events, without the times.
fn logged(events: impl FnOnce()) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let file = open(home.path(), bounds::LOG_FILE_BYTES);
    tracing::subscriber::with_default(subscriber(file, &LogLevels::default()), events);
    let text = read(home.path(), "daemon.log");
    text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn event_is_one_line_with_its_fields() {
    let lines = logged(|| {
        let (reason, none) = (Some("seen enough"), None::<&str>);
        tracing::info!(task = "sh-1", level = %"terminate", count = 3, reason, none, "stop");
        tracing::warn!("disk {}", "full");
    });
    assert_eq!(
        lines,
        ["INFO  stop task=sh-1 level=terminate count=3 reason=\"seen enough\"", "WARN  disk full"]
    );
}

#[test]
fn control_characters_are_escaped() {
    let hostile = "a\nb\r\0\u{1b}[31m\u{85}\u{2028}\u{202e}\"\\";
    let lines = logged(|| tracing::info!(value = hostile, empty = "", "odd: {hostile}"));
    let escaped = r"a\nb\r\0\u{1b}[31m\u{85}\u{2028}\u{202e}";
    assert_eq!(lines, [format!(r#"INFO  odd: {escaped}"\\ value="{escaped}\"\\" empty="""#)]);
}

#[test]
fn long_values_and_lines_are_cut() {
    let long = "é".repeat(bounds::LOG_VALUE_BYTES);
    let lines = logged(|| {
        tracing::info!(long, after = 1, "cut");
        tracing::info!(a = long, b = long, c = long, d = long, e = long, f = long, g = long, h = long, "cut");
        let control = "\u{1}".repeat(bounds::LOG_VALUE_BYTES);
        tracing::info!(a = control, b = control, "cut");
    });
    let kept = "é".repeat(bounds::LOG_VALUE_BYTES / 2);
    assert_eq!(lines[0], format!("INFO  cut long=\"{kept}…\" after=1"));
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.len() < bounds::LOG_LINE_BYTES), "{lines:?}");
}

#[test]
fn disabled_level_formats_nothing() {
    struct Counted<'a>(&'a AtomicU32);
    impl fmt::Display for Counted<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fetch_add(1, Ordering::Relaxed);
            f.write_str("x")
        }
    }
    let (formatted, evaluated) = (AtomicU32::new(0), AtomicU32::new(0));
    let lines = logged(|| {
        let value = || {
            evaluated.fetch_add(1, Ordering::Relaxed);
            1
        };
        for _ in 0..3 {
            tracing::debug!(value = %Counted(&formatted), other = value(), "{}", Counted(&formatted));
        }
        tracing::info!(value = %Counted(&formatted), other = value(), "on");
    });
    assert_eq!(lines, ["INFO  on value=x other=1"]);
    assert_eq!((formatted.into_inner(), evaluated.into_inner()), (1, 1));
}

#[test]
fn foreign_modules_are_not_logged() {
    let lines = logged(|| tracing::error!(target: "another_crate", "no"));
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn rotation_keeps_two_files_within_bound() {
    let home = tempfile::tempdir().unwrap();
    let mut log = open(home.path(), 100);
    let line = |number: usize| format!("{number:019}\n");
    for number in 0..23 {
        log.write_line(AT, &line(number));
    }
    // Four lines of twenty bytes fit, and five do not with the byte that is kept free.
    assert_eq!(read(home.path(), "daemon.log"), (20..23).map(line).collect::<String>());
    assert_eq!(read(home.path(), "daemon.log.1"), (16..20).map(line).collect::<String>());
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
}

#[test]
fn restart_appends_and_completes_torn_line() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("daemon.log");
    open(home.path(), 100).write_line(AT, "first\n");
    open(home.path(), 100).write_line(AT, "second\n");
    fs::write(&path, "first\nsecond\nto").unwrap();
    open(home.path(), 100).write_line(AT, "third\n");
    assert_eq!(read(home.path(), "daemon.log"), "first\nsecond\nto\nthird\n");
    // A file that grew beyond the bound is rotated by the first line.
    fs::write(&path, "x".repeat(200)).unwrap();
    open(home.path(), 100).write_line(AT, "fourth\n");
    assert_eq!(read(home.path(), "daemon.log"), "fourth\n");
}

#[test]
fn files_are_private_and_removal_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("daemon.log");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut log = open(home.path(), 100);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::remove_file(&path).unwrap();
    log.write_line(AT, "after\n");
    assert_eq!(read(home.path(), "daemon.log"), "after\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn unwritable_log_counts_lost_lines() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("daemon.log");
    fs::create_dir(&path).unwrap();
    let (mut log, opened) = LogFile::open(home.path(), 1000);
    assert!(opened.is_err());
    log.write_line(AT, "one\n");
    log.write_line(AT, "two\n");
    fs::remove_dir(&path).unwrap();
    log.write_line(AT, "three\n");
    log.write_line(AT, "four\n");
    let report =
        "2026-01-01T00:00:00.007Z WARN  log lines lost lines=2 cause=\"Is a directory (os error 21)\"\n";
    assert_eq!(read(home.path(), "daemon.log"), format!("{report}three\nfour\n"));
}

#[test]
fn pipe_in_its_place_does_not_block() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("daemon.log");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let (mut log, opened) = LogFile::open(home.path(), 1000);
    assert!(opened.is_err());
    log.write_line(AT, "one\n");
}

#[test]
fn old_file_that_cannot_be_replaced_keeps_bound() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("daemon.log.1")).unwrap();
    let mut log = open(home.path(), 100);
    for number in 0..20 {
        log.write_line(AT, &format!("{number:019}\n"));
    }
    assert!(fs::metadata(home.path().join("daemon.log")).unwrap().len() <= 100);
    assert!(read(home.path(), "daemon.log").ends_with("19\n"));
}

/// The hook belongs to the whole process, and the log of this test to its thread: other tests that panic meanwhile log nowhere.
#[test]
fn panic_is_one_line() {
    let lines = logged(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(super::log_panic));
        let panic = std::panic::catch_unwind(|| panic!("two\n{}", "lines"));
        std::panic::set_hook(before);
        drop(panic);
    });
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.starts_with(r"ERROR panic: two\nlines thread="), "{line}");
    assert!(line.contains("place=crates/daemon/src/io/daemon_log/tests.rs:"), "{line}");
}

#[test]
fn panic_about_a_string_does_not_quote_it() {
    let text = std::hint::black_box("pässword");
    let panic = std::panic::catch_unwind(|| text[..2].len()).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    let shown = without_data(message);
    assert!(shown.contains("char boundary") && !shown.contains("ssword"), "{shown}");
    assert_eq!(without_data("no task"), "no task");
}
