//! The help of every command, and what each refuses.

use std::ffi::OsString;

use crate::args;

fn refused(line: &[&str]) -> String {
    let args: Vec<OsString> =
        std::iter::once("belay").chain(line.iter().copied()).map(OsString::from).collect();
    match args::parse(&args) {
        Ok(verb) => panic!("{line:?} was taken as {verb:?}"),
        Err(error) => error.render().to_string(),
    }
}

#[test]
fn the_definition_holds_together() {
    args::command().debug_assert();
}

#[test]
fn help_of_the_whole() {
    insta::assert_snapshot!("help", args::command().term_width(100).render_help());
}

#[test]
fn help_of_every_command() {
    for name in args::NAMES {
        let mut command = args::command().term_width(100);
        command.build();
        let verb = command.find_subcommand_mut(name).unwrap();
        insta::assert_snapshot!(format!("help-{name}"), verb.render_help());
    }
}

#[test]
fn help_of_what_config_does() {
    let mut command = args::command().term_width(100);
    command.build();
    let config = command.find_subcommand_mut("config").unwrap();
    let helps: Vec<String> = ["get", "set", "unset", "path"]
        .into_iter()
        .map(|name| config.find_subcommand_mut(name).unwrap().render_help().to_string())
        .collect();
    insta::assert_snapshot!("help-config-actions", helps.join("\n---\n\n"));
}

/// Compares each command below this one with its line in the list, and so on below those. Says how many there are.
fn compare_with_list(list: &str, command: &mut clap::Command) -> usize {
    let mut compared = 0;
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        let name = format!("  {} ", sub.get_name());
        let line = list.lines().find_map(|line| line.strip_prefix(&name)).map(str::trim);
        let (help, long) = (sub.render_help().to_string(), sub.render_long_help().to_string());
        assert_eq!([help.lines().next(), long.lines().next()], [line; 2], "{name}");
        compared += 1 + compare_with_list(&help, sub);
    }
    compared
}

#[test]
fn the_help_of_a_command_begins_with_its_line_in_the_list() {
    // As it is asked for: without what each of them takes.
    let list = args::command().term_width(1000).render_help().to_string();
    let mut whole = args::command().term_width(1000);
    whole.build();
    let compared = compare_with_list(&list, &mut whole);
    assert!(compared > args::NAMES.len() + 10, "{compared}");
}

#[test]
fn what_does_not_fit_is_refused_and_named() {
    insta::assert_snapshot!(refused(&["run", "--timeout", "5x", "true"]), @r#"
    error: invalid value '5x' for '--timeout <DURATION>': write a duration as 500ms, 10s, 5m, 2h, 1h30m or 7d, or none

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["run", "--timeout", "-5s", "true"]), @r#"
    error: invalid value '-5s' for '--timeout <DURATION>': write a duration as 500ms, 10s, 5m, 2h, 1h30m or 7d, or none

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["run", "--max-memory", "-1G", "true"]), @r#"
    error: invalid value '-1G' for '--max-memory <SIZE>': write a size as 4096, 64KiB, 10MiB or 1GB

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["run", "--retry", "-1", "true"]), @r#"
    error: invalid value '-1' for '--retry <N>': -1 is not in 1..=1000

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["sessions", "open", "--lease", "-1m"]), @r#"
    error: invalid value '-1m' for '--lease <DURATION>': write a duration as 500ms, 10s, 5m, 2h, 1h30m or 7d

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["logs", "sh-1", "--head", "-3"]), @r#"
    error: invalid value '-3' for '--head <LINES>': write a whole number such as 20

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["logs", "sh-1", "--head", "3", "--tail", "3"]), @r#"
    error: the argument '--head <LINES>' cannot be used with '--tail <LINES>'

    Usage: belay logs --head <LINES> <ID>

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["run", "-c", "make", "true"]), @r#"
    error: the argument '-c <LINE>' cannot be used with '[COMMAND]...'

    Usage: belay run -c <LINE> [COMMAND]...

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["run", "--output-limit", "lots", "true"]), @r#"
    error: invalid value 'lots' for '--output-limit <SIZE>': write a size as 4096, 64KiB, 10MiB or 1GB

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["logs", "sh-1", "-f", "--grep", "x"]), @r#"
    error: the argument '--follow' cannot be used with '--grep <REGEX>'

    Usage: belay logs --follow <ID>

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["stop", "sh-1", "--kill", "--drain"]), @r#"
    error: the argument '--kill' cannot be used with '--drain'

    Usage: belay stop --kill <ID>...

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["stop"]), @r#"
    error: the following required arguments were not provided:
      <ID>...

    Usage: belay stop <ID>...

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(refused(&["pss"]), @r#"
    error: unrecognized subcommand 'pss'

      tip: a similar subcommand exists: 'ps'

    Usage: belay <COMMAND>

    For more information, try '--help'.
    "#);
}

#[test]
fn a_command_keeps_its_own_options() {
    let args = ["belay", "run", "-d", "ls", "-la", "--json"].map(OsString::from);
    let Ok(args::Verb::Run(run)) = args::parse(&args) else { panic!("not a run") };
    assert!(run.detach && !run.json);
    assert_eq!(run.command, ["ls", "-la", "--json"]);
}

#[test]
fn options_of_send_are_no_text() {
    let args = ["belay", "send", "sh-1", "--eof"].map(OsString::from);
    let Ok(args::Verb::Send(send)) = args::parse(&args) else { panic!("not a send") };
    assert!(send.eof && send.text.is_none());
    let args = ["belay", "send", "sh-1", "-1"].map(OsString::from);
    let Ok(args::Verb::Send(send)) = args::parse(&args) else { panic!("not a send") };
    assert_eq!(send.text.unwrap(), "-1");
}

#[test]
fn completions_know_every_command() {
    for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut args::command(), "belay", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(args::NAMES.iter().all(|name| script.contains(name)), "{shell}");
        assert!(script.contains("output-limit"), "{shell}: what the verbs take is missing");
    }
}
