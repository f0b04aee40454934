//! The comparison of two binaries: the values of all rounds by row and binary, the ratios of each round, and a verdict that
//! compares them with the noise of the same run. It measures nothing.

use std::fmt::Write as _;

use super::measure::quantile;
use super::report::Measured;
use super::subject::Role;
use super::value::{Unit, Value};

const RULE: &str = "\
Each work is run once a round for each binary, in turns; the order is rotated by one in every round. A value is the median
of the rounds. `new / old` is the median of the ratios within each round, with their quartiles in brackets; `old / old` is
the same for the old binary against itself, and is what noise looks like in this run.

A row got worse if its `new / old` is worse than 1 by a larger factor than `old / old` shows: `same` means that the factor
is within three quarters of the rounds of the old binary against itself, `unclear` that a single round of it reached
as far, `worse` and `better` that none did. For rates (/s) a smaller value is worse, for everything else a larger one.
A row with fewer than five rounds has no verdict: they show too little of the noise.
";

/// Added to the rule if the old binary was not measured against itself.
const WITHOUT_NOISE: &str = "\
The old binary was not measured against itself in this run, so there is no verdict: run it with `--noise`, or compare the
ratios with those of a run in which both binaries are the same.
";

const NO_ROW_WORSE: &str =
    "No row with a verdict is worse than the old binary beyond what old against old shows in this run.";

/// How many rounds of noise a verdict needs.
const MIN_ROUNDS: usize = 5;

#[derive(Debug)]
struct Row {
    work: String,
    what: String,
    unit: Unit,
    new: Vec<Option<f64>>,
    old: Vec<Option<f64>>,
    again: Vec<Option<f64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Unclear,
    Worse,
    Better,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Unclear => "unclear",
            Self::Worse => "**worse**",
            Self::Better => "better",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Comparison {
    has_noise: bool,
    machine: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Comparison {
    pub(crate) fn new(has_noise: bool, machine: String) -> Self {
        Self { has_noise, machine, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds what one binary did in one round.
    pub(crate) fn add(&mut self, role: Role, round: usize, measured: &[Measured], notes: &[String]) {
        for Measured { work, what, value } in measured {
            let at = self.rows.iter().position(|row| row.work == *work && row.what == *what);
            let at = at.unwrap_or_else(|| {
                let (new, old, again) = (Vec::new(), Vec::new(), Vec::new());
                let (work, what) = (work.clone(), what.clone());
                self.rows.push(Row { work, what, unit: value.unit, new, old, again });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            let values = match role {
                Role::New => &mut row.new,
                Role::Old => &mut row.old,
                Role::OldAgain => &mut row.again,
            };
            values.resize(values.len().max(round + 1), None);
            values[round] = Some(value.amount);
        }
        if role == Role::New {
            self.notes.extend(notes.iter().map(|note| format!("round {}: {note}", round + 1)));
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n\n{RULE}", self.machine);
        if !self.has_noise {
            let _ = write!(text, "\n{WITHOUT_NOISE}");
        }
        text += "\n| work | what | new | spread | old | spread | new / old | old / old | verdict |\n";
        text += "|---|---|---|---|---|---|---|---|---|\n";
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        for note in &self.notes {
            let _ = write!(text, "\n- {note}");
        }
        let worse: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| row.verdict() == Some(Verdict::Worse))
            .map(|row| row.what.as_str())
            .collect();
        match worse.as_slice() {
            _ if !self.has_noise => {}
            [] => drop(writeln!(text, "\n\n{NO_ROW_WORSE}")),
            worse => drop(writeln!(text, "\n\nWorse: {}", worse.join("; "))),
        }
        text
    }
}

impl Row {
    fn line(&self) -> String {
        let shown = |values: &[Option<f64>]| {
            let values = present(values);
            match quantile(&values, 0.5) {
                None => ("–".to_owned(), String::new()),
                Some(median) => (Value::new(median, self.unit).to_string(), self.range(&values)),
            }
        };
        let ((new, new_range), (old, old_range)) = (shown(&self.new), shown(&self.old));
        format!(
            "| {} | {} | {new} | {new_range} | {old} | {old_range} | {} | {} | {} |",
            self.work,
            self.what,
            shown_ratios(&ratios(&self.new, &self.old)),
            shown_ratios(&ratios(&self.again, &self.old)),
            self.verdict().map_or("", Verdict::name),
        )
    }

    /// The smallest and the largest round.
    fn range(&self, values: &[f64]) -> String {
        let ends = [quantile(values, 0.0), quantile(values, 1.0)];
        let [Some(least), Some(most)] = ends.map(|end| end.map(|end| Value::new(end, self.unit))) else {
            return String::new();
        };
        format!("{least} – {most}")
    }

    fn verdict(&self) -> Option<Verdict> {
        judge(&ratios(&self.new, &self.old), &ratios(&self.again, &self.old), self.unit.is_more_better())
    }
}

fn present(values: &[Option<f64>]) -> Vec<f64> {
    values.iter().flatten().copied().collect()
}

/// The ratio of each round that has both values. Nothing against nothing is no difference.
fn ratios(values: &[Option<f64>], base: &[Option<f64>]) -> Vec<f64> {
    let both = values.iter().zip(base).filter_map(|(value, base)| Some(((*value)?, (*base)?)));
    both.map(|(value, base)| if value.max(base) <= 0.0 { 1.0 } else { value / base }).collect()
}

fn shown_ratios(ratios: &[f64]) -> String {
    match [0.25, 0.5, 0.75].map(|part| quantile(ratios, part)) {
        [Some(first), Some(median), Some(third)] => {
            let [first, median, third] = [first, median, third].map(|ratio| Value::new(ratio, Unit::Ratio));
            format!("{median} ({first}–{third})")
        }
        _ => String::new(),
    }
}

/// Whether the ratios differ from 1 by more than noise does. Which of two equal binaries is the slower one in a round is
/// chance, so noise counts in both directions.
fn judge(ratios: &[f64], noise: &[f64], is_more_better: bool) -> Option<Verdict> {
    if ratios.len().min(noise.len()) < MIN_ROUNDS {
        return None;
    }
    let median = quantile(ratios, 0.5)?;
    let noise: Vec<f64> = noise.iter().map(|ratio| ratio.max(1.0 / ratio)).collect();
    let (most, usual) = (quantile(&noise, 1.0)?, quantile(&noise, 0.75)?);
    let factor = median.max(1.0 / median);
    Some(if factor <= usual {
        Verdict::Same
    } else if factor <= most {
        Verdict::Unclear
    } else if (median > 1.0) == is_more_better {
        Verdict::Better
    } else {
        Verdict::Worse
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_values_of_one_round() {
        let new = [Some(2.0), None, Some(9.0), Some(0.0)];
        let old = [Some(1.0), Some(5.0), Some(3.0), Some(0.0), Some(7.0)];
        assert_eq!(ratios(&new, &old), [2.0, 3.0, 1.0]);
    }

    #[test]
    fn verdict_compares_ratio_with_noise() {
        let noise = [0.8, 1.0, 1.1, 1.05, 1.0];
        assert_eq!(judge(&[1.05, 1.1, 1.0, 1.1, 0.9], &noise, false), Some(Verdict::Same));
        assert_eq!(judge(&[1.2; 5], &noise, false), Some(Verdict::Unclear));
        assert_eq!(judge(&[1.3; 5], &noise, false), Some(Verdict::Worse));
        assert_eq!(judge(&[0.5; 5], &noise, false), Some(Verdict::Better));
        assert_eq!(judge(&[0.5; 5], &noise, true), Some(Verdict::Worse));
    }

    #[test]
    fn few_rounds_yield_no_verdict() {
        assert_eq!(judge(&[1.3; 5], &[], false), None);
        assert_eq!(judge(&[1.3; 4], &[1.0; 4], false), None);
    }

    #[test]
    fn rows_collect_rounds_of_each_binary() {
        let mut comparison = Comparison::new(true, String::new());
        for (round, values) in [[4.0, 2.0, 2.0], [6.0, 2.0, 1.0], [5.0, 2.0, 4.0]].into_iter().enumerate() {
            for (role, amount) in [Role::New, Role::Old, Role::OldAgain].into_iter().zip(values) {
                let value = Value::new(amount, Unit::Seconds);
                let measured = Measured { work: "w".to_owned(), what: "what".to_owned(), value };
                comparison.add(role, round, &[measured], &[]);
            }
        }
        let line = comparison.rows[0].line();
        let values = "| w | what | 5.00 s | 4.00 s – 6.00 s | 2.00 s | 2.00 s – 2.00 s |";
        assert_eq!(line, format!("{values} 2.50 (2.25–2.75) | 1.00 (0.75–1.50) |  |"));
    }
}
