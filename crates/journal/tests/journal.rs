//! Tests of the journal through its public API, on real files.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

#[path = "journal/damage.rs"]
mod damage;
#[path = "journal/durability.rs"]
mod durability;
#[path = "journal/expiry.rs"]
mod expiry;
#[path = "journal/merge.rs"]
mod merge;
#[path = "journal/places.rs"]
mod places;
#[path = "journal/queries.rs"]
mod queries;
#[path = "journal/support.rs"]
mod support;
#[path = "journal/versions.rs"]
mod versions;
#[path = "journal/write_buffer.rs"]
mod write_buffer;
