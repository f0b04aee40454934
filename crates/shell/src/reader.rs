//! The order in which a line is read: a glance, the scanner, the real shell, the parser, and the changed line through all
//! of them again. Each step can only make the verdict more careful.

use std::time::Duration;

use crate::bounded::Leash;
use crate::check::{Answer, Checker};
use crate::glance;
use crate::grammar::parse;
use crate::judge::{Judgement, is_alone_and_awaited, judge};
use crate::reading::{Reading, Verdict, Why};
use crate::scan::{Found, scan};
use crate::shell::{Dialect, Grammar, Shell};

/// How much is read, and for how long. Beyond any of these a line is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest line that is looked at; Linux takes none longer as one argument.
    pub line_bytes: usize,
    /// The longest line that the parser sees.
    pub parsed_bytes: usize,
    /// How many words and parentheses that may open a level the parser sees in one line.
    pub openers: usize,
    /// How many of those the parser sees that double its time: `case`, `function`, `=~`.
    pub heavy: usize,
    /// How long the parser may take over one line.
    pub parse_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line_bytes: 128 << 10,
            parsed_bytes: 16 << 10,
            openers: 48,
            heavy: 5,
            parse_time: Duration::from_millis(500),
        }
    }
}

/// Reads lines. One is enough for a whole process, and its bounds hold over all of its readings.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    limits: Limits,
    leash: Leash,
}

impl Reader {
    pub fn new(limits: Limits) -> Self {
        Self { limits, leash: Leash::default() }
    }

    /// Says what `&` means in a line that `shell` will run. It blocks for as long as the checker takes, at most
    /// twice, and the parser, at most [`Limits::parse_time`]; most lines need neither.
    pub fn read(&self, line: &[u8], shell: &Shell, checker: &(impl Checker + ?Sized)) -> Reading {
        let mut ampersands = Vec::new();
        let verdict = if glance::may_be_asynchronous(line) {
            let found = self.take_apart(line, shell.dialect());
            if let Ok(taken) = &found {
                ampersands = taken.found().all_ampersands();
            }
            self.verdict(line, shell, checker, found)
        } else {
            Verdict::Plain
        };
        Reading { verdict, ampersands }
    }

    fn take_apart<'a>(&self, line: &'a [u8], dialect: Dialect) -> Result<Taken<'a>, Why> {
        if dialect == Dialect::Foreign {
            return Err(Why::ForeignShell);
        }
        if line.len() > self.limits.line_bytes {
            return Err(Why::TooLong);
        }
        if line.contains(&0) {
            return Err(Why::NulByte);
        }
        let text = std::str::from_utf8(line).map_err(|_| Why::NotUtf8)?;
        let scans = dialect.grammars().iter().map(|&grammar| Ok((grammar, scan(line, grammar)?)));
        Ok(Taken { text, scans: scans.collect::<Result<_, Why>>()? })
    }

    fn verdict(
        &self,
        line: &[u8],
        shell: &Shell,
        checker: &(impl Checker + ?Sized),
        taken: Result<Taken<'_>, Why>,
    ) -> Verdict {
        match &taken {
            // These lines are not put to the shell: it could not be given them, or its answer would not matter.
            Err(why @ (Why::ForeignShell | Why::TooLong | Why::NulByte)) => {
                return Verdict::Held { why: *why };
            }
            Ok(taken) if taken.scans.iter().all(|(_, found)| found.is_quiet()) => return Verdict::Plain,
            Ok(_) | Err(_) => {}
        }
        let answer = checker.ask(shell, line);
        if let Answer::Refuses { message } = answer {
            return Verdict::SyntaxError { message };
        }
        let detached = taken.and_then(|taken| {
            let place = self.alone_at(&taken, answer == Answer::Accepts)?;
            let Some(place) = place else { return Ok(Verdict::Plain) };
            let command = without(line, place);
            match checker.ask(shell, &command) {
                Answer::Accepts => Ok(Verdict::Detach { command }),
                Answer::Refuses { .. } | Answer::Unasked => Err(Why::ShellDisagrees),
            }
        });
        detached.unwrap_or_else(|why| Verdict::Held { why })
    }

    /// Where the one `&` is that can be left out; nowhere if nothing is asynchronous.
    fn alone_at(&self, taken: &Taken<'_>, accepted: bool) -> Result<Option<usize>, Why> {
        if taken.text.contains('\r') {
            return Err(Why::CarriageReturn);
        }
        let found = taken.found();
        if taken.scans.iter().any(|(_, other)| other.ampersands != found.ampersands) {
            return Err(Why::DialectsDisagree);
        }
        if taken.scans.iter().any(|(_, found)| found.nested) {
            return Err(Why::InSubstitution);
        }
        if !accepted {
            return Err(Why::ShellNotAsked);
        }
        for (_, found) in &taken.scans {
            self.fits(taken.text, found)?;
        }
        let (text, scans) = (taken.text.to_owned(), taken.scans.clone());
        self.leash.run(self.limits.parse_time, move || agree(&text, &scans))?
    }

    fn fits(&self, text: &str, found: &Found) -> Result<(), Why> {
        if text.len() > self.limits.parsed_bytes {
            Err(Why::TooLong)
        } else if found.openers > self.limits.openers || found.heavy > self.limits.heavy {
            Err(Why::TooDeep)
        } else if found.unfit {
            Err(Why::Unclear)
        } else {
            Ok(())
        }
    }
}

/// A line that the scanner took apart by every grammar that it must be read by; there is at least one.
#[derive(Debug)]
struct Taken<'a> {
    text: &'a str,
    scans: Vec<(Grammar, Found)>,
}

impl Taken<'_> {
    fn found(&self) -> &Found {
        &self.scans[0].1
    }
}

/// What all grammars say of the line, if they say the same.
fn agree(text: &str, scans: &[(Grammar, Found)]) -> Result<Option<usize>, Why> {
    let mut said = scans.iter().map(|(grammar, found)| alone_by(text, *grammar, found));
    let first = said.next().unwrap_or(Err(Why::ForeignShell));
    if said.all(|other| other == first) { first } else { Err(Why::DialectsDisagree) }
}

/// The place of the one `&` by one grammar, if the line without it is the same command, awaited.
fn alone_by(text: &str, grammar: Grammar, found: &Found) -> Result<Option<usize>, Why> {
    let parsed = parse(text, grammar).ok_or(Why::ReaderRefused)?;
    let in_arithmetic = |at: &usize| found.arithmetic.iter().any(|range| range.contains(at));
    let seen: Vec<usize> = parsed.ampersands.iter().filter(|at| !in_arithmetic(at)).copied().collect();
    if seen != found.ampersands {
        return Err(Why::ReaderRefused);
    }
    let command = match judge(&parsed.program) {
        // The scanner knows an `&` here that is no arithmetic, and the parser made nothing of it.
        Judgement::Plain if !found.ampersands.is_empty() => return Err(Why::ReaderRefused),
        Judgement::Plain => return Ok(None),
        Judgement::Held(why) => return Err(why),
        Judgement::Alone(command) => command,
    };
    let place = found.last_ampersand.ok_or(Why::ReaderRefused)?;
    let changed = String::from_utf8(without(text.as_bytes(), place)).map_err(|_| Why::ReaderFailed)?;
    let again = scan(changed.as_bytes(), grammar).map_err(|_| Why::ShellDisagrees)?;
    let same_otherwise = again.ampersands.as_slice() == &found.ampersands[..found.ampersands.len() - 1];
    let parsed_again = parse(&changed, grammar).ok_or(Why::ShellDisagrees)?;
    if same_otherwise && is_alone_and_awaited(&parsed_again.program, command) {
        Ok(Some(place))
    } else {
        Err(Why::ShellDisagrees)
    }
}

/// The line with a space where the `&` was: without the space `x&# c` would become the command `x#`.
fn without(line: &[u8], place: usize) -> Vec<u8> {
    let mut command = line.to_vec();
    command[place] = b' ';
    command
}
