//! The daemon's durable record: tasks, numbered events and keyed documents in one `SQLite` file.
//!
//! It stores what it is given and says what it holds. It does not know the wire, the model or what a body means,
//! and it does not decide when to expire anything: the daemon asks, by rule.
//!
//! **Invariants.**
//! - A batch is whole or absent, also after `kill -9`. (A power cut may cost the last moments, never the order:
//!   the write-ahead log is flushed at checkpoints, not at commits.)
//! - Event numbers grow by one and are never given twice. What damage took away is filled with [`LOST_KIND`].
//! - A damaged file is never written to, overwritten or deleted: it is moved aside and its name is told.
//! - An idle journal makes no wake-ups, and a commit does not wait for the disk.
//! - What is noted ahead of the database is found by every question, and by the next program that opens the record.

mod ahead;
mod aside;
mod checkpoint;
mod commit;
mod doc;
mod error;
mod expire;
mod files;
mod journal;
mod meta;
mod open;
mod pages;
mod row;
mod salvage;
mod schema;
mod tree;
mod wal;

pub use ahead::noted;
pub use error::{Error, Field};
pub use journal::{Journal, Notice, Opened};
pub use row::{Batch, Counts, DocRow, EventPage, EventRow, EventRule, TaskFilter, TaskRow, TaskRule};
pub use salvage::LOST_KIND;
pub use schema::VERSION;

/// The name of the record inside the directory given to [`Journal::open`].
pub const FILE_NAME: &str = "journal.db";
