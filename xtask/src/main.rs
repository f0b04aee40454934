//! `cargo xtask`: what is done to this repository, one module a verb. Nothing of the product is in here.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool talks")]

mod bench;
mod codegen;
mod generate;
mod interop;
mod processes;
mod rights;
mod run;
mod test;
mod tidy;

use std::process::ExitCode;

use crate::run::Outcome;

const USAGE: &str = "\
usage: cargo xtask VERB

  test [--long]        everything that has to hold: format, lints, build, tests, generated files, house rules,
                       types for other languages, real agents; needs root
  tidy                 the house rules
  generate [--check]   write the generated files under docs/, or check that they are as they would be written
  codegen              generate types for TypeScript and Python from the schema with json-schema-to-typescript and
                       datamodel-code-generator, and compile them strictly
  interop [AGENT…]     run real coding agents, offline, with belay as their shell; names: claude, opencode
  bench [NAME…] [--against BINARY [--noise] [--rounds N] [--report FILE]]
                       measure against the bare mechanism and peers; without names also write docs/benchmarks.md
                       --against: compare with another belay binary, in turns; write no docs
                       --noise: also measure that binary against itself, and judge every row by it
                       names: start, cli, foreground, rate, capture, stop, rpc, lease, fan-out, memory, many,
                       sessions, idle, journal, live, gc, follow, leaderless, list, down, steps
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Outcome {
    match words {
        ["test"] => test::run(false),
        ["test", "--long"] => test::run(true),
        ["tidy"] => tidy::run(),
        ["generate"] => generate::run(false),
        ["generate", "--check"] => generate::run(true),
        ["codegen"] => codegen::run(),
        ["interop", names @ ..] => interop::run(names),
        ["bench", names @ ..] => bench::run(names),
        // What the benchmarks run as processes of their own.
        ["part", "hold", way, children] => bench::parts::hold(way, children.parse()?),
        ["part", "relay", children] => bench::parts::relay(children),
        ["part", "echo", socket] => bench::parts::echo(socket.as_ref()),
        ["part", "tell", socket, listeners] => bench::parts::tell(socket.as_ref(), listeners.parse()?),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("not understood: {}\n\n{USAGE}", other.join(" ")).into()),
    }
}
