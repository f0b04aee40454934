//! The levels of the daemon's log, as set by `BELAY_LOG`. Writing the log is in `io::daemon_log`.

use tracing::Level;

/// The prefix of all Belay modules. Events of other crates are not logged.
const OUR_MODULES: &str = "belay_";

/// A default level, and levels of single modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevels {
    default: Level,
    modules: Vec<(String, Level)>,
}

impl Default for LogLevels {
    fn default() -> Self {
        Self { default: Level::INFO, modules: Vec::new() }
    }
}

impl LogLevels {
    pub(super) const EXAMPLE: &str =
        "error, warn, info, debug or trace, or for instance info,belay_daemon::shims=debug";

    /// Parses `LEVEL`, `MODULE=LEVEL`, or several of them separated by commas. `None` if any part
    /// is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut levels = Self::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None => levels.default = level(part)?,
                Some((module, word)) if is_module(module) => {
                    levels.modules.push((module.to_owned(), level(word)?));
                }
                Some(_) => return None,
            }
        }
        Some(levels)
    }

    /// Module prefixes with their levels. The longest prefix that fits a module decides.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = (String, Level)> {
        let ours = (OUR_MODULES.to_owned(), self.default);
        std::iter::once(ours).chain(self.modules.iter().cloned())
    }
}

fn level(word: &str) -> Option<Level> {
    match word {
        "error" => Some(Level::ERROR),
        "warn" => Some(Level::WARN),
        "info" => Some(Level::INFO),
        "debug" => Some(Level::DEBUG),
        "trace" => Some(Level::TRACE),
        _ => None,
    }
}

fn is_module(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.starts_with(OUR_MODULES) && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::LogLevels;

    #[test]
    fn default_and_module_levels_are_parsed() {
        let parsed = LogLevels::parse("warn, belay_daemon::shims=trace").unwrap();
        let prefixes: Vec<_> = parsed.prefixes().collect();
        assert_eq!(
            prefixes,
            [("belay_".to_owned(), Level::WARN), ("belay_daemon::shims".to_owned(), Level::TRACE)]
        );
        assert_eq!(LogLevels::parse("info"), Some(LogLevels::default()));
    }

    #[test]
    fn unknown_levels_and_other_crates_are_refused() {
        for text in
            ["", "loud", "INFO", "3", "off", "info,", "tokio=trace", "belay_daemon", "belay_daemon=", "=info"]
        {
            assert_eq!(LogLevels::parse(text), None, "{text:?}");
        }
    }
}
