//! Tests of the settings: parsing text into values, and editing the text.

use proptest::prelude::*;

use super::*;
use crate::config::bounds;

fn found(text: &str) -> Found {
    Found { stamp: Some((1, 0, text.len() as u64, 1)), text: Some(text.as_bytes().to_vec()) }
}

fn settings(text: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
    let get = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Settings::read(Path::new("/h"), &found(text), get).map_err(|error| error.to_string())
}

#[test]
fn every_value_has_a_source() {
    let text = "[daemon]\nidle_exit = \"never\"\n\n[retention]\nage = \"1h\"\ntasks = 5\n\n[defaults]\non_timeout = \"detach\"\n";
    let read = settings(text, &[("BELAY_RETENTION", "tasks=7")]).unwrap();
    assert_eq!(read.idle_exit(), None);
    assert_eq!((read.retention().age_ms, read.retention().tasks), (3_600_000, 7));
    assert_eq!(read.defaults().on_timeout, Some(OnTimeout::Detach));
    let shown = |key| {
        let item = read.item(key);
        (item.value, item.source)
    };
    let file = |place: &str| ConfigSource::File { place: place.to_owned() };
    let env = ConfigSource::Env { variable: "BELAY_RETENTION".to_owned() };
    assert_eq!(shown(Key::IdleExit), (Json::from("never"), file("/h/config.toml:2")));
    assert_eq!(shown(Key::KeepAge), (Json::from("1h"), file("/h/config.toml:5")));
    assert_eq!(shown(Key::KeepTasks), (Json::from(7), env));
    assert_eq!(shown(Key::KeepOutput), (Json::from("4GiB"), ConfigSource::Default));
    assert_eq!(shown(Key::Timeout), (Json::Null, ConfigSource::Default));
}

#[test]
fn error_names_line_key_and_allowed_values() {
    for (text, message) in [
        (
            "[daemon]\n\nidle_exit = \"soon\"",
            "3: daemon.idle_exit cannot be \"soon\": write it as a duration above 0 such as \"30s\", \"10m\" or \"2h\", at most a year, or \"never\"",
        ),
        (
            "[daemon]\nmax_tasks = 0",
            "2: daemon.max_tasks cannot be 0: write it as a whole number from 1 to 10000",
        ),
        (
            "[daemon]\nmax_tasks = \"5\"",
            "2: daemon.max_tasks cannot be \"5\": write it as a whole number from 1 to 10000",
        ),
        (
            "[retention]\nages = \"1d\"",
            "2: there is no setting ages in [retention]; there are age, tasks, output, events",
        ),
        (
            "\n[retentoin]",
            "2: there is no table [retentoin]; there are daemon, retention, defaults, session, hooks",
        ),
        ("daemon = 1", "1: daemon is a table: write [daemon], and its settings below it"),
        (
            "[defaults]\non_timeout = \"explode\"",
            "2: defaults.on_timeout cannot be \"explode\": write it as \"stop\" or \"detach\"",
        ),
        (
            "[defaults]\noutput_limit = 1",
            "2: defaults.output_limit cannot be 1: write it as a size such as \"64MiB\" or \"4GiB\", at least 256KiB",
        ),
        (
            "[session]\nlease = \"10ms\"",
            "2: session.lease cannot be \"10ms\": write it as a duration such as \"30s\", \"10m\" or \"2h\", at least 1s, at most a year",
        ),
        (
            "[hooks]\non_end = []",
            "2: hooks.on_end cannot be []: write it as a program with its arguments, [\"program\", \"argument\"], or a line for the shell, \"line\"",
        ),
        ("[daemon\n", "1: this is not TOML: unclosed table, expected `]`"),
        (
            "[daemon]\ncgroup = true\n[retention]\nage = \"x\"\n[daemon]\n",
            "5: this is not TOML: duplicate key",
        ),
    ] {
        assert_eq!(settings(text, &[]).unwrap_err(), format!("/h/config.toml:{message}"), "{text}");
    }
    let bytes = Found { stamp: None, text: Some(b"[daemon]\n# \xff\n".to_vec()) };
    let error = Settings::read(Path::new("/h"), &bytes, |_| None).unwrap_err();
    assert_eq!(error.to_string(), "/h/config.toml:2: this line is not UTF-8 text");
}

#[test]
fn edit_changes_only_one_key() {
    let text = "# mine\n[daemon] # all of it\n# how long\nidle_exit = \"5m\"  # short\ncgroup = true";
    let read = settings(text, &[]).unwrap();
    let edit = |text: &str, key, value| read.edited(&found(text), key, &value).unwrap();
    assert_eq!(edit(text, Key::IdleExit, Json::from("90m")), text.replace("\"5m\"", "\"1h30m\""));
    assert_eq!(edit(text, Key::IdleExit, Json::Null), text.replace("idle_exit = \"5m\"  # short\n", ""));
    assert_eq!(edit(text, Key::MaxTasks, Json::from("12")), format!("{text}\nmax_tasks = 12\n"));
    assert_eq!(
        edit(text, Key::OnEnd, Json::from("[\"a\", \"b\"]")),
        format!("{text}\n\n[hooks]\non_end = [\"a\", \"b\"]\n")
    );
    assert_eq!(edit(text, Key::Ttl, Json::Null), text);
    assert_eq!(edit("", Key::Ttl, Json::from("1h")), "[defaults]\nttl = \"1h\"\n");
    assert_eq!(
        edit("daemon = { cgroup = true }\n", Key::Cgroup, Json::from(false)),
        "daemon = { cgroup = false }\n"
    );
    assert_eq!(
        edit("daemon.cgroup = true # x\n", Key::Cgroup, Json::from(false)),
        "daemon.cgroup = false # x\n"
    );
}

#[test]
fn invalid_file_is_corrected_by_setting_its_key() {
    let read = settings("", &[]).unwrap();
    let invalid = found("[daemon]\nidle_exit = 5\n");
    assert_eq!(
        read.edited(&invalid, Key::IdleExit, &Json::from("5m")).unwrap(),
        "[daemon]\nidle_exit = \"5m\"\n"
    );
    let error = read.edited(&invalid, Key::Cgroup, &Json::from(false)).unwrap_err().to_string();
    assert!(error.starts_with("/h/config.toml:2: daemon.idle_exit cannot be 5: "), "{error}");
    let error = read.edited(&found(""), Key::Cgroup, &Json::from("maybe")).unwrap_err().to_string();
    assert_eq!(error, "daemon.cgroup cannot be \"maybe\": write it as true or false");
}

#[test]
fn invalid_change_keeps_previous_settings() {
    let mut read = settings("[retention]\ntasks = 5\n", &[]).unwrap();
    read.take_over(&found("[retention]\ntasks = many\n"));
    assert_eq!(read.retention().tasks, 5);
    assert!(
        read.problem().unwrap().starts_with("/h/config.toml:2: this is not TOML: "),
        "{:?}",
        read.problem()
    );
    read.take_over(&found("[retention]\ntasks = 6\n[daemon]\nidle_exit = \"1m\"\n"));
    assert_eq!((read.retention().tasks, read.problem()), (6, None));
    assert_eq!(read.item(Key::IdleExit).value, Json::from("30m"));
    assert_eq!(read.item(Key::IdleExit).from_next_start, Some(Json::from("1m")));
}

#[test]
fn every_setting_is_documented() {
    let page = include_str!("../../../../docs/settings.md");
    for key in Key::ALL {
        assert!(page.contains(&format!("`{}`", key.name())), "{} is not in docs/settings.md", key.name());
    }
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = settings(&text, &[]);
        let _ = Settings::read(Path::new("/h"), &Found { stamp: None, text: Some(bytes) }, |_| None);
    }

    /// Every value that is set is read back unchanged, in a file with other settings.
    #[test]
    fn edited_values_are_read_back(ms in 1_000..bounds::CLOCK_MS, count in 1_u64..10_000, order in 0_usize..24) {
        let mut values = vec![
            (Key::Timeout, Value::Ms(ms)),
            (Key::MaxTasks, Value::Count(count)),
            (Key::OutputLimit, Value::Bytes(ms + (1 << 18))),
            (Key::OnEnd, Value::Command(Hook::Line(format!("echo \"{ms}\" 'it' \\ # no")))),
        ];
        values.rotate_left(order % 4);
        values.swap(0, order % 3 + 1);
        let read = settings("", &[]).unwrap();
        let mut text = "# head\n".to_owned();
        for (key, value) in &values {
            text = read.edited(&found(&text), *key, &value.to_json()).unwrap();
        }
        let read = settings(&text, &[]).unwrap();
        for (key, value) in values {
            prop_assert_eq!(read.value(key), Some(value), "{}", text);
        }
        prop_assert!(text.starts_with("# head\n"));
    }
}
