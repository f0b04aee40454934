//! `cargo xtask generate`: what is written from the code into docs/, so that it cannot differ from it.

use std::fmt::Write as _;
use std::path::Path;

use crate::run::{Outcome, bin_dir, cargo, command, output, root, succeed};

const SCHEMA: &str = "docs/schema/client.json";
const COMMANDS: &str = "docs/cli.md";
const LIFE: &str = "docs/life-of-a-task.md";
const BEGIN: &str = "<!-- table:begin -->";
const END: &str = "<!-- table:end -->";

pub(crate) fn run(check: bool) -> Outcome {
    let mut differing = Vec::new();
    for (path, text) in [(SCHEMA, client_schema()?), (COMMANDS, commands()?), (LIFE, life()?)] {
        let there = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        if there == text {
            continue;
        }
        if check {
            differing.push(difference(path, &there, &text));
        } else {
            write(&root().join(path), &text)?;
            println!("written: {path}");
        }
    }
    match differing.as_slice() {
        [] => Ok(()),
        some => {
            Err(format!("not as the code says:\n{}\n  what to do: cargo xtask generate", some.join("\n"))
                .into())
        }
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    Ok(std::fs::write(path, text)?)
}

/// The first line that differs, as it is and as it should be.
fn difference(path: &str, there: &str, wanted: &str) -> String {
    let mut there_lines = there.lines();
    let mut wanted_lines = wanted.lines();
    let mut number = 1;
    loop {
        match (there_lines.next(), wanted_lines.next()) {
            (None, None) => return format!("  {path}: the ends of lines differ"),
            (is, should) if is != should => {
                let shown = |line: Option<&str>| line.unwrap_or("(end of the file)").to_owned();
                return format!(
                    "  {path}:{number}\n    is:     {}\n    should: {}",
                    shown(is),
                    shown(should)
                );
            }
            _ => number += 1,
        }
    }
}

/// The schema of the client protocol.
fn client_schema() -> Outcome<String> {
    Ok(serde_json::to_string_pretty(&belay_protocol::schema::document())? + "\n")
}

/// The help of every command, as the program prints it.
fn commands() -> Outcome<String> {
    succeed(&mut cargo(&["build", "--quiet", "--package", "belay"]))?;
    let exe = bin_dir()?.with_file_name("debug").join("belay");
    let help = |words: &[&str]| -> Outcome<String> {
        let mut command = command(&exe, words);
        command.arg("--help").env("COLUMNS", "100").env("NO_COLOR", "1");
        Ok(output(&mut command)?.trim_end().to_owned())
    };
    let mut page = String::from(
        "# Commands\n\nWhat `belay` says of itself with `--help`. Made by `cargo xtask generate`; do not edit.\n",
    );
    let all = help(&[])?;
    write!(page, "\n## belay\n\n```text\n{all}\n```\n")?;
    for verb in verbs(&all) {
        write!(page, "\n## belay {verb}\n\n```text\n{}\n```\n", help(&[verb])?)?;
    }
    Ok(page)
}

/// The commands that the help names.
fn verbs(help: &str) -> Vec<&str> {
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with(' '));
    let names =
        listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// The page with the table that the model draws of itself between the marks.
fn life() -> Outcome<String> {
    let page = std::fs::read_to_string(root().join(LIFE)).map_err(|error| {
        format!("{LIFE}: {error}\n  what to do: write the page, with the lines {BEGIN} and {END} in it")
    })?;
    let table = belay_model::table::render();
    let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.ok_or_else(|| format!("{LIFE} has no {BEGIN} and {END} for the table"))?;
    Ok(format!("{head}{BEGIN}\n{table}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        let text = difference("a", "x\ny\n", "x\nz\n");
        assert_eq!(text, "  a:2\n    is:     y\n    should: z");
        assert!(difference("a", "x\n", "x\ny\n").contains("is:     (end of the file)"));
    }

    #[test]
    fn verbs_are_read_from_the_help() {
        let help = "Usage\n\nCommands:\n  run   Run\n        more of it\n  ps    List\n  help  Help\n\nOptions:\n  -h\n";
        assert_eq!(verbs(help), ["run", "ps"]);
    }
}
