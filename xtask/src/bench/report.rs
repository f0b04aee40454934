//! The table of results: printed for whoever waits, and written to docs/benchmarks.md.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::measure::ratio;
use super::value::Value;
use crate::run::{Outcome, root, shown};

const PAGE: &str = "docs/benchmarks.md";

/// What a figure should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn met(self, figure: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(figure <= limit),
            Self::AtLeast(limit) => Some(figure >= limit),
        }
    }

    fn shown(self) -> String {
        match self {
            Self::None => String::new(),
            Self::AtMost(limit) => format!("≤ {limit}"),
            Self::AtLeast(limit) => format!("≥ {limit}"),
        }
    }
}

/// One line of the table.
#[derive(Debug)]
struct Row {
    work: &'static str,
    what: String,
    /// None in a row that sets the value of the row above against something else.
    value: Option<Value>,
    measured: String,
    against: String,
    figure: String,
    target: String,
    met: Option<bool>,
}

/// The value of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) work: String,
    pub(crate) what: String,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
    /// Whether something else was running when it began.
    company: String,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self { rows: Vec::new(), notes: Vec::new(), company: company() }
    }

    /// Ours against theirs; the figure is how many times as long ours takes.
    pub(crate) fn times(
        &mut self,
        work: &'static str,
        what: &str,
        ours: Duration,
        against: (&str, Duration),
        target: Target,
    ) {
        let shown = format!("{} {}", against.0, shown_time(against.1));
        self.push(work, what, ours.into(), shown, ratio(ours, against.1), target);
    }

    /// The row above against something else.
    pub(crate) fn times_again(&mut self, work: &'static str, ours: Duration, against: (&str, Duration)) {
        self.times(work, "the same", ours, against, Target::None);
        if let Some(row) = self.rows.last_mut() {
            row.value = None;
        }
    }

    /// Ours against theirs, where more is better; the figure is which part of theirs ours is.
    pub(crate) fn share(
        &mut self,
        work: &'static str,
        what: &str,
        ours: Value,
        against: (&str, Value),
        target: Target,
    ) {
        let shown = format!("{} {}", against.0, against.1);
        self.push(work, what, ours, shown, ours.amount / against.1.amount, target);
    }

    /// A figure that stands alone, in the unit of its target.
    pub(crate) fn alone(
        &mut self,
        work: &'static str,
        what: &str,
        value: Value,
        figure: f64,
        target: Target,
    ) {
        self.push(work, what, value, String::new(), figure, target);
        if let Some(row) = self.rows.last_mut() {
            row.figure = String::new();
        }
    }

    /// A figure that stands alone and has no target.
    pub(crate) fn value(&mut self, work: &'static str, what: &str, value: Value) {
        self.alone(work, what, value, 0.0, Target::None);
    }

    /// Every row that has a value of its own.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        let measured = |row: &Row| {
            Some(Measured { work: row.work.to_owned(), what: row.what.clone(), value: row.value? })
        };
        self.rows.iter().filter_map(measured).collect()
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    fn push(
        &mut self,
        work: &'static str,
        what: &str,
        value: Value,
        against: String,
        figure: f64,
        target: Target,
    ) {
        let measured = value.to_string();
        let (figure, met, target) = (shown_ratio(figure), target.met(figure), target.shown());
        self.rows.push(Row {
            work,
            what: what.to_owned(),
            value: Some(value),
            measured,
            against,
            figure,
            target,
            met,
        });
    }

    pub(crate) fn table(&self) -> String {
        let mut lines = vec![
            "| work | what | Belay | against | ratio | target | met |".to_owned(),
            "|---|---|---|---|---|---|---|".to_owned(),
        ];
        for row in &self.rows {
            let met = match row.met {
                None => "",
                Some(true) => "yes",
                Some(false) => "**no**",
            };
            lines.push(format!(
                "| {} | {} | {} | {} | {} | {} | {met} |",
                row.work, row.what, row.measured, row.against, row.figure, row.target
            ));
        }
        let mut text = lines.join("\n") + "\n";
        for note in &self.notes {
            let _ = write!(text, "\n- {note}");
        }
        text
    }

    pub(crate) fn write(&self) -> Outcome {
        let path = root().join(PAGE);
        let page = format!("{HEAD}{}\n\n{}\n", self.machine(), self.table());
        std::fs::write(&path, page)?;
        println!("\nwritten: {}", shown(&path));
        Ok(())
    }

    pub(crate) fn machine(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        // The numbers alone: what follows them is the name that somebody gave to a build.
        let kernel: String = kernel.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let kernel = kernel.trim_end_matches('.');
        format!("Measured with {cores} cores, Linux {kernel}. {}", self.company)
    }

    /// A missed target is no failure of the tool, but it is said last.
    pub(crate) fn verdict(&self) {
        let missed: Vec<&str> =
            self.rows.iter().filter(|row| row.met == Some(false)).map(|row| row.what.as_str()).collect();
        match missed.as_slice() {
            [] => println!("every target met"),
            missed => println!("missed: {}", missed.join("; ")),
        }
    }
}

const HEAD: &str = "\
# What Belay costs

Made by `cargo xtask bench`; do not edit. Every work is measured against the bare mechanism, and against peers where
they can do it, in the same run: the contenders take turns, the first round only warms up, and the figures are
medians of the rounds' medians. Absolute times belong to the machine; the ratios are what travels.

`start` is a connection that is open already; `cli` runs one program for each task. The bare way is `posix_spawn`
and `wait` by the measuring process itself, which captures nothing, records nothing and holds nobody.

";

/// Figures that were taken while others worked say so.
fn company() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    if load < 0.5 {
        "Nothing else was running.".to_owned()
    } else {
        format!("Other work was running: the load was {load:.1} when it began.")
    }
}

fn shown_ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

pub(crate) fn shown_time(time: Duration) -> String {
    Value::from(time).to_string()
}
