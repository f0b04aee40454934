//! Running other programs for the tool: the one place that does, with a word about what failed.

use std::error::Error;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// A path below the root as people name it.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The directory with the programs that were built with the profile of this one.
pub(crate) fn bin_dir() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().ok_or("this program has no directory")?.to_owned())
}

/// A command at the root of the repository, without standard input.
pub(crate) fn command(program: impl AsRef<OsStr>, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs us.
pub(crate) fn cargo(words: &[&str]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), words)
}

#[expect(clippy::disallowed_methods, reason = "a tool of the workshop; what it runs is no task")]
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    command.spawn()
}

/// Runs to the end, whatever the end is.
pub(crate) fn status(command: &mut Command) -> Outcome<ExitStatus> {
    let name = command.get_program().display().to_string();
    let mut child = start(command).map_err(|error| format!("cannot run {name}: {error}"))?;
    Ok(child.wait()?)
}

/// Runs to a good end.
pub(crate) fn succeed(command: &mut Command) -> Outcome {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(format!("{} ({status})", line(command)).into()) }
}

/// Whether it runs to a good end, in silence.
pub(crate) fn succeeds_quietly(command: &mut Command) -> bool {
    status(command.stdout(Stdio::null()).stderr(Stdio::null())).is_ok_and(|status| status.success())
}

/// Runs to a good end and gives back what it printed.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let mut child = start(command.stdout(Stdio::piped()))
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut text)?;
    }
    let status = child.wait()?;
    if status.success() { Ok(text) } else { Err(format!("{} ({status})", line(command)).into()) }
}

/// Runs to the end, hands each line on as it comes, and tells how it ended.
pub(crate) fn lines(command: &mut Command, mut each: impl FnMut(&str)) -> Outcome<ExitStatus> {
    let mut child = start(command.stdout(Stdio::piped()))
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            each(&String::from_utf8_lossy(&line?));
        }
    }
    Ok(child.wait()?)
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Asks until the answer is yes, and no longer than `limit`; false if it never was.
pub(crate) fn wait_until(limit: Duration, mut yes: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let until = Instant::now() + limit;
    loop {
        if yes()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
