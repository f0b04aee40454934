//! What an event says to people. Programs read its fields; here only what somebody at a terminal wants to know of it.

use belay_protocol::event::EventInfo;
use belay_protocol::life::{ExitStatus, StopCause};
use belay_protocol::task::{BudgetInfo, OutcomeInfo, Status};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::outcome;
use crate::ui::human;

/// What has happened, what matters most first: the rest may be cut off.
pub(crate) fn words(event: &EventInfo) -> String {
    let more = More(event);
    let told = match event.kind.split_once('.') {
        Some(("task", what)) => task(what, &more),
        Some(("session", what)) => session(what, &more),
        Some(("lane", what)) => lane(what, &more),
        Some(("daemon", what)) => daemon(what, &more),
        _ => None,
    };
    told.unwrap_or_else(|| raw(event))
}

/// An event of a newer daemon, or one without what we look for: as it stands.
fn raw(event: &EventInfo) -> String {
    let fields = event.more.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Value::String(text) => format!("  {name}={text}"),
        other => format!("  {name}={other}"),
    });
    std::iter::once(event.kind.clone()).chain(fields).collect()
}

/// What is special to an event.
struct More<'a>(&'a EventInfo);

impl More<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.more.get(name)?.as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.more.get(name)?.as_u64()
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        T::deserialize(self.0.more.get(name)?).ok()
    }

    /// `, ` and so on where the field is there, nothing where it is not.
    fn with(&self, before: &str, name: &str) -> String {
        self.text(name).map(|text| format!("{before}{text}")).unwrap_or_default()
    }

    /// ` by user:ada: too slow`.
    fn by_and_why(&self) -> String {
        format!("{}{}", self.with(" by ", "by"), self.with(": ", "reason"))
    }
}

fn task(what: &str, more: &More<'_>) -> Option<String> {
    Some(match what {
        "created" => {
            let from = more.with(" by ", "parent");
            format!("created{}{from}: {}", more.with(" as ", "name"), more.text("command")?)
        }
        "started" => {
            let attempt = more.number("attempt").map(|attempt| format!(" attempt {attempt}"));
            format!("started{}, pid {}", attempt.unwrap_or_default(), more.number("pid")?)
        }
        "adopted" => "found again by a new daemon".to_owned(),
        "detached" => format!("detached{}", detached(more.text("by")?)),
        "signalled" => format!("was sent {}{}", more.text("signal")?, more.with(" by ", "by")),
        "leader_exited" => format!("its first process {}", exited(more.read("exit")?)),
        "attempt_ended" => {
            let next = human::duration(more.number("next_ms")?);
            let (attempt, how) = (more.number("attempt")?, exited(more.read("exit")?));
            format!("attempt {attempt} {how}, the next one in {next}")
        }
        "stalled" => {
            let (silent, cpu) = (more.number("silent_ms")?, more.number("cpu_ms")?);
            let stops = if more.text("policy") == Some("stop") { ", and is stopped" } else { "" };
            let (silent, cpu) = (human::duration(silent), human::took(cpu));
            format!("stalled{stops}: nothing written for {silent}, {cpu} of processor time")
        }
        "recovered" => "gets on again".to_owned(),
        "stopping" => stopping(more)?,
        "ended" => {
            let outcome: Option<OutcomeInfo> = more.read("outcome");
            outcome::sentence_of(more.read::<Status>("status")?, outcome.as_ref())
        }
        "removed" => "removed".to_owned(),
        _ => return None,
    })
}

fn exited(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("exited with {code}"),
        ExitStatus::Signal { number, .. } => format!("died of {}", human::signal(number)),
    }
}

fn detached(by: &str) -> String {
    match by {
        "clock:timeout" => ": the time limit passed".to_owned(),
        "leader" => ": its first process left others behind".to_owned(),
        "disconnect" => ": the connection of whoever waited has ended".to_owned(),
        by => format!(" by {by}"),
    }
}

fn stopping(more: &More<'_>) -> Option<String> {
    let level = more.text("level")?;
    let cause = StopCause::deserialize(Value::Object(more.0.more.clone())).ok()?;
    Some(match cause {
        StopCause::Asked { order } => {
            let why = order.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("stopping ({level}), asked by {}{why}", order.actor)
        }
        StopCause::Clock { clock, limit_ms, reason } => {
            let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let (clock, limit) = (outcome::clock_name(clock), human::duration(limit_ms));
            format!("stopping ({level}): the {clock} of {limit} passed{why}")
        }
        StopCause::Budget { budget, limit, used } => {
            let beyond = outcome::beyond(&BudgetInfo { name: budget, limit, used });
            format!("stopping ({level}): {beyond}")
        }
    })
}

fn session(what: &str, more: &More<'_>) -> Option<String> {
    Some(match what {
        "opened" => format!("opened{}{}", more.with(" as ", "name"), more.with(" by ", "by")),
        "lapsed" => {
            let grace = human::duration(more.number("grace_ms")?);
            format!("its lease is lost; it ends in {grace} if nobody renews it")
        }
        "regained" => "its lease is held again".to_owned(),
        "ending" => {
            let tasks = if more.text("on_end") == Some("keep") { "kept" } else { "stopped" };
            format!("ending{}; its tasks are {tasks}", more.by_and_why())
        }
        "ended" => format!("ended{}", more.by_and_why()),
        _ => return None,
    })
}

fn lane(what: &str, more: &More<'_>) -> Option<String> {
    let name = more.text("lane")?;
    let of_owner = more.with(", for ", "owner");
    Some(match what {
        "queued" => {
            let place = more.number("place").map(|place| format!(", place {place}")).unwrap_or_default();
            format!("waits for lane {name}{place}{of_owner}")
        }
        "granted" => format!("holds lane {name}, generation {}{of_owner}", more.number("generation")?),
        "left" => match more.text("blocked") {
            Some(why) => format!("ended and lane {name} is not free: {why}"),
            None => format!("left lane {name}"),
        },
        "fenced" => {
            format!("lane {name} is closed to {}, stopped{}", more.text("owner")?, more.by_and_why())
        }
        "released" => {
            let owners: Vec<String> = more.read("owners")?;
            let open = if owners.is_empty() { String::new() } else { format!(" to {}", owners.join(", ")) };
            format!("lane {name} is open again{open}, released{}", more.by_and_why())
        }
        _ => return None,
    })
}

fn daemon(what: &str, more: &More<'_>) -> Option<String> {
    Some(match what {
        "started" => {
            let adopting = match more.number("adopting") {
                None | Some(0) => String::new(),
                Some(many) => format!(", looks for {} of the last one", human::count(many, "task", "tasks")),
            };
            format!("daemon {} started{adopting}", more.text("version")?)
        }
        "stopping" => "daemon leaves".to_owned(),
        _ => return None,
    })
}
