//! `belay daemon-log`: the daemon's own log, from its files: no daemon is needed, and none is started. The output of tasks is
//! shown by `belay logs`.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_protocol::{Timestamp, vars};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::{DaemonLogArgs, LogLevel};
use crate::context::Context;
use crate::error::{CliError, Kind};
use crate::ui::out;
use crate::ui::style::Style;
use crate::ui::text::one_line;

/// Room for many notifications at once; their contents do not matter.
const NOTIFICATION_BYTES: usize = 4096;

pub(crate) fn run(args: &DaemonLogArgs, context: &mut Context) -> Result<u8, CliError> {
    let files = LogFiles::of(&context.paths()?.home);
    let watch = args.follow.then(|| Watch::new(&files)).transpose()?;
    if let Some(watch) = &watch {
        watch.add_file();
    }
    let (mut current, text) = files.read_all()?;
    if current.is_none() && text.is_empty() {
        context.note(&format!("There is no log yet at {}.", files.current.display()));
        context.hint("the daemon writes it when it starts: `belay up`");
        if watch.is_none() {
            return Ok(1);
        }
    }
    show(&text, args, true, context)?;
    let Some(watch) = watch else { return Ok(0) };
    loop {
        let mut text = Vec::new();
        files.read_new(&mut current, &watch, &mut text)?;
        show(&text, args, false, context)?;
        context.out.flush()?;
        watch.wait()?;
    }
}

/// Prints the lines that are wanted; of those that are there already, the last ones.
fn show(text: &[u8], args: &DaemonLogArgs, limited: bool, context: &mut Context) -> Result<(), CliError> {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<Line<'_>> =
        text.lines().map(Line::parse).filter(|line| line.is_wanted(args.level)).collect();
    let most =
        args.tail.filter(|_| limited).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    for line in lines.iter().skip(lines.len().saturating_sub(most)) {
        if args.json {
            context.out.json(line)?;
        } else {
            context.out.line(&line.render(context.term.colour_out))?;
        }
    }
    Ok(())
}

/// One line of the log.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<LogLevel>,
    /// What happened, and its fields as `name=value`.
    text: &'a str,
    #[serde(skip)]
    whole: &'a str,
}

impl<'a> Line<'a> {
    /// A line of another form is shown as it is.
    pub(crate) fn parse(whole: &'a str) -> Self {
        let parsed = whole.split_once(' ').and_then(|(at, rest)| {
            let (level, text) = rest.split_once(' ')?;
            let text = text.trim_start();
            Some(Self {
                at: Some(Timestamp::parse(at)?),
                level: Some(LogLevel::from_name(level)?),
                text,
                whole,
            })
        });
        parsed.unwrap_or(Self { at: None, level: None, text: whole, whole })
    }

    /// A line without a level may be of any.
    fn is_wanted(&self, least: Option<LogLevel>) -> bool {
        self.level.zip(least).is_none_or(|(level, least)| level <= least)
    }

    pub(crate) fn render(&self, colour: bool) -> String {
        let style = match self.level {
            Some(LogLevel::Error) => Style::Bad,
            Some(LogLevel::Warn) => Style::Busy,
            Some(LogLevel::Debug | LogLevel::Trace) => Style::Dim,
            Some(LogLevel::Info) | None => Style::Plain,
        };
        style.paint(&one_line(self.whole), colour)
    }
}

/// Where the log is.
struct LogFiles {
    home: PathBuf,
    current: PathBuf,
    old: PathBuf,
}

/// A file of the log, read up to some point.
struct Reading {
    file: File,
    identity: (u64, u64),
    /// The beginning of a line whose end is not written yet.
    unfinished: Vec<u8>,
}

impl LogFiles {
    fn of(home: &Path) -> Self {
        let (current, old) = (home.join(vars::LOG_FILE), home.join(vars::OLD_LOG_FILE));
        Self { home: home.to_owned(), current, old }
    }

    /// Everything that is there, and the current file.
    fn read_all(&self) -> Result<(Option<Reading>, Vec<u8>), CliError> {
        // In this order a rotation between the two hides nothing: the same file is found twice then.
        let mut current = open(&self.current)?;
        let old = open(&self.old)?;
        let mut text = Vec::new();
        if let Some(mut old) = old.filter(|old| !old.is_same(current.as_ref())) {
            old.read_to_end(&mut text)?;
        }
        if let Some(current) = &mut current {
            current.read_lines(&mut text)?;
        }
        Ok((current, text))
    }

    /// What was written since, also across rotations.
    fn read_new(
        &self,
        current: &mut Option<Reading>,
        watch: &Watch,
        text: &mut Vec<u8>,
    ) -> Result<(), CliError> {
        loop {
            // Before the file is opened: what is written after it is read brings a notification.
            watch.add_file();
            let next = open(&self.current)?;
            let is_rotated = !next.as_ref().is_some_and(|next| next.is_same(current.as_ref()));
            // A file that was rotated is not written to any more.
            if let Some(reading) = current {
                reading.read_lines(text)?;
            }
            if !is_rotated || next.is_none() {
                return Ok(());
            }
            let between = open(&self.old)?;
            let between = between.filter(|old| !old.is_same(current.as_ref()) && !old.is_same(next.as_ref()));
            if let Some(mut between) = between.filter(|_| current.is_some()) {
                between.read_to_end(text)?;
            }
            *current = next;
        }
    }
}

impl Reading {
    fn is_same(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| other.identity == self.identity)
    }

    /// Reads every whole line that is new.
    fn read_lines(&mut self, text: &mut Vec<u8>) -> Result<(), CliError> {
        self.read_bytes().map_err(|error| cannot_read(&error))?;
        let end = self.unfinished.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        text.extend(self.unfinished.drain(..end));
        Ok(())
    }

    fn read_bytes(&mut self) -> io::Result<()> {
        // The daemon empties a file that it cannot rename.
        if self.file.metadata()?.len() < self.file.stream_position()? {
            self.file.rewind()?;
            self.unfinished.clear();
        }
        self.file.read_to_end(&mut self.unfinished)?;
        Ok(())
    }

    /// Reads everything that is new, the last line whether or not it is whole.
    fn read_to_end(&mut self, text: &mut Vec<u8>) -> Result<(), CliError> {
        self.read_lines(text)?;
        if !self.unfinished.is_empty() {
            text.append(&mut self.unfinished);
            text.push(b'\n');
        }
        Ok(())
    }
}

/// None: there is no such file.
fn open(path: &Path) -> Result<Option<Reading>, CliError> {
    let opened = File::open(path).and_then(|file| {
        let meta = file.metadata()?;
        Ok(Reading { file, identity: (meta.dev(), meta.ino()), unfinished: Vec::new() })
    });
    match opened {
        Ok(reading) => Ok(Some(reading)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot_read(&error)),
    }
}

fn cannot_read(error: &io::Error) -> CliError {
    CliError::io("read the daemon's log", error)
}

/// Notifies of changes to the log: the kernel does, there is no polling.
struct Watch {
    notify: OwnedFd,
    file: PathBuf,
}

impl Watch {
    /// Begins with the directory: a new file appears there at each rotation.
    fn new(files: &LogFiles) -> Result<Self, CliError> {
        let failed = |errno: Errno| CliError::io("watch the daemon's log", &errno.into());
        let notify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let changes = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        match add_watch(&notify, &files.home, changes) {
            Ok(_) => Ok(Self { notify, file: files.current.clone() }),
            Err(Errno::NOENT) => {
                let message = format!("there is no log yet: {} does not exist", files.home.display());
                Err(CliError::new(Kind::No, message).hint("the daemon makes it when it starts: belay up"))
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Watches the current file, too. A file that is watched already is not watched twice; without one the directory notifies.
    fn add_file(&self) {
        let _ = add_watch(&self.notify, &self.file, WatchFlags::MODIFY);
    }

    /// Waits for the next change; an error if the reader of the output has gone.
    fn wait(&self) -> Result<(), CliError> {
        out::wait_for(&self.notify)?;
        let mut notifications = [0; NOTIFICATION_BYTES];
        loop {
            match rustix::io::read(&self.notify, &mut notifications) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(CliError::io("watch the daemon's log", &errno.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn line_is_parsed_or_shown_whole() {
        let stop = Line::parse("2026-01-01T00:00:00.007Z INFO  stop task=sh-1 reason=\"a b\"");
        assert_eq!(
            serde_json::to_string(&stop).unwrap(),
            r#"{"at":"2026-01-01T00:00:00.007Z","level":"info","text":"stop task=sh-1 reason=\"a b\""}"#
        );
        assert!(stop.is_wanted(Some(LogLevel::Info)) && !stop.is_wanted(Some(LogLevel::Warn)));
        let other = Line::parse("panicked at src/x.rs");
        assert_eq!((other.level, other.text), (None, "panicked at src/x.rs"));
        assert!(other.is_wanted(Some(LogLevel::Error)));
    }

    #[test]
    fn following_crosses_rotations_without_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let files = LogFiles::of(dir.path());
        let rotate = || fs::rename(&files.current, &files.old).unwrap();
        fs::write(&files.old, "1\n").unwrap();
        fs::write(&files.current, "2\nhalf").unwrap();
        let watch = Watch::new(&files).unwrap();
        let (mut current, all) = files.read_all().unwrap();
        assert_eq!(text(&all), "1\n2\n");

        let mut new = |change: &dyn Fn()| {
            change();
            let mut read = Vec::new();
            files.read_new(&mut current, &watch, &mut read).unwrap();
            text(&read).to_owned()
        };
        let write = |lines: &str| fs::write(&files.current, lines).unwrap();
        assert_eq!(new(&|| write("2\nhalf 3\n")), "half 3\n");
        let once = || {
            write("2\nhalf 3\n4\n");
            rotate();
            write("5\n");
        };
        assert_eq!(new(&once), "4\n5\n");
        let twice = || {
            write("5\n6\n");
            rotate();
            write("7\n");
            rotate();
            write("8\n");
        };
        // The file with the line 6 is gone from the directory, and still open here.
        assert_eq!(new(&twice), "6\n7\n8\n");
        assert_eq!(new(&|| write("9\n")), "");
        assert_eq!(new(&|| write("")), "");
        assert_eq!(new(&|| write("a\n")), "a\n");
    }
}
