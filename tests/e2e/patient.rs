//! A client that does not mind the daemon's death: it connects again, starts the next one, and asks the same again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belay_client::{Client, ClientError};
use belay_protocol::event::{EventInfo, EventReadParams as EventsParams};
use belay_protocol::methods::{EventRead, Method, OutputRead, TaskList, TaskWait};
use belay_protocol::output::{OutputFrom, OutputReadParams, StreamName};
use belay_protocol::task::{TaskInfo, TaskListParams, TaskWaitParams, WaitMet};
use belay_testkit::{LONG, World};

pub(crate) struct Patient<'a> {
    world: &'a World,
    client: Option<Client>,
}

impl<'a> Patient<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self { world, client: None }
    }

    /// Asks until there is an answer, whoever gives it.
    #[track_caller]
    pub(crate) fn call<M: Method>(&mut self, params: &M::Params) -> M::Result {
        let until = Instant::now() + LONG * 2;
        loop {
            let error = match self.try_call::<M>(params) {
                Ok(result) => return result,
                Err(error) => error,
            };
            assert!(is_passing(&error), "{} was answered with {error:?}", M::NAME);
            assert!(Instant::now() < until, "{} is not answered: {error:?}", M::NAME);
            self.client = None;
            // Somebody else may be starting the next daemon just now.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn try_call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => connect(self.world)?,
        };
        self.client.insert(client).call_by::<M>(params, Some(Instant::now() + LONG))
    }

    #[track_caller]
    pub(crate) fn wait_ended(&mut self, id: &str) -> TaskInfo {
        let until = Instant::now() + LONG * 2;
        loop {
            let waited = self
                .call::<TaskWait>(&TaskWaitParams { timeout_ms: Some(5_000), ..TaskWaitParams::for_end(id) });
            if waited.met == WaitMet::Ended {
                return waited.task;
            }
            assert!(Instant::now() < until, "the task does not end: {:?}", waited.task);
        }
    }

    /// One stream of a task's output, whole.
    #[track_caller]
    pub(crate) fn output(&mut self, id: &str, stream: StreamName) -> Vec<u8> {
        let (mut from, mut all) = (0, Vec::new());
        loop {
            let params = OutputReadParams {
                id: id.to_owned(),
                from: OutputFrom::Offset { offset: from },
                max_bytes: None,
                stream: Some(stream),
                text: false,
            };
            let page = self.call::<OutputRead>(&params);
            assert_eq!(page.gaps, [[0_u64; 2]; 0], "{id} has gaps");
            all.extend(page.chunks.iter().flat_map(|chunk| &chunk.data.0));
            if page.eof || page.next == from {
                return all;
            }
            from = page.next;
        }
    }

    /// Every task that is known, by id.
    pub(crate) fn tasks(&mut self) -> BTreeMap<String, TaskInfo> {
        let mut params = TaskListParams { all: true, ..TaskListParams::default() };
        let mut all = BTreeMap::new();
        loop {
            let page = self.call::<TaskList>(&params);
            all.extend(page.tasks.into_iter().map(|task| (task.id.clone(), task)));
            params.cursor = page.next_cursor;
            if params.cursor.is_none() {
                return all;
            }
        }
    }

    /// Every event after a number.
    pub(crate) fn events(&mut self, mut after: u64) -> Vec<EventInfo> {
        let mut all = Vec::new();
        loop {
            let page = self.call::<EventRead>(&EventsParams { after, ..EventsParams::default() });
            if page.events.is_empty() {
                return all;
            }
            all.extend(page.events);
            after = page.next;
        }
    }
}

/// Connects; the command starts the daemon where there is none, so that it gets the settings of this world.
pub(crate) fn connect(world: &World) -> Result<Client, ClientError> {
    match Client::connect(&world.paths()) {
        Err(error) if error.is_absent() => {
            let up = world.belay(["up"]);
            // It may be killed before it is ready, and then it is tried again.
            assert!(matches!(up.code, Some(0 | 4)), "{up}");
            Client::connect(&world.paths())
        }
        other => other,
    }
}

/// The daemon is gone, going, or not there yet.
fn is_passing(error: &ClientError) -> bool {
    error.is_disconnect() || error.is_absent()
}

/// Numbers that look random and are the same again for the same seed.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// From `BELAY_TEST_SEED`, or from the clock. The seed is printed, so that a failure can be had again.
    #[expect(clippy::print_stdout, reason = "it is shown when the test fails")]
    pub(crate) fn thrown(what: &str) -> Self {
        let given = std::env::var("BELAY_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() % 1_000_000_007;
        let seed = given.unwrap_or_else(|| u64::try_from(clock()).unwrap());
        println!("{what}: BELAY_TEST_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn another(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, and not including, `sides`.
    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }
}

/// Whether the tests may take minutes.
pub(crate) fn is_long() -> bool {
    std::env::var_os("BELAY_TEST_LONG").is_some()
}
