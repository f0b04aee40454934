//! What our standard streams are: terminals or not, how wide, with colours or without.

use std::ffi::OsString;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    /// The width of the terminal on standard output; none where there is no terminal to fit into.
    pub(crate) width: Option<usize>,
    pub(crate) colour_out: bool,
    pub(crate) colour_err: bool,
}

const WIDTH_UNKNOWN: usize = 80;

impl Terminal {
    pub(crate) fn look(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let stdin = rustix::termios::isatty(rustix::stdio::stdin());
        let stdout = rustix::termios::isatty(rustix::stdio::stdout());
        let stderr = rustix::termios::isatty(rustix::stdio::stderr());
        let width = stdout.then(|| match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
            _ => WIDTH_UNKNOWN,
        });
        let plain = get("NO_COLOR").is_some_and(|value| !value.is_empty())
            || get("TERM").is_some_and(|value| value == "dumb");
        Self { stdin, stdout, stderr, width, colour_out: stdout && !plain, colour_err: stderr && !plain }
    }
}
