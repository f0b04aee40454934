//! Errors as people read them, with their exit codes.

use std::io;

use belay_client::{ClientError, Paths};
use belay_protocol::{ErrorKind, RpcError};

use crate::error::CliError;

fn shown(error: impl Into<CliError>) -> String {
    let error = error.into();
    format!("{}exit code {}", error.render(false), error.exit_code())
}

#[test]
fn from_the_daemon() {
    let ambiguous = RpcError::new(ErrorKind::Ambiguous, "several tasks begin with \"sh-4\"")
        .ids(vec!["sh-4f".into(), "sh-4g".into()])
        .hint("one of: sh-4f, sh-4g");
    insta::assert_snapshot!(shown(ambiguous), @r#"
    error: several tasks begin with "sh-4"
     hint: one of: sh-4f, sh-4g
    exit code 1
    "#);
    let missing = RpcError::new(ErrorKind::NotFound, "there is no task \"sh-\x1b[31mx\"").hint("belay ps -a");
    insta::assert_snapshot!(shown(missing), @r#"
    error: there is no task "sh-␛[31mx"
     hint: belay ps -a
    exit code 1
    "#);
    let pattern = RpcError::invalid("pattern", "the pattern is no regular expression: unclosed group\n(\n^");
    insta::assert_snapshot!(shown(pattern), @r#"
    error: the pattern is no regular expression: unclosed group
           (
           ^
    exit code 2
    "#);
}

#[test]
fn on_the_way_to_it() {
    let refused = io::Error::from_raw_os_error(111);
    let socket = "/run/user/1000/belay/daemon.sock".into();
    insta::assert_snapshot!(shown(ClientError::Unreachable { socket, source: refused }), @r#"
    error: no daemon answers at /run/user/1000/belay/daemon.sock: Connection refused
     hint: start it with `belay up`
    exit code 4
    "#);
    let status = "exit status: 1".to_owned();
    let failed =
        ClientError::StartFailed { status, stderr: "error: the disk is full\nhint: make room\n".into() };
    insta::assert_snapshot!(shown(failed), @r#"
    error: the daemon could not be started: the disk is full
           hint: make room
     hint: `belay doctor` looks at what a daemon needs
    exit code 4
    "#);
    let version =
        ClientError::Version { ours: 1, message: "version 9.0.0 speaks protocol 9".into(), hint: None };
    insta::assert_snapshot!(shown(version), @r#"
    error: this belay speaks protocol 1, and the daemon answered: version 9.0.0 speaks protocol 9
     hint: end the other version with its own `belay down` (tasks run on), then try again
    exit code 4
    "#);
    let (dir, hint) = ("/run/belay".into(), "chmod 700 /run/belay".to_owned());
    let what = "the runtime directory";
    let open = ClientError::Refused { what, dir, problem: "is open to others (mode 0755)".into(), hint };
    insta::assert_snapshot!(shown(open), @r#"
    error: the runtime directory /run/belay is open to others (mode 0755)
     hint: chmod 700 /run/belay
    exit code 4
    "#);
    insta::assert_snapshot!(shown(ClientError::Closed), @r#"
    error: the daemon closed the connection
    exit code 4
    "#);
    insta::assert_snapshot!(shown(Paths::from_env(|_| None).unwrap_err()), @r#"
    error: there is no place for Belay's state: neither BELAY_HOME nor XDG_STATE_HOME nor HOME is set
     hint: set HOME, or set BELAY_HOME to a directory of yours
    exit code 4
    "#);
}
