//! Starts that a shim holds until they are admitted, with a real shim and a real daemon. The daemon that handed them over
//! is played here, because it dies.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use belay_protocol::event::EventKind;
use belay_protocol::shim::{Clocks, FromShim, Hello, LifeEvent, LifeItem, SHIM_PROTOCOL, Start, ToShim};
use belay_protocol::task::TaskStatus;
use belay_testkit::{LONG, World, wait_until};

use crate::support::world;

const TASK: &str = "sh-3kq7w0x2m9d4c8ab";

/// A daemon's side of one connection to a shim.
struct Link(UnixStream);

impl Link {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    fn say(&mut self, message: &ToShim) {
        let text = serde_json::to_vec(message).unwrap();
        self.0.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
        self.0.write_all(&text).unwrap();
    }

    fn hear(&mut self) -> FromShim {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut words = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut words).unwrap();
        serde_json::from_slice(&words).unwrap()
    }

    fn greet(&mut self) -> Hello {
        self.say(&ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 });
        match self.hear() {
            FromShim::Hello(hello) => hello,
            other => panic!("no hello: {other:?}"),
        }
    }

    fn hear_life(&mut self) -> LifeItem {
        loop {
            match self.hear() {
                FromShim::Life(item) => return item,
                FromShim::Memory { .. } => {}
                other => panic!("no life: {other:?}"),
            }
        }
    }
}

/// A shim that holds a start, and that nobody talks to.
struct Held {
    world: World,
    shim: Child,
    socket: PathBuf,
}

impl Held {
    fn new(script: &str) -> Self {
        let world = world();
        // A daemon makes its directories.
        world.belay(["up"]).ok();
        world.belay(["down"]).ok();
        let socket = world.home().join("run/s/0123456789abcdef.sock");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = world.command(world.program());
        command.args(["shim", "0123456789abcdef"]).arg(&socket).stdin(Stdio::from(OwnedFd::from(theirs)));
        #[expect(clippy::disallowed_methods, reason = "a shim, as a daemon would start it")]
        let shim = command.spawn().unwrap();
        drop(command);
        let mut link = Link::new(ours);
        assert_eq!(link.greet().task, None);
        assert_eq!(link.hear(), FromShim::Ready);
        link.say(&ToShim::Start(Box::new(start(&world, script))));
        // Answered when the start has been heard.
        link.say(&ToShim::Signal { ask: 1, signal: 10 });
        assert_eq!(link.hear(), FromShim::Signalled { ask: 1, processes: 0 });
        Self { world, shim, socket }
    }

    fn connect(&self) -> Link {
        Link::new(UnixStream::connect(&self.socket).unwrap())
    }

    /// Our own child: it is not gone until it has been waited for.
    fn wait(mut self) {
        self.world.belay(["down", "--stop-tasks"]).ok();
        assert!(self.shim.wait().unwrap().success());
    }
}

fn start(world: &World, script: &str) -> Start {
    Start {
        task: TASK.to_owned(),
        dir: world.home().join("tasks").join(TASK).into_os_string().into(),
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        is_shell: true,
        env: vec!["SECRET=of the caller".into()],
        cwd: world.dir().as_os_str().to_owned().into(),
        umask: None,
        rlimits: Vec::new(),
        stdin: false,
        stdin_from: None,
        merge: false,
        pty: None,
        detached: true,
        clocks: Clocks { timeout_ms: Some(60_000), grace_ms: 5_000, kill_ms: 10_000, ..Clocks::default() },
        output_limit_bytes: 1 << 20,
        budgets: belay_protocol::task::Budgets::default(),
        memory_bytes: 0,
        hurry: true,
        held: true,
    }
}

// proves S7, K5: the environment of a task that waits is nowhere but in its shim, and survives the daemon there
#[test]
fn a_held_start_outlives_its_daemon_and_begins_with_its_environment() {
    let held = Held::new("echo \"$SECRET\" >> out");
    let out = held.world.dir().join("out");
    let mut link = held.connect();
    let hello = link.greet();
    assert_eq!((hello.task.as_deref(), hello.queued), (Some(TASK), true));
    assert!(!out.exists(), "nothing has begun");
    drop(link);
    // Its journal knows nothing of it, nor of what it waited for: it begins, once.
    held.world.belay(["up"]).ok();
    let ended = held.world.wait_ended(TASK);
    assert_eq!(ended.status, TaskStatus::Completed);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "of the caller\n");
    let told = [
        EventKind::TaskCreated,
        EventKind::TaskAdopted,
        EventKind::TaskStarted,
        EventKind::TaskLeaderExited,
        EventKind::TaskEnded,
    ];
    assert_eq!(held.world.events_of(TASK), told);
    held.wait();
}

// proves K5
#[test]
fn a_held_start_that_is_stopped_never_begins_and_is_kept_on_disk() {
    let held = Held::new("echo begun >> out");
    let mut link = held.connect();
    link.greet();
    let order = belay_protocol::life::StopOrderInfo {
        level: belay_protocol::life::StopLevel::Terminate,
        grace_ms: None,
        actor: "user:me".to_owned(),
        reason: None,
    };
    link.say(&ToShim::Stop { order: order.clone() });
    let item = link.hear_life();
    assert_eq!((item.number, item.event), (1, LifeEvent::Stop { order }));
    let receipt = item.end.unwrap().receipt.unwrap();
    assert_eq!((receipt.signals, receipt.survivors), (Vec::new(), Vec::new()));
    link.say(&ToShim::Admit { task: TASK.to_owned() });
    drop(link);
    // Its end is in a file by now, and nothing keeps the shim.
    let file = held.world.home().join("tasks").join(TASK).join("end.json");
    wait_until("the end file", LONG, || file.exists().then_some(()).ok_or_else(String::new));
    assert!(!held.world.dir().join("out").exists());
    held.wait();
}
