//! `belay doctor`: what can be seen from here (paths, permissions, the road to the daemon), then what the daemon
//! finds itself.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;

use belay_client::{Client, ClientError, Paths, check_home, check_runtime_dir};
use belay_protocol::daemon::{
    DaemonDoctorParams, DaemonDoctorResult, DoctorFinding, FindingTopic, FindingVerdict,
};
use belay_protocol::methods::DaemonDoctor;
use belay_protocol::vars;

use crate::args::DoctorArgs;
use crate::context::{self, Context};
use crate::error::{CliError, system_text};
use crate::ui::style::Style;
use crate::ui::text::{one_line, wrap};

pub(crate) fn run(args: &DoctorArgs, context: &mut Context) -> Result<u8, CliError> {
    let findings = look();
    let sick = findings.iter().any(|finding| finding.verdict == FindingVerdict::Problem);
    if args.json {
        context.out.json(&DaemonDoctorResult { findings })?;
    } else {
        context.out.text(&render(&findings, context.term.width, context.term.colour_out))?;
    }
    Ok(u8::from(sick))
}

fn finding(
    verdict: FindingVerdict,
    topic: FindingTopic,
    message: impl Into<String>,
    hint: Option<String>,
) -> DoctorFinding {
    DoctorFinding { verdict, topic, message: message.into(), hint }
}

fn look() -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let paths = match Paths::from_env(|name| std::env::var_os(name)) {
        Ok(paths) => paths,
        Err(error) => {
            return vec![finding(
                FindingVerdict::Problem,
                FindingTopic::Home,
                error.to_string(),
                Some(error.hint()),
            )];
        }
    };
    findings.push(home(&paths));
    findings.push(sockets(&paths));
    if let Some(id) = std::env::var_os(vars::TASK) {
        let text = format!("this shell runs inside the task {}; what it starts is its child", id.display());
        findings.push(finding(FindingVerdict::Note, FindingTopic::Lineage, text, None));
    }
    if findings.iter().any(|finding| finding.verdict == FindingVerdict::Problem) {
        return findings;
    }
    findings.extend(daemon(&paths));
    findings.push(log(&paths));
    findings
}

fn home(paths: &Paths) -> DoctorFinding {
    let dir = paths.home.display();
    if let Err(error) = check_home(&paths.home) {
        return finding(FindingVerdict::Problem, FindingTopic::Home, error.to_string(), error.hint());
    }
    match paths.home.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => finding(
            FindingVerdict::Note,
            FindingTopic::Home,
            format!("{dir} does not exist yet; the daemon makes it"),
            None,
        ),
        Err(error) => finding(
            FindingVerdict::Problem,
            FindingTopic::Home,
            format!("{dir}: {}", system_text(&error)),
            None,
        ),
        Ok(meta) if meta.uid() != rustix::process::getuid().as_raw() => {
            let text = format!("{dir} belongs to another user (uid {})", meta.uid());
            let hint = "set BELAY_HOME to a directory of yours".to_owned();
            finding(FindingVerdict::Problem, FindingTopic::Home, text, Some(hint))
        }
        Ok(meta) if meta.mode() & 0o077 != 0 => {
            let text = format!("{dir} can be read by others (mode {:04o})", meta.mode() & 0o7777);
            finding(FindingVerdict::Warning, FindingTopic::Home, text, Some(format!("chmod 700 {dir}")))
        }
        Ok(_) => finding(FindingVerdict::Ok, FindingTopic::Home, dir.to_string(), None),
    }
}

fn sockets(paths: &Paths) -> DoctorFinding {
    match check_runtime_dir(&paths.runtime_dir) {
        Ok(()) => {
            finding(FindingVerdict::Ok, FindingTopic::Socket, paths.socket().display().to_string(), None)
        }
        Err(error) if error.is_absent() => {
            let text = format!("{} does not exist yet; the daemon makes it", paths.runtime_dir.display());
            finding(FindingVerdict::Note, FindingTopic::Socket, text, None)
        }
        Err(error) => finding(FindingVerdict::Problem, FindingTopic::Socket, error.to_string(), error.hint()),
    }
}

fn log(paths: &Paths) -> DoctorFinding {
    let path = paths.home.join(vars::LOG_FILE);
    match path.symlink_metadata() {
        Ok(meta) if !meta.is_file() || meta.mode() & 0o077 != 0 => {
            let text = format!("{} is not a private regular file", path.display());
            let hint = "remove it: the daemon makes another one".to_owned();
            finding(FindingVerdict::Warning, FindingTopic::Log, text, Some(hint))
        }
        Ok(_) => finding(
            FindingVerdict::Ok,
            FindingTopic::Log,
            format!("{}; belay daemon-log shows it", path.display()),
            None,
        ),
        Err(error) => {
            let text = format!("{}: {}", path.display(), system_text(&error));
            finding(FindingVerdict::Note, FindingTopic::Log, text, None)
        }
    }
}

fn daemon(paths: &Paths) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let mut client = match Client::connect(paths) {
        Ok(client) => client,
        Err(error) if error.is_absent() => match Client::connect_or_start(paths, &context::exe()) {
            Ok(client) => {
                findings.push(finding(
                    FindingVerdict::Note,
                    FindingTopic::Daemon,
                    "none was running; it has been started",
                    None,
                ));
                client
            }
            Err(error) => return vec![trouble(error)],
        },
        Err(error) => return vec![trouble(error)],
    };
    if let Some(hello) = client.hello() {
        let ours = env!("CARGO_PKG_VERSION");
        if hello.version == ours {
            findings.push(finding(
                FindingVerdict::Ok,
                FindingTopic::Daemon,
                format!("version {ours}, pid {}", hello.pid),
                None,
            ));
        } else {
            let text = format!("the daemon is version {}, this belay is {ours}", hello.version);
            let hint = "`belay down`, then any command starts this version; tasks run on".to_owned();
            findings.push(finding(FindingVerdict::Warning, FindingTopic::Daemon, text, Some(hint)));
        }
        if hello.home.as_os_str() != paths.home {
            let text = format!("the daemon at this socket keeps its state in {}", hello.home.to_text_lossy());
            let hint = "give each BELAY_HOME its own BELAY_RUNTIME_DIR, or none".to_owned();
            findings.push(finding(FindingVerdict::Warning, FindingTopic::Home, text, Some(hint)));
        }
    }
    match client.call::<DaemonDoctor>(&DaemonDoctorParams {}) {
        Ok(result) => findings.extend(result.findings),
        Err(error) => findings.push(trouble(error)),
    }
    findings
}

fn trouble(error: ClientError) -> DoctorFinding {
    let hint = match &error {
        // The hint would be to run what is running.
        ClientError::StartFailed { .. } => None,
        other => other.hint(),
    };
    let shown = CliError::from(error).render(false);
    let message = shown.lines().next().unwrap_or("").trim_start_matches("error: ").to_owned();
    finding(FindingVerdict::Problem, FindingTopic::Daemon, message, hint)
}

/// What a finding says begins here.
const MARGIN: usize = 22;

/// The word before a hint.
const HINT: usize = "hint: ".len();

/// However narrow the terminal is.
const LEAST_COLUMNS: usize = 20;

pub(crate) fn render(findings: &[DoctorFinding], width: Option<usize>, colour: bool) -> String {
    let mut text = String::new();
    let room = |used: usize| width.map(|width| width.saturating_sub(used).max(LEAST_COLUMNS));
    let next = format!("\n{:MARGIN$}", "");
    for finding in findings {
        let (mark, style) = match finding.verdict {
            FindingVerdict::Ok => ("ok", Style::Good),
            FindingVerdict::Note => ("note", Style::Dim),
            FindingVerdict::Warning => ("warning", Style::Busy),
            FindingVerdict::Problem => ("problem", Style::Bad),
        };
        let mark = style.paint(&format!("{mark:<8}"), colour);
        let message = wrap(&one_line(&finding.message), room(MARGIN)).join(&next);
        let _ = writeln!(text, "{mark} {:<12} {message}", finding.topic.name());
        if let Some(hint) = &finding.hint {
            let word = Style::Hint.paint("hint:", colour);
            let hint = wrap(&one_line(hint), room(MARGIN + HINT)).join(&format!("{next}{:HINT$}", ""));
            let _ = writeln!(text, "{:MARGIN$}{word} {hint}", "");
        }
    }
    let count = |wanted| findings.iter().filter(|finding| finding.verdict == wanted).count();
    let _ = match (count(FindingVerdict::Problem), count(FindingVerdict::Warning)) {
        (0, 0) => writeln!(text, "All is well."),
        (problems, warnings) => writeln!(text, "Problems: {problems}. Warnings: {warnings}."),
    };
    text
}
