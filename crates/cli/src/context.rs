//! What every command has at hand: where things are, the writer, the terminal, and the road to the daemon.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use belay_client::{Client, Message, Paths};
use belay_protocol::Timestamp;
use belay_protocol::daemon::{ClientInfo, Surface};
use belay_protocol::methods::TaskGet;
use belay_protocol::task::TaskGetParams;

use crate::error::CliError;
use crate::ui::out::{self, Out};
use crate::ui::style::Style;
use crate::ui::terminal::Terminal;
use crate::ui::text::one_line;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) out: Out,
    pub(crate) term: Terminal,
}

impl Context {
    pub(crate) fn from_process() -> Self {
        Self { out: Out::stdout(), term: Terminal::look(|name| std::env::var_os(name)) }
    }

    #[expect(clippy::unused_self, reason = "commands ask their context, whatever it reads")]
    pub(crate) fn paths(&self) -> Result<Paths, CliError> {
        let paths = Paths::from_env(|name| std::env::var_os(name))?;
        Ok(paths.presenting(ClientInfo::new("belay", env!("CARGO_PKG_VERSION")), Surface::Cli))
    }

    /// A connection; the daemon is started if there is none, and the client resumes if it goes away.
    pub(crate) fn connect(&self) -> Result<Client, CliError> {
        Ok(Client::connect_or_start(&self.paths()?, &exe())?)
    }

    /// The id of the task that is meant. A name may mean another one a moment later: whoever asks more than once asks by id.
    pub(crate) fn task_id(&self, text: &str) -> Result<String, CliError> {
        if text.starts_with("sh-") || text.starts_with("ag-") {
            return Ok(text.to_owned());
        }
        Ok(self.connect()?.call::<TaskGet>(&TaskGetParams { id: text.to_owned() })?.id)
    }

    /// Waits for the next message, unless standard output has no reader any more.
    pub(crate) fn next_message(&mut self, client: &mut Client) -> Result<Message, CliError> {
        loop {
            if let Some(message) = client.take_buffered()? {
                return Ok(message);
            }
            self.out.flush()?;
            out::wait_for(&*client)?;
            client.fill()?;
        }
    }

    /// A line for people on standard error.
    #[expect(clippy::unused_self, reason = "what is said goes through the context, as what is answered does")]
    pub(crate) fn note(&self, line: &str) {
        out::note(&one_line(line));
    }

    /// A hint for people on standard error: only where people read it.
    pub(crate) fn hint(&self, line: &str) {
        if self.term.stderr {
            self.way_out(line);
        }
    }

    /// The way out of what was just said to be wrong: said wherever that is read.
    pub(crate) fn way_out(&self, line: &str) {
        out::note(&format!(" {} {}", Style::Hint.paint("hint:", self.term.colour_err), one_line(line)));
    }

    pub(crate) fn complain(&self, error: &CliError) {
        if !error.is_quiet() {
            out::note(error.render(self.term.colour_err).trim_end());
        }
    }
}

/// This program, also after its file was replaced by a newer one.
pub(crate) fn exe() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| running.to_owned())
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
