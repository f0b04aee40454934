//! What shim and daemon share about one task: its directory on disk (output log and end file) and the one
//! conversion between core types and wire types. The shim writes, the daemon reads; neither needs the other for it.

pub mod convert;
pub mod end_file;
pub mod frame;
mod layout;
mod memory;
pub mod reader;
pub mod writer;

pub use end_file::EndFile;
pub use layout::Stream;
pub use memory::MemoryLog;
pub use reader::{Gap, LogReader, Piece, Slice};
pub use writer::LogWriter;
