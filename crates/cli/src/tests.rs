//! What people read, as snapshots: help, tables, receipts, errors. Pure rendering over wire types; no daemon.

mod errors;
mod events;
mod exits;
mod help;
mod samples;
mod views;
