//! The loop: it waits for the daemon, for signals and for our standard input. What is done about each is in the files beside it.

use std::time::{Duration, Instant};

use belay_client::{Client, ClientError, Message, OutputCursor, Response, decode};
use belay_protocol::life::StopLevel;
use belay_protocol::methods::{Notification, OutputFollow, OutputRead, TaskStart, TaskWait, TaskWrite};
use belay_protocol::output::{OutputFollowParams, OutputFrom as Begin, OutputReadParams, StreamName};
use belay_protocol::task::{TaskInfo, TaskWaitParams, TerminalSize, WaitMet};
use belay_protocol::{ErrorKind, RpcError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::feed::Feed;
use super::hand::Hand;
use super::key::{self, DetachKey};
use super::ours::Raw;
use super::prefix::Prefix;
use super::signals::{Heeded, Signals};
use super::sink::Sink;
use super::{Input, Plan, Role};
use crate::caller::ProcStatus;
use crate::context::Context;
use crate::error::CliError;
use crate::outcome;

/// How long the rest of the output of an ended task is waited for before it is asked for.
const REST_LIMIT: Duration = Duration::from_secs(2);

/// How long a command runs before people are told how to go on without it.
const HINT_AFTER: Duration = Duration::from_secs(4);

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
pub(super) enum Detach {
    No,
    Wanted,
    Sent,
}

/// Why we are gone before the task's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Our terminal is.
    HungUp,
    /// We were told to end, and only look on.
    Told,
    /// The detach key, of one who only looks on.
    ByKey,
    /// Nobody reads what we write, and we only look on.
    Unread,
}

/// What need not be waited for.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    /// It said something.
    daemon: bool,
    /// Some reader of ours is gone.
    readers: bool,
    /// There is something on our standard input.
    input: bool,
}

pub(crate) struct Live<'a> {
    pub(super) context: &'a mut Context,
    pub(super) role: Role,
    pub(super) json: bool,
    /// The beginning of the names of our writes.
    pub(super) token: String,
    pub(super) client: Client,
    awaited: Awaited,
    /// The call whose subscription is shown.
    pub(super) output_call: Option<i64>,
    /// Known as soon as the task is.
    pub(super) id: Option<String>,
    pub(super) last: Option<TaskInfo>,
    /// Where the output begins; none if it is not shown.
    pub(super) from: Option<Begin>,
    pub(super) cursor: OutputCursor,
    output_over: bool,
    heard_at: Instant,
    pub(super) opening: Vec<u8>,
    pub(super) sink: Sink,
    /// Our own output could not be written.
    pub(super) broken: Option<CliError>,
    pub(super) feed: Option<Feed>,
    /// Where our standard input is got by the task.
    hand: Option<Hand>,
    /// Our terminal, while every key goes to the task.
    pub(super) raw: Option<Raw>,
    /// Whether it was to be so from the beginning.
    pub(super) with_keys: bool,
    pub(super) prefix: Prefix,
    pub(super) signals: Signals,
    pub(super) key: Option<DetachKey>,
    /// When people are told of the key.
    pub(super) hint_at: Option<Instant>,
    pub(super) detach: Detach,
    pub(super) interrupts: usize,
    pub(super) left: Option<Left>,
    /// The hardest stop that was asked for here, and whether it has been sent.
    pub(super) order: Option<(StopLevel, bool)>,
    /// The size of our window, if the task's terminal does not have it yet.
    pub(super) size: Option<TerminalSize>,
    pub(super) resizing: Option<i64>,
    /// One of our streams has lost its reader: what goes there need not be sent any more.
    pub(super) refollow: bool,
    /// Signals that go to the task as they came to us.
    pub(super) passed_on: Vec<&'static str>,
    /// What was typed and found no room.
    pub(super) lost_keys: usize,
    /// Said while the terminal was the task's; told when it is ours again.
    pub(super) notes: Vec<String>,
}

impl<'a> Live<'a> {
    pub(super) fn begin(
        context: &'a mut Context,
        plan: Plan,
        token: String,
        status: ProcStatus,
    ) -> Result<Self, CliError> {
        let Plan { role, input, from, opening, json } = plan;
        // Before anything is started: a Ctrl-C must not fall between.
        let keys = matches!(input, Input::Keys(_));
        let as_shell = matches!(role, Role::Shell(_));
        let key = if keys || as_shell { None } else { DetachKey::take(status)? };
        let prefix = Prefix::new(key::prefix()?.filter(|_| keys && !as_shell));
        let heeded = if as_shell { Heeded::All } else { Heeded::Usual { with_quit: key.is_some() || keys } };
        let signals =
            Signals::register(status, heeded).map_err(|error| CliError::io("listen for signals", &error))?;
        let client = context.connect()?;
        let (feed, hand, raw) = match input {
            Input::Nothing => (None, None, None),
            Input::Bytes { close } => (Some(Feed::new(close)), None, None),
            Input::Handed(hand) => (None, Some(hand), None),
            Input::Keys(ours) => (Some(Feed::new(false)), None, Some(ours.make_raw()?)),
        };
        let viewed = match &role {
            Role::Caller(_) | Role::Shell(_) => None,
            Role::Viewer { id } => Some(id.clone()),
        };
        Ok(Self {
            context,
            json,
            token,
            client,
            awaited: Awaited::Nothing,
            output_call: None,
            last: None,
            from,
            cursor: OutputCursor::default(),
            output_over: false,
            heard_at: Instant::now(),
            opening,
            sink: Sink::new(),
            broken: None,
            feed,
            hand,
            // A task that is there already gets the size that we have.
            size: raw.as_ref().filter(|_| viewed.is_some()).map(|_| super::ours::size()),
            raw,
            with_keys: keys,
            prefix,
            signals,
            hint_at: key.is_some().then(|| Instant::now() + HINT_AFTER),
            key,
            detach: Detach::No,
            interrupts: 0,
            left: None,
            order: None,
            resizing: None,
            refollow: false,
            passed_on: Vec::new(),
            lost_keys: 0,
            notes: Vec::new(),
            id: viewed,
            role,
        })
    }

    pub(crate) fn run(mut self) -> Result<u8, CliError> {
        let worked = self.begin_work().and_then(|()| self.work());
        // Whatever comes now is for people to read at their own terminal.
        self.give_back_terminal();
        worked?;
        if self.is_shell() { self.end_as_shell() } else { self.end() }
    }

    fn begin_work(&mut self) -> Result<(), CliError> {
        let opening = std::mem::take(&mut self.opening);
        self.put(StreamName::Stdout, &opening);
        // A start asks for the output itself.
        if self.is_viewer() {
            self.follow()?;
        }
        self.ask()
    }

    fn work(&mut self) -> Result<(), CliError> {
        while !self.is_over() {
            self.turn()?;
        }
        Ok(())
    }

    pub(super) const fn is_shell(&self) -> bool {
        matches!(self.role, Role::Shell(_))
    }

    pub(super) const fn is_viewer(&self) -> bool {
        matches!(self.role, Role::Viewer { .. })
    }

    /// Whether this task is no longer our business, and runs on. One that its line has put in the background never was.
    pub(super) fn goes_on(&self, task: &TaskInfo) -> bool {
        !task.status.is_ended() || (!self.is_viewer() && outcome::is_detached_by_its_line(task))
    }

    fn is_over(&self) -> bool {
        if self.left.is_some() {
            return true;
        }
        let Some(task) = &self.last else { return false };
        let unshown = self.from.is_some() && !self.output_over && self.cursor.next() < task.output.bytes;
        // What nobody reads need not be shown to its end.
        let all_shown = !unshown || self.sink.open_stream().is_none();
        self.goes_on(task) || all_shown
    }

    /// Asks for what will tell the end: the start itself, or a wait for what was started.
    fn ask(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone() else {
            if let Some(params) = self.role.params() {
                let id = self.client.send::<TaskStart>(params)?;
                (self.awaited, self.output_call) = (Awaited::Start(id), params.follow.map(|_| id));
            }
            return Ok(());
        };
        if self.last.is_none() {
            let params = TaskWaitParams { attach: !self.is_viewer(), ..TaskWaitParams::for_end(id) };
            self.awaited = Awaited::Wait(self.client.send::<TaskWait>(&params)?);
        }
        Ok(())
    }

    /// Asks for the output of a task that runs already.
    fn follow(&mut self) -> Result<(), CliError> {
        let (Some(from), Some(id)) = (self.from, self.id.clone()) else { return Ok(()) };
        let params = OutputFollowParams { id, from, stream: None, text: false };
        self.output_call = Some(self.client.send::<OutputFollow>(&params)?);
        Ok(())
    }

    fn turn(&mut self) -> Result<(), CliError> {
        while let Some(message) = self.client.take_buffered()? {
            self.message(message)?;
        }
        self.hear();
        if let Some(hand) = &self.hand {
            hand.give();
        }
        self.give_signals()?;
        self.follow_what_is_read()?;
        self.give_order()?;
        self.give_detach()?;
        self.give_size()?;
        self.give_hint();
        self.give_input()?;
        if self.is_over() {
            return Ok(());
        }
        let ready = self.poll()?;
        if ready.input {
            self.read_input();
        }
        if ready.readers && self.sink.is_unread() {
            self.nobody_reads();
        }
        if ready.daemon {
            self.client.fill()?;
        } else if self.last.is_some() && self.heard_at.elapsed() >= REST_LIMIT {
            self.read_rest()?;
        }
        Ok(())
    }

    /// Waits, and says for what it need not wait any more.
    fn poll(&self) -> Result<Ready, CliError> {
        let mut fds = vec![PollFd::new(&self.client, PollFlags::IN)];
        fds.extend(self.signals.poll_fds());
        fds.extend(self.hand.as_ref().map(|hand| PollFd::new(hand, PollFlags::IN)));
        let readers = fds.len();
        if self.is_shell() {
            fds.extend(self.sink.readers());
        }
        let input = fds.len();
        let stdin = rustix::stdio::stdin();
        if self.id.is_some() && self.wants_input() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let rest = self.last.is_some().then(|| self.heard_at + REST_LIMIT);
        let wake =
            self.feed.as_ref().and_then(Feed::wake_at).into_iter().chain(rest).chain(self.hint_at).min();
        let left = wake.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(CliError::io("wait", &errno.into())),
        }
        let is_ready = |fd: &PollFd| !fd.revents().is_empty();
        let ready = |at: usize| fds.get(at).is_some_and(is_ready);
        Ok(Ready { daemon: ready(0), readers: fds[readers..input].iter().any(is_ready), input: ready(input) })
    }

    fn message(&mut self, message: Message) -> Result<(), CliError> {
        self.heard_at = Instant::now();
        match message {
            Message::Notification(notification) => self.notification(notification),
            Message::Response(response) => self.response(response)?,
            // Output that was shown in part is removed. The end of the task is still reported.
            Message::SubscriptionEnded { error, .. } => self.say(&format!("belay: {error}")),
            _ => {}
        }
        Ok(())
    }

    fn notification(&mut self, notification: Notification) {
        match notification {
            Notification::TaskStarted(start) => self.id = Some(start.task.id),
            Notification::TaskQueued(start) => self.queued(&start.task),
            Notification::OutputChunk(new) => {
                let new = *new;
                let pieces = self.cursor.take(new.chunks, &new.gaps, new.next);
                self.show(pieces);
            }
            Notification::OutputEnd(_) => self.output_over = true,
            Notification::EventItem(_)
            | Notification::EventEnd(_)
            | Notification::TaskStopped(_)
            | Notification::TaskRemoved(_) => {}
        }
    }

    /// It waits for its turn. It has a name already, by which it can be given up.
    fn queued(&mut self, task: &TaskInfo) {
        let place = task.lane.as_ref().and_then(|seat| seat.place.map(|place| (place, &seat.name)));
        if let (Some((place, lane)), None, true) = (place, &self.id, self.context.term.stderr) {
            self.say(&format!("belay: {} waits for lane {lane}, at place {place}", task.id));
        }
        self.id = Some(task.id.clone());
    }

    fn response(&mut self, response: Response) -> Result<(), CliError> {
        let Response { id, result } = response;
        if self.awaited == Awaited::Start(id) {
            self.ended(decode::<TaskStart>(&result?)?);
            return Ok(());
        }
        if self.awaited == Awaited::Wait(id) {
            let waited = decode::<TaskWait>(&result?)?;
            if waited.met == WaitMet::Timeout {
                return self.ask();
            }
            self.ended(waited.task);
            return Ok(());
        }
        if self.output_call == Some(id) {
            let from = decode::<OutputFollow>(&result?)?.from;
            self.from = Some(Begin::Offset { offset: from });
            self.cursor = OutputCursor::at(self.cursor.next().max(from));
            return Ok(());
        }
        if self.resizing == Some(id) {
            // One that ends meanwhile needs no size.
            self.resizing = None;
            return Ok(());
        }
        if let Some(feed) = &mut self.feed
            && feed.is_answer(id)
        {
            let result = match result {
                Ok(raw) => Ok(decode::<TaskWrite>(&raw)?),
                Err(ClientError::Rpc(error)) => Err(error),
                Err(error) => return Err(error.into()),
            };
            // A person who types to a task that cannot hear it is told; a pipe is treated as a pipe.
            let deaf =
                result.as_ref().err().filter(|error| error.data.kind == ErrorKind::WrongState).cloned();
            if let Err(error) = feed.answered(result, Instant::now()) {
                self.say(&format!("belay: standard input: {error}"));
            } else if let (Some(error), Role::Viewer { .. }, true) =
                (deaf, &self.role, self.context.term.stdin)
            {
                self.say(&format!("belay: {error}"));
            }
        } else if let Err(error) = result
            && !self.came_too_late(&error)
        {
            self.say(&format!("belay: {error}"));
        }
        Ok(())
    }

    /// Whether it is only that the task has ended while something was on its way to it.
    fn came_too_late(&self, error: &ClientError) -> bool {
        let is_ended = |error: &RpcError| error.data.kind == ErrorKind::WrongState;
        self.last.is_some() && matches!(error, ClientError::Rpc(error) if is_ended(error))
    }

    fn ended(&mut self, task: TaskInfo) {
        self.awaited = Awaited::Nothing;
        self.id = Some(task.id.clone());
        self.feed = None;
        self.last = Some(task);
    }

    /// The task has ended and its last bytes were not sent: they are asked for.
    fn read_rest(&mut self) -> Result<(), CliError> {
        let Some(id) = self.id.clone() else { return Ok(()) };
        loop {
            let from = Begin::Offset { offset: self.cursor.next() };
            let params =
                OutputReadParams { id: id.clone(), from, max_bytes: None, stream: None, text: false };
            let page = self.client.call::<OutputRead>(&params)?;
            let before = self.cursor.next();
            let pieces = self.cursor.take(page.chunks, &page.gaps, page.next);
            self.show(pieces);
            if page.eof || self.cursor.next() == before {
                self.output_over = true;
                return Ok(());
            }
        }
    }
}
