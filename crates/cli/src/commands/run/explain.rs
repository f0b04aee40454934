//! `belay run --explain`: says what would be done with a shell line, and runs nothing.

use belay_protocol::Bytes;
use belay_protocol::methods::ShellRead;
use belay_protocol::shell::{LineVerdict, ShellReadParams, ShellReadResult};
use belay_protocol::task::{ShellCommand, ShellSpec, TaskSpec, TaskStartParams};

use crate::context::Context;
use crate::error::CliError;
use crate::ui::text;

/// With the parameters that a start would have.
pub(super) fn explain(params: &TaskStartParams, json: bool, context: &mut Context) -> Result<u8, CliError> {
    let TaskSpec::Shell(ShellSpec { command: ShellCommand::Line { line, shell }, .. }) = &params.spec else {
        return Err(CliError::usage("--explain is for a line of shell").hint("give it with -c 'LINE'"));
    };
    let set = params.set_env.iter().map(|(name, value)| Bytes([name.as_bytes(), b"=", &value.0].concat()));
    let params = ShellReadParams {
        line: line.clone(),
        shell: shell.clone(),
        cwd: Some(params.cwd.clone()),
        env: params.env.iter().cloned().chain(set).collect(),
    };
    let read = context.connect()?.call::<ShellRead>(&params)?;
    if json {
        context.out.json(&read)?;
    } else {
        for told in lines(line, &read) {
            context.out.line(&told)?;
        }
    }
    context.out.flush()?;
    Ok(0)
}

/// The verdict, the line with its `&` marked, and what would run.
pub(crate) fn lines(line: &Bytes, read: &ShellReadResult) -> Vec<String> {
    let mut told = vec![format!("{}: {}", name(read.verdict), read.explanation)];
    told.push(format!("  shell  {}", text::one_line(&read.shell.to_text_lossy())));
    if let Some(command) = &read.command {
        told.push(format!("  runs   {}", text::one_line(command.to_text_lossy().trim_end())));
    }
    let shown = std::str::from_utf8(&line.0).ok().filter(|line| !line.contains(text::is_active));
    if let Some(shown) = shown.filter(|_| !read.ampersands.is_empty()) {
        told.push(format!("  line   {shown}"));
        told.push(format!("         {}", marks(shown, &read.ampersands)));
    }
    told
}

/// A caret under each `&`.
fn marks(line: &str, places: &[[u64; 2]]) -> String {
    let mut marks = String::new();
    for &[from, _] in places {
        let before = usize::try_from(from).ok().and_then(|from| line.get(..from)).map_or(0, text::width);
        marks.push_str(&" ".repeat(before.saturating_sub(marks.len())));
        marks.push('^');
    }
    marks
}

const fn name(verdict: LineVerdict) -> &'static str {
    match verdict {
        LineVerdict::Plain => "plain",
        LineVerdict::Detach => "detach",
        LineVerdict::Held => "held",
        LineVerdict::SyntaxError => "syntax error",
    }
}
