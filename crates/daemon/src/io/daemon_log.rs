//! The daemon's log: every `tracing` event of ours, and every panic, as one line of `daemon.log` in the home. It does not choose
//! what is logged: the call sites and `BELAY_LOG` do.
//!
//! There are no spans, so an event is formatted and written at once, by the thread that reports it: what was logged before a
//! crash is in the file.

mod file;
mod line;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use belay_protocol::Timestamp;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use self::file::LogFile;
use crate::config::bounds;
use crate::settings::LogLevels;

/// The exit code of a daemon that has panicked, as of any Rust program.
const PANICKED: i32 = 101;

/// Opens the log of a home for the whole process. An error says why nothing can be written for now; it is tried again with each
/// event.
///
/// A panic, in whichever thread, is logged and ends the daemon: what it left half done could be anything, and a caller that
/// waits for it would wait for ever. The next daemon adopts every task, as after any crash.
pub(crate) fn install(home: &Path, levels: &LogLevels) -> io::Result<()> {
    let (file, opened) = LogFile::open(home, bounds::LOG_FILE_BYTES);
    // It is set once in the life of a process; no other code sets one.
    let _ = tracing::subscriber::set_global_default(subscriber(file, levels));
    std::panic::set_hook(Box::new(|panic| {
        log_panic(panic);
        belay_os::process::exit_now(PANICKED);
    }));
    opened
}

fn subscriber(file: LogFile, levels: &LogLevels) -> impl Subscriber + Send + Sync + 'static {
    DaemonLog { file: Mutex::new(file) }.with(levels.prefixes().collect::<Targets>())
}

/// Writes events; filtering is done before they come here.
struct DaemonLog {
    file: Mutex<LogFile>,
}

impl Subscriber for DaemonLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // Formatted before the lock is taken: a value whose `Display` panics reports that here, too.
        let text = line::format(now(), event);
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_line(now(), &text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let place = panic.location().map(tracing::field::display);
    let message = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(thread, place, "panic: {}", without_data(message));
}

/// A panic about a string that was cut inside a character quotes the string, which may be anything.
fn without_data(message: &str) -> &str {
    message.split_once(" of `").map_or(message, |(before, _)| before)
}
