//! The shim's loop: waits for whatever comes, feeds it to the core, and does what the core says. It decides nothing
//! about the life of a task.

mod budget;
mod look;
mod say;
mod talk;
mod wait;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use belay_model::{Exit, Level, SpawnFailure, SpawnStage};
use belay_os::cgroup::Cgroup;
use belay_os::process::{self, monotonic_ms};
use belay_os::pty::Pty;
use belay_os::signal::{Signal, SignalFd};
use belay_os::tree::{self, Reaped, Tree};
use belay_os::{fds, signal};
use belay_protocol::Bytes;
use belay_protocol::shim::{FromShim, ProcessId, Start};
use belay_protocol::task::TerminalSize;
use belay_record::LogWriter;

use self::wait::Source;
use crate::budget::Budgets;
use crate::core::{Action, Core, Identity, Input, Moment};
use crate::kill::{self, Killing};
use crate::link::Link;
use crate::output::{self, Output, READ_BYTES};
use crate::spawn::{self, Held, Pipes};
use crate::stdin::Stdin;

/// How long the streams are left alone when a death is to be expected.
const QUIET_MS: u64 = 2;

/// How long those are killed who came of a start that failed.
const UNHELD_MS: u64 = 5_000;

/// `belay shim NAME SOCKET [CGROUP]`, with the daemon's connection as standard input. Started by a daemon only.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    match set_up(args) {
        Ok(mut shim) => {
            let result = shim.serve();
            shim.clean_up();
            if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        // Nobody listens to a shim's standard error; the daemon sees the connection close.
        Err(_) => ExitCode::FAILURE,
    }
}

struct Shim {
    core: Core,
    socket: PathBuf,
    listener: UnixListener,
    link: Option<Link>,
    children: SignalFd,
    tree: Tree,
    pipes: Option<Pipes>,
    /// What a task reads that was given no input.
    null: OwnedFd,
    task: Option<Task>,
    killing: Option<Killing>,
    budgets: Option<Budgets>,
    watched: bool,
    told_bytes: u64,
    /// What is queued may wait until then for something that goes with it.
    hold_until_ms: Option<u64>,
    buffer: Box<[u8]>,
    /// The link failed while something was being said.
    link_broken: bool,
    /// Until then only a death is news: the tree is being killed, or a stream has ended, which is mostly how a process
    /// begins to end. What is in the pipes meanwhile is read afterwards.
    quiet_until_ms: Option<u64>,
    /// No child is left: whoever of the tree is still there shows in the cgroup alone.
    childless: bool,
    /// Somebody waits for the pid of the task that is being started.
    hurry: bool,
    /// The task is over for the daemon but not everybody is dead: stay until they are, then leave.
    lingering: bool,
    leaving: bool,
}

/// The parts of a task that are made of descriptors.
struct Task {
    leader: Option<process::Identity>,
    leader_reaped: bool,
    output: Output,
    stdin: Stdin,
    /// The task's terminal, held open until its tree is empty: between two openings of `/dev/tty` nobody else may have it,
    /// and what is typed or printed then must not be lost.
    slave: Option<OwnedFd>,
}

/// A process that was made, or could not be, and what it was given.
struct Made {
    leader: Option<process::Identity>,
    result: Result<ProcessId, SpawnFailure>,
    stdin: Stdin,
    source: output::Source,
    slave: Option<OwnedFd>,
}

fn now() -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX), mono_ms: monotonic_ms() }
}

fn set_up(mut args: impl Iterator<Item = OsString>) -> io::Result<Shim> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let name = args.next().and_then(|name| name.into_string().ok()).ok_or_else(missing)?;
    let socket = PathBuf::from(args.next().ok_or_else(missing)?);
    let cgroup = args.next().map(PathBuf::from);
    let control = fds::take_stdin()?;
    signal::shield()?;
    signal::reset_dispositions()?;
    let children = SignalFd::new(&[Signal::CHLD])?;
    tree::become_subreaper()?;
    let link = Link::new(control)?;
    let (pipes, null) = (Pipes::new()?, fds::null()?);
    // Last what would stay behind: from here on nothing fails that `clean_up` does not follow.
    let listener = UnixListener::bind(&socket)?;
    listener.set_nonblocking(true)?;
    let cgroup = cgroup.as_deref().and_then(make_cgroup);
    let own = process::own_identity();
    let identity = Identity {
        name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        process: ProcessId { pid: own.pid, start_ticks: own.start_ticks },
        cgroup: cgroup.as_ref().map(|cgroup| Bytes::from(cgroup.path().as_os_str().to_owned())),
    };
    Ok(Shim {
        core: Core::new(identity),
        socket,
        listener,
        link: Some(link),
        children,
        tree: Tree::new(cgroup),
        pipes: Some(pipes),
        null,
        task: None,
        killing: None,
        budgets: None,
        watched: false,
        told_bytes: 0,
        hold_until_ms: None,
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        link_broken: false,
        quiet_until_ms: None,
        childless: true,
        hurry: false,
        lingering: false,
        leaving: false,
    })
}

impl Shim {
    fn serve(&mut self) -> io::Result<()> {
        while !self.leaving {
            for source in self.wait()? {
                match source {
                    Source::Children => drop(self.children.drain()?),
                    Source::Listener => self.accept()?,
                    Source::Link => self.hear()?,
                    Source::Stream(place) => self.read(place)?,
                    Source::Stdin => self.pass_on_input(),
                    // The level is read below, with everything else about the tree.
                    Source::Cgroup | Source::Budget => {}
                }
            }
            self.look_after_tree()?;
            self.sample_budgets()?;
            self.quiet_until_ms = self.quiet_until_ms.filter(|until_ms| monotonic_ms() < *until_ms);
            self.feed(Input::Tick)?;
            self.place_output();
            self.flush()?;
            if self.tell_output() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Runs the core on one input, and on everything that follows from what it wants done.
    fn feed(&mut self, input: Input) -> io::Result<()> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for action in self.core.handle(now(), input) {
                inputs.extend(self.carry_out(action)?);
            }
        }
        Ok(())
    }

    /// Does one thing. What comes of it, if anything, is the next input.
    fn carry_out(&mut self, action: Action) -> io::Result<Option<Input>> {
        match action {
            Action::Send(message) => {
                self.say(&message);
                Ok(None)
            }
            Action::Spawn(start) => {
                self.hurry = start.hurry;
                Ok(Some(self.spawn(&start)))
            }
            Action::Signal(level) => Ok(self.signal(level)),
            Action::Look => Ok(Some(Input::Looked(self.look()))),
            Action::NameSurvivors => {
                let survivors = self.tree.members().into_iter().map(kill::survivor).collect();
                Ok(Some(Input::Survivors(survivors)))
            }
            Action::Finish => {
                self.killing = None;
                if let Some(task) = &mut self.task {
                    task.output.finish();
                }
                let task = self.task.as_ref();
                let output = task.map(|task| task.output.info()).unwrap_or_default();
                Ok(Some(Input::Finished { output, capture: task.and_then(|task| task.output.fault()) }))
            }
            Action::WriteEndFile(dir, mut end) => {
                if let Some(task) = &mut self.task {
                    // Nobody is there to take it from our memory: on disk it is, and so says the record.
                    task.output.leave_memory();
                    task.output.finish();
                    if let Some(record) = end.life.last_mut().and_then(|item| item.end.as_mut()) {
                        (record.output, record.capture) = (task.output.info(), task.output.fault());
                    }
                }
                self.place_output();
                Ok(Some(Input::EndFileWritten(end.write(&dir).is_ok())))
            }
            Action::Recycle => self.recycle().map(|()| None),
            Action::Exit => {
                self.leaving = !self.lingering;
                Ok(None)
            }
        }
    }

    /// Begins an attempt. What an earlier one has written stays, also if this one cannot be begun.
    fn spawn(&mut self, start: &Start) -> Input {
        self.budgets = Budgets::begin(start.budgets, self.tree.cgroup(), monotonic_ms());
        let made = match start.pty {
            Some(size) => self.spawn_at_terminal(start, size),
            None => self.spawn_on_pipes(start),
        };
        let Made { leader, result, stdin, source, slave } = match made {
            Ok(made) => made,
            Err(failure) => return Input::Spawned(Err(failure)),
        };
        let result = result.map_err(|failure| self.leave_nobody(failure));
        let (mut output, stdin) = if let Some(earlier) = self.task.take() {
            (earlier.output, stdin.after(earlier.stdin))
        } else {
            let dir = Path::new(start.dir.as_os_str());
            (Output::new(LogWriter::new(dir, start.output_limit_bytes, start.memory_bytes)), stdin)
        };
        output.read_from(source);
        self.task = Some(Task { leader, leader_reaped: false, output, stdin, slave });
        self.see_where_it_lives();
        Input::Spawned(result)
    }

    /// What is told as not started does not run, nor does anybody that it may have started before it was given up.
    fn leave_nobody(&mut self, failure: SpawnFailure) -> SpawnFailure {
        if matches!(self.tree.is_empty(), Ok(true)) {
            return failure;
        }
        let ran = match self.tree.kill_until_empty(UNHELD_MS) {
            Ok(killed) if killed.empty => "it had begun, and was ended".to_owned(),
            Ok(killed) => {
                format!("it had begun, and {} of its processes could not be ended", killed.survivors.len())
            }
            Err(error) => format!("it may have begun, and whether it was ended is not known: {error}"),
        };
        SpawnFailure { message: format!("{}; {ran}", failure.message), ..failure }
    }

    fn spawn_on_pipes(&mut self, start: &Start) -> Result<Made, SpawnFailure> {
        // Ready ahead of time for the first attempt, and made for each that follows.
        let pipes = self.pipes.take().map_or_else(Pipes::new, Ok).map_err(|error| no_pipes(&error))?;
        let cgroup = self.tree.cgroup().map(Cgroup::dir);
        let held = spawn::start(start, &pipes, self.null.as_fd(), cgroup);
        let Pipes { stdout, stderr } = pipes;
        let (leader, stdin, result) = parts(held);
        let source = output::Source::Pipes { stdout: stdout.0, stderr: stderr.0 };
        Ok(Made { leader, result, stdin: Stdin::pipe(stdin), source, slave: None })
    }

    fn spawn_at_terminal(&self, start: &Start, size: TerminalSize) -> Result<Made, SpawnFailure> {
        let terminal = spawn::terminal(size)?;
        let cgroup = self.tree.cgroup().map(Cgroup::dir);
        let (leader, stdin, result) = parts(spawn::start_at(start, &terminal, cgroup));
        let Pty { master, slave } = terminal;
        // Ours only while there is somebody who may open it again.
        let slave = leader.is_some().then_some(slave);
        let source = output::Source::Terminal { master };
        Ok(Made { leader, result, stdin: Stdin::terminal(stdin), source, slave })
    }

    fn signal(&mut self, level: Level) -> Option<Input> {
        let leader = self.live_leader();
        if level == Level::Kill {
            let (killing, strike) = Killing::begin(&mut self.tree, leader, monotonic_ms());
            self.killing = Some(killing);
            self.quiet_until_ms = Some(monotonic_ms() + QUIET_MS);
            return Some(Input::Signalled(strike));
        }
        kill::ask(&self.tree, level, leader).map(Input::Signalled)
    }

    fn live_leader(&self) -> Option<process::Identity> {
        self.task.as_ref().filter(|task| !task.leader_reaped).and_then(|task| task.leader)
    }

    /// Reaps, goes on killing if a kill is under way, and notices when nobody is left.
    fn look_after_tree(&mut self) -> io::Result<()> {
        let mut reaped = Vec::new();
        self.childless = self.tree.reap(&mut reaped)?;
        // Before the deaths that it was the reason of.
        self.hear_of_budgets()?;
        let leader = self.live_leader();
        if let Some(strike) = self.killing.as_mut().and_then(|killing| killing.unseen(&reaped, leader)) {
            self.feed(Input::Signalled(strike))?;
        }
        if let Some(Reaped { exit, .. }) =
            reaped.iter().find(|dead| leader.is_some_and(|id| id.pid == dead.pid))
        {
            if let Some(task) = &mut self.task {
                task.leader_reaped = true;
            }
            self.feed(Input::LeaderExited(core_exit(*exit)))?;
        }
        let empty = self.childless && self.tree.is_deserted()?;
        if self.killing.is_some() && !empty {
            self.next_kill_round(!reaped.is_empty())?;
        }
        if self.core.has_tree() && empty {
            self.drain()?;
            self.feed(Input::TreeEmpty)?;
            self.rest();
        }
        if self.lingering && empty {
            self.leaving = true;
        }
        Ok(())
    }

    /// Between two attempts nothing is read and nothing can be written.
    fn rest(&mut self) {
        if let Some(task) = self.task.as_mut().filter(|_| self.core.is_resting()) {
            task.output.rest();
            task.stdin.close();
        }
    }

    fn next_kill_round(&mut self, died: bool) -> io::Result<()> {
        let now_ms = monotonic_ms();
        let leader = self.live_leader();
        let Some(killing) = &mut self.killing else { return Ok(()) };
        if !killing.is_due(now_ms, died) {
            return Ok(());
        }
        let strike = killing.round(&mut self.tree, leader, now_ms);
        self.feed(Input::Signalled(strike))
    }

    fn read(&mut self, place: usize) -> io::Result<()> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let any = task.output.read(place, &mut self.buffer, now().wall_ms) > 0;
        if !task.output.is_open(place) {
            self.quiet_until_ms = Some(monotonic_ms() + QUIET_MS);
        }
        self.place_output();
        self.count_output()?;
        if any && self.core.minds_output() { self.feed(Input::Output) } else { Ok(()) }
    }

    /// Output goes to disk as soon as nobody waits for the task, before anybody hears of it; and the daemon knows where it
    /// lies.
    fn place_output(&mut self) {
        let Some(task) = &mut self.task else { return };
        if !self.core.in_foreground() && self.core.state().is_some_and(|state| !state.is_ended()) {
            task.output.leave_memory();
        }
        let numbers = task.output.memory();
        if numbers != self.core.memory() {
            self.core.set_memory(numbers);
            self.say(&FromShim::Memory { numbers });
            // Whoever follows looks again, in the new place.
            self.told_bytes = 0;
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        let Some(task) = &mut self.task else { return Ok(()) };
        task.slave = None;
        let any = task.output.drain(&mut self.buffer, now().wall_ms) > 0;
        self.place_output();
        self.count_output()?;
        if any && self.core.minds_output() { self.feed(Input::Output) } else { Ok(()) }
    }

    /// Makes everything new for the next task, if nothing of the last one is left; else stays until it is and leaves.
    fn recycle(&mut self) -> io::Result<()> {
        let task = self.task.take();
        self.killing = None;
        if !self.tree.is_empty()? {
            self.lingering = true;
            return Ok(());
        }
        let clean = task.is_none_or(|mut task| task.output.is_closed());
        // A task at a terminal has left the pipes as they were.
        let pipes = self.pipes.take();
        let lifted = self.budgets.take().map_or(Ok(()), Budgets::lift);
        let renewed = lifted.and_then(|()| self.tree.renew());
        let pipes = renewed.and_then(|()| pipes.map_or_else(Pipes::new, Ok));
        match pipes {
            Ok(pipes) if clean => {
                self.pipes = Some(pipes);
                self.watched = false;
                self.told_bytes = 0;
                self.core.set_memory(None);
                self.say(&FromShim::Ready);
            }
            _ => self.leaving = true,
        }
        Ok(())
    }

    fn clean_up(self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(cgroup) = self.tree.into_cgroup() {
            let base = cgroup.path().parent().map(Path::to_owned);
            let _ = cgroup.remove();
            // The last one takes the base along; it is not empty for any other.
            let _ = base.map(std::fs::remove_dir);
        }
    }
}

/// The base may have gone with the last shim of an earlier daemon.
fn make_cgroup(path: &Path) -> Option<Cgroup> {
    let (base, name) = (path.parent()?, path.file_name()?.to_str()?);
    Cgroup::create(base, name)
        .or_else(|_| {
            std::fs::create_dir(base)?;
            Cgroup::create(base, name)
        })
        .ok()
}

/// What a shim keeps of a process, and what it tells of it.
fn parts(
    held: Result<Held, SpawnFailure>,
) -> (Option<process::Identity>, Option<OwnedFd>, Result<ProcessId, SpawnFailure>) {
    match held {
        Ok(held) => {
            let id = held.spawned.identity;
            let process = ProcessId { pid: id.pid, start_ticks: id.start_ticks };
            (Some(id), held.stdin, Ok(process))
        }
        Err(failure) => (None, None, Err(failure)),
    }
}

fn no_pipes(error: &io::Error) -> SpawnFailure {
    SpawnFailure {
        stage: SpawnStage::Resources,
        errno: error.raw_os_error().unwrap_or(0),
        message: format!("no pipes could be made: {error}"),
    }
}

const fn core_exit(exit: tree::Exit) -> Exit {
    match exit {
        tree::Exit::Code(code) => Exit::Code(code),
        tree::Exit::Signal { signal, core_dumped } => Exit::Signal { signal, core_dumped },
    }
}
