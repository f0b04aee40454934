//! Moves the write-ahead log into the database on a thread of its own, because that waits for the disk.
//!
//! The thread sleeps until a commit leaves the log longer than [`SOFT_PAGES`]; it has no timer. It never reports: a
//! checkpoint that fails (disk full, a long reader) is tried again after the next commit, and the log holds everything.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, MAIN_DB, hooks::Wal};

use crate::row::Unsigned;
use crate::{meta, open};

/// From here on the log is moved, without hindering anybody.
pub(crate) const SOFT_PAGES: u32 = 1000;
/// From here on writers wait (as long as they wait for any lock) so that the log can start over.
const HARD_PAGES: u32 = 16 * SOFT_PAGES;

#[derive(Debug)]
pub(crate) struct Checkpointer {
    pages: Arc<AtomicU32>,
    /// One waiting wake-up is as good as many: a full channel means that the thread will look anyway.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(crate) fn start(conn: &mut Connection, path: &Path) -> Result<Self, crate::Error> {
        let pages = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&pages);
        let hook = move |_: &mut Wal, count: i32| {
            seen.store(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(|error| crate::Error::sql(path, error))?;
        let (wake, woken) = sync_channel(1);
        let seen = Arc::clone(&pages);
        let own = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || run(&own, &woken, &seen))
            .map_err(|error| crate::Error::io(path, error))?;
        Ok(Self { pages, wake: Some(wake), thread: Some(thread) })
    }

    /// To be called after every commit.
    pub(crate) fn committed(&self) {
        if self.pages.load(Ordering::Relaxed) >= SOFT_PAGES
            && let Some(wake) = &self.wake
        {
            let _ = wake.try_send(());
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(path: &Path, woken: &Receiver<()>, pages: &AtomicU32) {
    let mut conn = None;
    while woken.recv().is_ok() {
        if conn.is_none() {
            conn = open::connect(path).ok();
        }
        if let Some(conn) = &conn {
            let _ = checkpoint(conn, pages.load(Ordering::Relaxed));
        }
    }
}

fn checkpoint(conn: &Connection, pages: u32) -> rusqlite::Result<()> {
    use rusqlite::wal::CheckpointMode as Mode;
    let (mut logged, mut moved) = conn.wal_checkpoint_v2(Some(MAIN_DB), Mode::PASSIVE)?;
    if pages >= HARD_PAGES {
        (logged, moved) = conn.wal_checkpoint_v2(Some(MAIN_DB), Mode::RESTART)?;
    }
    // Whoever writes first after all was moved begins the log anew and has to flush its head: better this thread.
    if logged == moved {
        let round = meta::number(conn, meta::LOG_ROUND)?;
        meta::set(conn, meta::LOG_ROUND, Unsigned(round + 1))?;
    }
    Ok(())
}
