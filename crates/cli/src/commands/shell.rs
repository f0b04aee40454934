//! `belay shell`: a shell for agents that let one choose theirs. The real shell runs inside a foreground task, with our
//! arguments, directory, environment and streams, so that what an agent runs is listed, stopped with proof, and detached
//! from outside, although the agent knows nothing of it. Called through a link that is named as a shell it is that shell.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use belay_protocol::task::{
    AnswerWhen, OnDisconnect, ShellCommand, ShellSpec, StartFollowParams, TaskStartParams,
};
use belay_protocol::{Bytes, output, vars};
use rustix::fs::fstat;

use crate::caller::{self, ProcStatus};
use crate::context::{Context, exe};
use crate::error::CliError;
use crate::live::{self, Hand, Input, Ours, Plan, Role};
use crate::ui::out::note;

/// Names by which we are called as a shell.
const NAMES: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "belay-shell"];

/// Where shells are when PATH has none.
const USUAL_PLACES: &str = "/bin:/usr/bin:/usr/local/bin";

/// Whether this program was called through a link with the name of a shell. A copy of it with such a name is not one: what
/// it starts of itself would be taken for shells too.
pub fn is_called_as_shell(name: &OsStr) -> bool {
    is_shell_name(name) && std::env::current_exe().is_ok_and(|exe| !is_shell_name(exe.as_os_str()))
}

/// `/opt/x/bash`, `-bash` and `bash.belay` are names of bash.
fn is_shell_name(name: &OsStr) -> bool {
    let name = shell_name(name);
    NAMES.contains(&name.split('.').next().unwrap_or_default())
}

fn shell_name(name: &OsStr) -> String {
    let base = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
    base.strip_prefix('-').unwrap_or(&base).to_owned()
}

pub(crate) fn run(called: &OsStr, mut args: Vec<OsString>, context: &mut Context) -> Result<u8, CliError> {
    let real = real_shell(called)?;
    if called.as_bytes().starts_with(b"-") {
        args.insert(0, "-l".into());
    }
    // What a task's shell starts is part of that task already.
    if std::env::var_os(vars::BRIDGED).is_some_and(|set| !set.is_empty()) {
        return Err(become_shell(&real, &args));
    }
    let status = ProcStatus::read();
    let input = input(Ours::find())?;
    let from = Some(output::OutputFrom::Offset { offset: 0 });
    let begun = start_params(&real, &args, &input, status).and_then(|params| {
        let role = Role::Shell(Box::new(params));
        Plan { role, input, from, opening: Vec::new(), json: false }.begin(context, status)
    });
    match begun {
        Ok(live) => live.run(),
        // Nothing has been started. A shell that cannot run a command is worse than one whose command nobody holds.
        Err(error) => {
            note(&format!("belay: this command is not held: {}", error.message));
            Err(become_shell(&real, &args))
        }
    }
}

fn start_params(
    real: &Path,
    args: &[OsString],
    input: &Input,
    status: ProcStatus,
) -> Result<TaskStartParams, CliError> {
    let at_terminal = matches!(input, Input::Keys(_));
    let stdin_from = match input {
        Input::Handed(hand) => Some(hand.name.clone()),
        Input::Nothing | Input::Bytes { .. } | Input::Keys(_) => None,
    };
    let argv = std::iter::once(real.as_os_str().to_owned()).chain(args.iter().cloned());
    let interactive = at_terminal && is_interactive(args);
    let bridged = (vars::BRIDGED.to_owned(), Bytes::from("1"));
    let spec = ShellSpec {
        command: ShellCommand::argv(argv),
        stdin: false,
        stdin_from,
        merge: !at_terminal && is_one_place(),
        pty: at_terminal.then(live::size_for_task),
    };
    Ok(TaskStartParams {
        env: caller::environment(),
        // In a shell that somebody types into, agents are started whose commands are tasks of their own.
        set_env: (!interactive).then_some(bridged).into_iter().collect::<BTreeMap<_, _>>(),
        umask: status.umask,
        rlimits: caller::limits(),
        // An agent that gives a command up kills its shell.
        on_disconnect: OnDisconnect::Stop,
        token: Some(belay_client::random_token()?),
        answer: AnswerWhen::Ended,
        follow: Some(StartFollowParams::default()),
        ..TaskStartParams::new(spec, caller::directory(None)?.into_os_string())
    })
}

/// Whether a shell with these arguments reads its commands from its input: no `-c`, and no script.
fn is_interactive(args: &[OsString]) -> bool {
    let is_line = |arg: &&[u8]| arg.starts_with(b"-") && !arg.starts_with(b"--") && arg.contains(&b'c');
    let is_option = |arg: &[u8]| arg.starts_with(b"-") || arg.starts_with(b"+");
    let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    !args.iter().any(is_line) && args.iter().all(|arg| is_option(arg))
}

/// Our standard input as it is, if there is one; a terminal's keys go by another road.
fn input(ours: Option<Ours>) -> Result<Input, CliError> {
    match ours {
        Some(ours) => Ok(Input::Keys(ours)),
        None if fstat(rustix::stdio::stdin()).is_err() => Ok(Input::Nothing),
        None => Hand::new().map(Input::Handed),
    }
}

/// Whether our two streams lead to the same place: then their order counts.
fn is_one_place() -> bool {
    let place = |fd: BorrowedFd<'_>| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev)).ok();
    let (stdout, stderr) = (place(rustix::stdio::stdout()), place(rustix::stdio::stderr()));
    stdout.is_some() && stdout == stderr
}

/// The shell behind us, which is never ourselves.
fn real_shell(called: &OsStr) -> Result<PathBuf, CliError> {
    if let Some(named) = std::env::var_os(vars::SHELL).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return if is_other_program(&path) {
            Ok(path)
        } else {
            Err(CliError::usage(format!("{} is {}, which is no shell", vars::SHELL, path.display()))
                .hint("give the whole path of a real shell, or leave it out"))
        };
    }
    let name = shell_name(called);
    let name = name.split('.').next().unwrap_or_default();
    let own = Some(name).filter(|name| NAMES.contains(name) && *name != "belay-shell");
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(USUAL_PLACES);
    let found = own.into_iter().chain(["bash", "sh"]).find_map(|name| {
        let places = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
        places.map(|dir| dir.join(name)).find(|file| is_other_program(file))
    });
    found.ok_or_else(|| {
        CliError::no("no shell was found").hint(format!("name one in {}: its whole path", vars::SHELL))
    })
}

fn is_other_program(path: &Path) -> bool {
    let runs = path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    runs && path.canonicalize().is_ok_and(|real| exe().canonicalize().is_ok_and(|own| own != real))
}

/// Puts the real shell in our place. It only comes back with an error.
fn become_shell(real: &Path, args: &[OsString]) -> CliError {
    let error = std::process::Command::new(real).args(args).exec();
    CliError::io(&format!("run {}", real.display()), &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_known_by_its_name() {
        for name in ["bash", "/opt/belay/bash", "-bash", "sh", "bash.belay", "belay-shell"] {
            assert!(is_shell_name(name.as_ref()), "{name}");
        }
        for name in ["belay", "/usr/bin/belay", "bashful", "", "fish"] {
            assert!(!is_shell_name(name.as_ref()), "{name}");
        }
    }

    #[test]
    fn what_reads_its_commands_from_its_input_is_interactive() {
        let is = |args: &[&str]| is_interactive(&args.iter().map(Into::into).collect::<Vec<_>>());
        assert!(is(&[]) && is(&["-l"]) && is(&["-i", "+x"]) && is(&["--norc"]));
        assert!(!is(&["-c", "x"]) && !is(&["-lc", "x"]) && !is(&["-l", "-c", "x"]) && !is(&["script"]));
    }

    #[test]
    fn the_real_shell_is_not_ourselves() {
        assert!(!is_other_program(&exe()));
        assert!(is_other_program(Path::new("/bin/sh")));
        assert!(!is_other_program(Path::new("/bin")) && !is_other_program(Path::new("/no/such")));
    }
}
