//! What people see: writers, tables, times, sizes, and text made harmless. Nothing here talks to a daemon.

pub(crate) mod filter;
pub(crate) mod human;
pub(crate) mod out;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod text;
