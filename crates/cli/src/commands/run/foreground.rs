//! `belay run` in the foreground: one loop that waits for the daemon, for signals and for our standard input, and
//! goes on with a new connection when a daemon dies.

use std::time::{Duration, Instant};

use belay_client::{Client, Message, Notification, Response, decode};
use belay_protocol::life::StopLevel;
use belay_protocol::methods::{
    OutputFollow, OutputRead, TaskDetach, TaskStart, TaskStop, TaskWait, TaskWrite, notify,
};
use belay_protocol::output::{ChunkNotification, FollowParams, From as Begin, ReadParams};
use belay_protocol::task::{DetachParams, Met, StartParams, StopParams, TaskInfo, WaitParams, WriteParams};
use belay_protocol::{ErrorKind, RpcError, vars};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::feed::{self, Feed};
use super::key::DetachKey;
use super::signals::Signals;
use super::sink::{Progress, Sink};
use super::words::{explanation, released};
use crate::caller::ProcStatus;
use crate::context::Context;
use crate::cursor::{Cursor, Piece, gap_text};
use crate::error::{CliError, Kind};
use crate::outcome;

/// How often a daemon may go away without having said anything before we give up.
const MAX_FRUITLESS: u32 = 5;

/// How long the rest of the output of an ended task is waited for before it is asked for.
const REST_LIMIT: Duration = Duration::from_secs(2);

/// How long a command runs before people are told how to go on without it.
const HINT_AFTER: Duration = Duration::from_secs(4);

/// What a command ends with whose reader went away: 128 and SIGPIPE.
const PIPE_CLOSED: u8 = 141;
const HUNG_UP: u8 = 129;

/// What a `task/started` notification is read for.
#[derive(Deserialize)]
struct Started {
    id: String,
}

/// The request whose answer is the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Start(i64),
    Wait(i64),
    /// The task has ended, or has been detached by somebody.
    Nothing,
}

/// Whether somebody here wants it in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detach {
    No,
    Wanted,
    Sent,
}

pub(super) struct Foreground<'a> {
    context: &'a mut Context,
    params: StartParams,
    json: bool,
    client: Client,
    connected: bool,
    fruitless: u32,
    awaited: Awaited,
    /// Known as soon as the task is.
    id: Option<String>,
    last: Option<TaskInfo>,
    cursor: Cursor,
    output_over: bool,
    heard_at: Instant,
    sink: Sink,
    /// Our own output could not be written.
    broken: Option<CliError>,
    feed: Option<Feed>,
    signals: Signals,
    key: Option<DetachKey>,
    /// When people are told of the key.
    hint_at: Option<Instant>,
    detach: Detach,
    interrupts: usize,
    hung_up: bool,
    /// The hardest stop that was asked for here, and whether it has been sent on this connection.
    order: Option<(StopLevel, bool)>,
}

impl<'a> Foreground<'a> {
    pub(super) fn run(
        context: &'a mut Context,
        params: StartParams,
        json: bool,
        status: ProcStatus,
    ) -> Result<u8, CliError> {
        // Before anything is started: a Ctrl-C must not fall between.
        let setting = std::env::var_os(vars::DETACH_KEY);
        let key = DetachKey::take(setting.as_deref().filter(|text| !text.is_empty()))?;
        let signals = Signals::register(status, key.is_some())
            .map_err(|error| CliError::io("listen for signals", &error))?;
        let client = context.connect()?;
        let feed = params.stdin.then(Feed::new);
        let mut this = Self {
            context,
            params,
            json,
            client,
            connected: true,
            fruitless: 0,
            awaited: Awaited::Nothing,
            id: None,
            last: None,
            cursor: Cursor::default(),
            output_over: false,
            heard_at: Instant::now(),
            sink: Sink::new(),
            broken: None,
            feed,
            signals,
            hint_at: key.is_some().then(|| Instant::now() + HINT_AFTER),
            key,
            detach: Detach::No,
            interrupts: 0,
            hung_up: false,
            order: None,
        };
        this.ask()?;
        this.work()?;
        this.end()
    }

    fn work(&mut self) -> Result<(), CliError> {
        while !self.is_over() {
            let result = if self.connected { self.turn() } else { self.reconnect() };
            match result {
                Err(error) if error.kind == Kind::Disconnected && self.fruitless < MAX_FRUITLESS => {
                    self.connected = false;
                    self.fruitless += 1;
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let Some(task) = &self.last else { return self.hung_up };
        let all_shown = !self.params.follow || self.output_over || self.cursor.next >= task.output.bytes;
        self.hung_up || outcome::goes_on_alone(task) || all_shown
    }

    /// Asks for what will tell the end: the start itself, or a wait for what was started.
    fn ask(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone() else {
            self.awaited = Awaited::Start(self.client.send::<TaskStart>(&self.params)?);
            return Ok(());
        };
        if self.last.is_none() {
            let params = WaitParams { attach: true, ..WaitParams::for_end(id) };
            self.awaited = Awaited::Wait(self.client.send::<TaskWait>(&params)?);
        }
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), CliError> {
        std::thread::sleep(Duration::from_millis(20) * (self.fruitless - 1));
        self.client = self.context.connect()?;
        self.connected = true;
        if let Some(feed) = &mut self.feed {
            feed.disconnected();
        }
        if let Some((level, _)) = self.order {
            self.order = Some((level, false));
        }
        if self.detach == Detach::Sent {
            self.detach = Detach::Wanted;
        }
        if let Some(id) = self.id.clone()
            && self.params.follow
        {
            let from = Begin::Offset(self.cursor.next);
            self.client.send::<OutputFollow>(&FollowParams { id, from, stream: None })?;
        }
        self.ask()
    }

    fn turn(&mut self) -> Result<(), CliError> {
        while let Some(message) = self.client.take_buffered()? {
            self.message(message)?;
        }
        self.hear();
        self.give_order()?;
        self.give_detach()?;
        self.give_hint();
        self.give_input()?;
        if self.is_over() {
            return Ok(());
        }
        let (readable, input) = self.poll()?;
        if input {
            self.read_input();
        }
        if readable {
            self.client.fill()?;
        } else if self.last.is_some() && self.heard_at.elapsed() >= REST_LIMIT {
            self.read_rest()?;
        }
        Ok(())
    }

    /// Waits; says whether the daemon said something and whether there is input.
    fn poll(&self) -> Result<(bool, bool), CliError> {
        let mut fds = vec![PollFd::new(&self.client, PollFlags::IN)];
        fds.extend(self.signals.poll_fds());
        let input = fds.len();
        let stdin = rustix::stdio::stdin();
        if self.id.is_some() && self.feed.as_ref().is_some_and(Feed::wants_input) {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let rest = self.last.is_some().then(|| self.heard_at + REST_LIMIT);
        let wake =
            self.feed.as_ref().and_then(Feed::wake_at).into_iter().chain(rest).chain(self.hint_at).min();
        let left = wake.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, false)),
            Err(errno) => return Err(CliError::io("wait", &errno.into())),
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok((ready(0), ready(input)))
    }

    fn message(&mut self, message: Message) -> Result<(), CliError> {
        (self.fruitless, self.heard_at) = (0, Instant::now());
        match message {
            Message::Notification(said) => self.notification(&said),
            Message::Response(response) => self.response(response),
        }
    }

    fn notification(&mut self, said: &Notification) -> Result<(), CliError> {
        match said.method.as_str() {
            notify::TASK_STARTED => self.id = Some(read::<Started>(&said.params)?.id),
            notify::OUTPUT_CHUNK => {
                let new: ChunkNotification = read(&said.params)?;
                let pieces = self.cursor.take(new.chunks, &new.gaps, new.next);
                self.show(pieces);
            }
            notify::OUTPUT_END => self.output_over = true,
            _ => {}
        }
        Ok(())
    }

    fn response(&mut self, response: Response) -> Result<(), CliError> {
        let Response { id, result } = response;
        if self.awaited == Awaited::Start(id) {
            self.ended(decode::<TaskStart>(&result.map_err(leaving)?)?);
            return Ok(());
        }
        if self.awaited == Awaited::Wait(id) {
            let waited = decode::<TaskWait>(&result.map_err(leaving)?)?;
            if waited.met == Met::Timeout {
                return self.ask();
            }
            self.ended(waited.task);
            return Ok(());
        }
        if let Some(feed) = &mut self.feed
            && feed.is_answer(id)
        {
            let result = match result {
                Ok(raw) => Ok(decode::<TaskWrite>(&raw)?),
                Err(error) => Err(error),
            };
            if let Err(error) = feed.answered(result, Instant::now()) {
                self.context.note(&format!("belay: standard input: {error}"));
            }
        } else if let Err(error) = result {
            self.context.note(&format!("belay: {error}"));
        }
        Ok(())
    }

    fn ended(&mut self, task: TaskInfo) {
        self.awaited = Awaited::Nothing;
        self.id = Some(task.id.clone());
        self.feed = None;
        self.last = Some(task);
    }

    fn show(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            let chunk = match piece {
                Piece::Chunk(chunk) => chunk,
                Piece::Gap(from, to) => {
                    self.context.note(&gap_text(from, to));
                    continue;
                }
            };
            let mut bytes = chunk.data.0.as_slice();
            while !bytes.is_empty() && !self.hung_up {
                match self.sink.write_some(chunk.stream, bytes, &self.signals) {
                    Ok(Progress::Wrote(length)) => bytes = &bytes[length..],
                    Ok(Progress::Signal) => {
                        self.hear();
                        // A broken connection is noticed by whoever reads from it next.
                        let _ = self.give_order().and_then(|()| self.give_detach());
                        if self.detach == Detach::Sent {
                            // Nobody reads here now; the log has it all.
                            return;
                        }
                    }
                    Err(errno) => {
                        self.sink.close(chunk.stream);
                        self.broken.get_or_insert(CliError::output(&errno.into()));
                        self.want(StopLevel::Terminate);
                        break;
                    }
                }
            }
        }
    }

    /// What was sent to us is passed on: Ctrl-C asks once, insists, then kills.
    fn hear(&mut self) {
        let heard = self.signals.take();
        if heard.hangups > 0 {
            self.hung_up = true;
        }
        if heard.quits > 0 && self.detach == Detach::No {
            self.detach = Detach::Wanted;
        }
        for _ in 0..heard.interrupts {
            self.interrupts += 1;
            let (level, said) = match self.interrupts {
                1 => (StopLevel::Interrupt, "interrupting; once more to terminate it"),
                2 => (StopLevel::Terminate, "terminating; once more to kill it"),
                _ => (StopLevel::Kill, "killing"),
            };
            if self.interrupts <= 3 {
                self.context.note(&format!("belay: {said}"));
            }
            self.want(level);
        }
        if heard.terminates > 0 {
            self.context.note("belay: terminating");
            self.want(StopLevel::Terminate);
        }
    }

    fn want(&mut self, level: StopLevel) {
        let harder = self.order.is_none_or(|(before, _)| rank(level) > rank(before));
        if harder {
            self.order = Some((level, false));
        }
    }

    fn give_order(&mut self) -> Result<(), CliError> {
        let (Some((level, false)), Some(id)) = (self.order, &self.id) else { return Ok(()) };
        if self.last.is_some() {
            return Ok(());
        }
        let reason = if self.broken.is_some() {
            "its output could not be written"
        } else if self.interrupts > 0 {
            "interrupted at the terminal"
        } else {
            "belay run was told to terminate"
        };
        let params = StopParams {
            id: id.clone(),
            level: Some(level),
            grace_ms: None,
            reason: Some(reason.to_owned()),
            actor: None,
            wait: false,
        };
        self.client.send::<TaskStop>(&params)?;
        self.order = Some((level, true));
        Ok(())
    }

    fn give_detach(&mut self) -> Result<(), CliError> {
        let (Detach::Wanted, Some(id), None) = (self.detach, &self.id, &self.last) else { return Ok(()) };
        self.client.send::<TaskDetach>(&DetachParams { id: id.clone(), actor: None })?;
        self.detach = Detach::Sent;
        Ok(())
    }

    /// Once, when it takes long enough to wonder.
    fn give_hint(&mut self) {
        if self.hint_at.is_some_and(|at| Instant::now() >= at) {
            self.hint_at = None;
            if let Some(key) = &self.key {
                self.context.hint(&format!("{} moves it to the background", key.name));
            }
        }
    }

    fn give_input(&mut self) -> Result<(), CliError> {
        let (Some(feed), Some(id)) = (&mut self.feed, &self.id) else { return Ok(()) };
        if let Some(portion) = feed.next(Instant::now()) {
            let key = self.params.token.as_ref().map(|token| format!("{token}-{}", portion.number));
            let params = WriteParams { id: id.clone(), data: portion.data, close: portion.close, key };
            feed.sent(self.client.send::<TaskWrite>(&params)?);
        }
        Ok(())
    }

    fn read_input(&mut self) {
        let Some(feed) = &mut self.feed else { return };
        let mut buffer = vec![0; feed::CHUNK_BYTES];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(length) => feed.input(&buffer[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => {
                feed.input(&[]);
                self.context.note(&format!("belay: standard input: {}", std::io::Error::from(errno)));
            }
        }
    }

    /// The task has ended and its last bytes were not sent: they are asked for.
    fn read_rest(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone() else { return Ok(()) };
        loop {
            let from = Begin::Offset(self.cursor.next);
            let params = ReadParams { id: id.clone(), from, max_bytes: None, stream: None, text: false };
            let page = self.client.call::<OutputRead>(&params)?;
            let before = self.cursor.next;
            let pieces = self.cursor.take(page.chunks, &page.gaps, page.next);
            self.show(pieces);
            if page.eof || self.cursor.next == before {
                self.output_over = true;
                return Ok(());
            }
        }
    }

    fn end(self) -> Result<u8, CliError> {
        let Some(task) = self.last else {
            let name = self.id.as_deref().unwrap_or("the task");
            self.context.note(&format!("belay: the terminal is gone; {name} runs on"));
            return Ok(HUNG_UP);
        };
        if self.json {
            self.context.out.json(&task)?;
        }
        if outcome::goes_on_alone(&task) {
            return released(self.context, &task, self.json);
        }
        if let Some(error) = self.broken {
            return if error.is_quiet() { Ok(PIPE_CLOSED) } else { Err(error) };
        }
        if let Some(text) = explanation(&task, self.order.is_some()) {
            self.context.note(&text);
        }
        Ok(outcome::exit_code(&task))
    }
}

const fn rank(level: StopLevel) -> u8 {
    match level {
        StopLevel::Drain => 0,
        StopLevel::Interrupt => 1,
        StopLevel::Terminate => 2,
        StopLevel::Kill => 3,
    }
}

/// A daemon that is leaving is as good as gone: the next one is asked.
fn leaving(error: RpcError) -> CliError {
    if error.data.kind == ErrorKind::ShuttingDown {
        return CliError::new(Kind::Disconnected, error.message);
    }
    error.into()
}

fn read<T: for<'de> Deserialize<'de>>(raw: &RawValue) -> Result<T, CliError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        CliError::new(Kind::Unreachable, format!("the daemon sent what cannot be read: {error}"))
    })
}
