//! The daemon's journal: tasks, numbered events and keyed documents, in a write buffer and a
//! `SQLite` database.
//!
//! It stores batches and answers queries. It does not know the wire, the model or what a body
//! means, and it does not decide when to flush or to expire anything: the daemon does, by rule.
//!
//! [`open`] returns three parts for three threads: the [`WriteBuffer`] for the deciding thread,
//! where appending a batch is the commit; the [`Store`] for the worker that writes the database;
//! and the [`Reader`] for the worker that queries it. Jobs, tickets and results are plain values,
//! to be sent between threads by the daemon.
//!
//! **Invariants.**
//! - A batch is whole or absent, also after `kill -9`. (A power cut may cost the last moments:
//!   appends and flushes do not wait for the disk.)
//! - The deciding thread never waits for `SQLite`, whatever another process does with the database
//!   file.
//! - Event numbers grow by one and are never assigned twice. Events lost by damage are replaced by
//!   [`LOST_KIND`].
//! - A damaged file is never written to, overwritten or deleted: it is quarantined and named in a
//!   notice.
//! - The journal has no threads or timers of its own: an idle journal causes no wake-ups.
//! - Every query result includes every batch appended before it was merged.

mod apply;
mod buffer_file;
mod error;
mod files;
mod load;
mod merge;
mod meta;
mod observe;
mod open;
mod pages;
mod quarantine;
mod query;
mod reader;
mod recover;
mod row;
mod salvage;
mod schema;
mod store;
mod tree;
mod wal;
mod write_buffer;

pub use error::{Error, Field};
pub use load::Loaded;
pub use observe::Observer;
pub use open::{Notice, Opened, open};
pub use query::{Found, Query, Rows};
pub use reader::Reader;
pub use row::{
    Batch, DocRow, EventFilter, EventPage, EventRow, EventRule, Expired, ExpiredTask, RowPredicate,
    TaskFilter, TaskPage, TaskRow, TaskRule,
};
pub use salvage::LOST_KIND;
pub use schema::VERSION;
pub use store::Store;
pub use write_buffer::{FlushDone, FlushJob, ReadTicket, WriteBuffer, unflushed};

/// The name of the database inside the directory given to [`open`].
pub const FILE_NAME: &str = "journal.db";
