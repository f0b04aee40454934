//! The one executable: command, daemon, shim and reader of shell lines in a single static file, so that they are always of one version.

use std::process::ExitCode;

fn main() -> ExitCode {
    let rest = std::env::args_os().skip(2);
    // Whatever a shell is given is for the shell.
    if std::env::args_os().next().is_some_and(|name| belay_cli::is_called_as_shell(&name)) {
        return belay_cli::main(std::env::args_os());
    }
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("daemon") => belay_daemon::main(rest),
        Some("shim") => belay_shim::main(rest),
        Some("reader") => belay_daemon::reader_main(),
        _ => belay_cli::main(std::env::args_os()),
    }
}
