//! A shim is killed: whoever it held is found and ended, its task is told as lost with what is known of it, and nobody
//! else notices.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use belay_os::signal::Signal;
use belay_protocol::daemon::{DaemonDoctorResult, FindingTopic};
use belay_protocol::task::{Outcome, OutcomeKind, StopVerdict, TaskInfo, TaskStatus, TaskStopResult};
use belay_testkit::{LONG, Seen, World, end, example, freeze, is_alive, look_at, send_signal, wait_until};

use rustix::process::{Pid, WaitOptions};

use crate::support::{FOREVER, builder, world};

/// A tree with a leader, a child, one in a session of its own, and two that were orphaned on purpose.
fn start_tree(world: &World) -> TaskInfo {
    let script = format!(
        "echo before; sleep {FOREVER} & setsid sleep {FOREVER} & (sleep {FOREVER} &); \
         (setsid sh -c 'sleep {FOREVER} & exit' &); exec sleep {FOREVER}"
    );
    let id = world.run_detached(["sh", "-c", &script]);
    wait_until("five processes", LONG, || {
        let task = world.inspect(&id);
        let commands: Vec<_> = task.processes.iter().flatten().map(|process| &process.command).collect();
        // And nobody else: the shells that made them have left.
        let all_there = commands == vec![&format!("sleep {FOREVER}"); 5];
        if all_there { Ok(task) } else { Err(format!("{:?}", task.processes)) }
    })
}

fn processes(task: &TaskInfo) -> Vec<Seen> {
    task.processes.iter().flatten().filter_map(|process| look_at(process.pid)).collect()
}

const MAYBE_OTHERS: &str = "; without a cgroup there may be others that left no trace";

/// `more` is what is said of it beyond the count.
#[track_caller]
fn assert_lost(world: &World, tree: &TaskInfo, living: &[Seen], sibling: &TaskInfo, more: &str) {
    let lost = wait_lost(world, &tree.id);
    for seen in living {
        assert!(!is_alive(seen.identity), "{seen:?} lives");
    }
    let outcome = lost.outcome.as_ref().unwrap();
    assert_eq!((outcome.kind(), outcome.exit_code(), outcome.signal()), (OutcomeKind::Lost, None, None));
    assert_eq!(outcome.survivors(), []);
    let known = outcome.reason().unwrap();
    assert_eq!(known, format!("its shim was killed; 5 processes of its tree were found and killed{more}"));
    assert_eq!(world.logs(&tree.id), b"before\n", "what it had written is there");
    let after = world.inspect(&sibling.id);
    assert_eq!((after.status, after.pid), (TaskStatus::Running, sibling.pid), "the sibling is untouched");
    assert!(look_at(sibling.pid.unwrap()).is_some());
    let notices =
        world.belay(["status", "--json"]).ok().json::<belay_protocol::daemon::DaemonStatusResult>().notices;
    let told = format!("task {} was lost: {known}", tree.id);
    assert_eq!(notices.iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(), [told]);
}

fn a_shim_is_killed(world: &World) {
    let sibling = world.inspect(&world.run_detached(["sleep", FOREVER]));
    let tree = start_tree(world);
    let living = processes(&tree);
    assert_eq!(living.len(), 5);
    end(look_at(tree.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    // Whatever it left came to the daemon, which had started it: nobody was missed.
    assert_lost(world, &tree, &living, &sibling, "");
}

fn a_shim_is_killed_while_no_daemon_runs(world: &World, more: &str) {
    let sibling = world.inspect(&world.run_detached(["sleep", FOREVER]));
    let tree = start_tree(world);
    let living = processes(&tree);
    world.kill_daemon();
    end(look_at(tree.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    assert!(living.iter().all(|seen| is_alive(seen.identity)), "they are orphans now: {living:?}");
    assert_lost(world, &tree, &living, &sibling, more);
}

// proves D3
#[test]
fn with_a_cgroup() {
    let world = world();
    a_shim_is_killed(&world);
}

// proves D3
#[test]
fn without_a_cgroup() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    a_shim_is_killed(&world);
}

// proves D3
#[test]
fn as_an_ordinary_user() {
    let world = builder().as_nobody().build();
    a_shim_is_killed(&world);
}

/// The cgroups of all shims of this world, and their sockets.
fn traces_of_shims(world: &World) -> [BTreeSet<PathBuf>; 2] {
    let base = world.status().containment.cgroup.unwrap();
    [PathBuf::from(base.as_os_str()), world.home().join("run/s")].map(|dir| {
        let found = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        found.filter(|entry| !entry.file_type().unwrap().is_file()).map(|entry| entry.path()).collect()
    })
}

// proves D3
#[test]
fn a_killed_shim_leaves_neither_socket_nor_cgroup_and_no_other_loses_its_own() {
    let world = world();
    let sibling = world.inspect(&world.run_detached(["sleep", FOREVER]));
    let holder = sibling.held_by.as_ref().unwrap().shim_pid;
    for _ in 0..5 {
        let tree = start_tree(&world);
        // Those that wait for a task, and the one that holds this.
        let killed: Vec<Seen> =
            world.shims().into_iter().filter(|shim| shim.identity.pid != holder).collect();
        assert!(killed.len() > 1, "{killed:?}");
        let before = traces_of_shims(&world);
        for shim in &killed {
            end(shim.identity);
        }
        wait_lost(&world, &tree.id);
        let name = |shim: &Seen| shim.cmdline.split(' ').nth(2).unwrap().to_owned();
        let names: Vec<String> = killed.iter().map(name).collect();
        let is_of = |path: &PathBuf| names.iter().any(|name| path.to_str().unwrap().contains(name.as_str()));
        assert_eq!(
            before.each_ref().map(|all| all.iter().filter(|path| is_of(path)).count()),
            [names.len(); 2]
        );
        wait_until("no trace of the killed", LONG, || {
            let left: Vec<PathBuf> = traces_of_shims(&world).into_iter().flatten().filter(is_of).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let own = PathBuf::from(sibling.held_by.as_ref().unwrap().cgroup.as_ref().unwrap().as_os_str());
        assert!(own.is_dir(), "another shim's");
    }
    assert_eq!(world.get(&sibling.id).status, TaskStatus::Running);
    world.kill_daemon();
    assert_eq!(world.get(&sibling.id).status, TaskStatus::Running, "and its socket is where it was");
}

// proves D3
#[test]
fn shims_that_are_killed_with_their_daemon_leave_nothing_to_the_next() {
    let world = world();
    let task = world.inspect(&world.run_detached(["sleep", FOREVER]));
    let holder = task.held_by.as_ref().unwrap().shim_pid;
    let idle = wait_until("shims that wait for a task", LONG, || {
        let idle: Vec<Seen> = world.shims().into_iter().filter(|shim| shim.identity.pid != holder).collect();
        if idle.is_empty() { Err("none".to_owned()) } else { Ok(idle) }
    });
    let before = traces_of_shims(&world);
    let daemon = world.daemon().unwrap().identity;
    let _frozen = freeze(daemon.pid);
    for killed in idle.iter().map(|shim| shim.identity).chain([daemon]) {
        end(killed);
    }
    let after = traces_of_shims(&world);
    for (before, after) in before.iter().zip(&after) {
        // A shim may have been on its way that was not seen yet: it left by itself.
        let kept: Vec<&PathBuf> = before.intersection(after).collect();
        assert_eq!(kept.len(), 1, "the task's own: {kept:?}");
    }
    assert_eq!(world.get(&task.id).status, TaskStatus::Running);
}

// proves D3
#[test]
fn with_a_cgroup_while_no_daemon_runs() {
    let world = world();
    a_shim_is_killed_while_no_daemon_runs(&world, "");
}

// proves D3
#[test]
fn without_a_cgroup_while_no_daemon_runs() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    a_shim_is_killed_while_no_daemon_runs(&world, MAYBE_OTHERS);
}

// proves D3
#[test]
fn as_an_ordinary_user_while_no_daemon_runs() {
    let world = builder().as_nobody().build();
    a_shim_is_killed_while_no_daemon_runs(&world, MAYBE_OTHERS);
}

/// One that has left its session, its parents and its environment.
fn start_stranger(world: &World) -> (TaskInfo, Seen) {
    let sleep = format!("sleep {FOREVER}");
    let id =
        world.run_detached(["sh", "-c", &format!("env -i setsid sh -c '{sleep} & exit'; exec sleep 1001")]);
    wait_until("a stranger", LONG, || {
        let task = world.inspect(&id);
        let found = task.processes.iter().flatten().find(|process| process.command == sleep);
        let seen = found.filter(|process| process.ppid == task.held_by.as_ref().unwrap().shim_pid);
        let seen = seen.and_then(|process| look_at(process.pid));
        seen.map(|seen| (task.clone(), seen)).ok_or_else(|| format!("{task:?}"))
    })
}

#[track_caller]
fn wait_lost(world: &World, id: &str) -> TaskInfo {
    wait_until("a lost task", LONG, || {
        let task = world.inspect(id);
        if task.status == TaskStatus::Lost { Ok(task) } else { Err(format!("{task:?}")) }
    })
}

#[track_caller]
fn assert_stranger_found(world: &World, task: &TaskInfo, stranger: &Seen) {
    let lost = wait_lost(world, &task.id);
    assert!(!is_alive(stranger.identity), "{stranger:?} lives");
    let known = lost.outcome.as_ref().and_then(Outcome::reason);
    assert_eq!(known.unwrap(), "its shim was killed; 2 processes of its tree were found and killed");
}

// proves D3
#[test]
fn one_that_left_no_trace_is_found_by_its_cgroup() {
    let world = world();
    let (task, stranger) = start_stranger(&world);
    world.kill_daemon();
    end(look_at(task.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    assert_stranger_found(&world, &task, &stranger);
}

// proves D3
#[test]
fn one_that_left_no_trace_comes_to_the_daemon_that_started_its_shim() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    let (task, stranger) = start_stranger(&world);
    end(look_at(task.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    assert_stranger_found(&world, &task, &stranger);
}

/// The daemon is killed, then the shim: the stranger goes to init, and nothing says whose it was. What is claimed of the
/// end must be true all the same.
fn one_that_left_no_trace_is_not_claimed_to_be_dead(world: &World) {
    let (task, stranger) = start_stranger(world);
    world.kill_daemon();
    end(look_at(task.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    let lost = wait_lost(world, &task.id);
    let lives = is_alive(stranger.identity);
    if lives {
        end(stranger.identity);
    }
    let outcome = lost.outcome.unwrap();
    let known = outcome.reason().unwrap();
    assert!(lives, "it was found after all: then say so ({known})");
    let said = format!("its shim was killed; 1 process of its tree was found and killed{MAYBE_OTHERS}");
    assert_eq!((known, outcome.survivors()), (said.as_str(), &[][..]));
    // Whoever asks beforehand is told as well. (Its code says that a task was lost.)
    let doctor: DaemonDoctorResult = world.belay(["doctor", "--json"]).json();
    let containment =
        doctor.findings.into_iter().find(|finding| finding.topic == FindingTopic::Containment).unwrap();
    let hint = containment.hint.unwrap();
    assert!(hint.contains("an orphan that left its session and cleared its environment is not found"));
}

// proves D3, K2
#[test]
fn without_a_cgroup_one_that_left_no_trace_is_not_claimed_to_be_dead() {
    one_that_left_no_trace_is_not_claimed_to_be_dead(&builder().env("BELAY_CGROUP", "off").build());
}

// proves D3, K2
#[test]
fn an_ordinary_user_is_not_told_either_that_it_is_dead() {
    one_that_left_no_trace_is_not_claimed_to_be_dead(&builder().as_nobody().build());
}

// proves D3, K3
#[test]
fn whoever_is_found_of_a_lost_tree_and_may_not_be_killed_is_named() {
    let world = builder().as_nobody().build();
    // A program that becomes root: what it leaves is beyond an ordinary user's reach.
    let zoo = world.reachable(&example("zoo"));
    std::fs::set_permissions(&zoo, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let id = world.run_detached([zoo.to_str().unwrap(), "other-user", "0", "--marker", world.marker()]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let task = world.inspect(&id);
    let found = processes(&task);
    end(look_at(task.held_by.unwrap().shim_pid).unwrap().identity);
    let outcome = wait_lost(&world, &id).outcome.unwrap();
    let alive: Vec<&Seen> = found.iter().filter(|seen| is_alive(seen.identity)).collect();
    let [seen] = alive.as_slice() else { panic!("one of {found:?} lives: {alive:?}") };
    let [survivor] = outcome.survivors() else { panic!("one survivor: {outcome:?}") };
    let expected = (seen.identity.pid, seen.identity.start_ticks, 0, seen.cmdline.as_str());
    let named = (survivor.pid, survivor.start_ticks, survivor.uid, survivor.command.as_str());
    assert_eq!(named, expected);
    let known = "its shim was killed; 2 processes of its tree were found, of whom 1 could not be killed";
    assert_eq!((outcome.kind(), outcome.reason()), (OutcomeKind::Lost, Some(known)));
    end(seen.identity);
}

/// What a task in the foreground has written lies in the memory of its shim, and is not gone with it.
// proves D3, F3
#[test]
fn what_a_lost_shim_had_in_its_memory_is_kept() {
    let world = world();
    let script = format!("seq 1 1000; echo no >&2; exec sleep {FOREVER}");
    let caller = world.spawn(["run", "--", "sh", "-c", &script]);
    let numbers: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    caller.wait_for_stdout("all of it", |said| said == numbers.as_bytes());
    let [task]: [TaskInfo; 1] = world.belay(["ps", "--json"]).ok().json_lines().try_into().unwrap();
    world.wait_for_output(&task.id, "both streams", |said| said.len() == numbers.len() + 3);
    end(look_at(world.inspect(&task.id).held_by.unwrap().shim_pid).unwrap().identity);
    let lost = wait_lost(&world, &task.id);
    let expected = (numbers.len() as u64 + 3, vec![], false);
    assert_eq!((lost.output.bytes, lost.output.gaps, lost.output.on_disk), expected);
    let kept = world.belay(["logs", "--stream", "stdout", &task.id]).ok();
    assert_eq!(kept.stdout, numbers.as_bytes());
    let found = world.belay(["wait", "--match", "^999$", &task.id]).ok();
    assert_eq!(found.line(), format!("{} matched at 3884: 999", task.id));
    drop(caller);
}

/// Tasks with so many processes each, whose shims are killed at the same time: what is told of each counts its own.
fn each_counts_its_own(world: &World) {
    for _ in 0..4 {
        let tasks: Vec<TaskInfo> = [2, 4, 1].map(|count| start_some(world, count)).into();
        let shims = tasks.iter().map(|task| look_at(task.held_by.as_ref().unwrap().shim_pid).unwrap());
        shims.for_each(|shim| send_signal(shim.identity, Signal::KILL));
        let told = tasks.iter().map(|task| {
            let outcome = wait_lost(world, &task.id).outcome.unwrap();
            assert_eq!(outcome.survivors(), []);
            outcome.reason().unwrap().to_owned()
        });
        let expected = [
            "its shim was killed; 2 processes of its tree were found and killed",
            "its shim was killed; 4 processes of its tree were found and killed",
            "its shim was killed; 1 process of its tree was found and killed",
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}

fn start_some(world: &World, count: usize) -> TaskInfo {
    let others = format!("setsid sleep {FOREVER} & ").repeat(count - 1);
    let id = world.run_detached(["sh", "-c", &format!("{others} exec sleep {FOREVER}")]);
    wait_until("all of its processes", LONG, || {
        let task = world.inspect(&id);
        let commands: Vec<_> = task.processes.iter().flatten().map(|process| &process.command).collect();
        let all_there = commands == vec![&format!("sleep {FOREVER}"); count];
        if all_there { Ok(task) } else { Err(format!("{:?}", task.processes)) }
    })
}

// proves D3
#[test]
fn trees_that_are_lost_at_once_are_counted_apart() {
    each_counts_its_own(&world());
}

// proves D3
#[test]
fn trees_that_are_lost_at_once_are_counted_apart_without_a_cgroup() {
    each_counts_its_own(&builder().env("BELAY_CGROUP", "off").build());
}

/// Shims die one after another, and others start meanwhile: none of the daemon's own children is taken for an orphan.
// proves D3, A1
#[test]
fn whoever_starts_while_shims_die_notices_nothing() {
    let world = world();
    let victims: Vec<String> = (0..30).map(|_| world.run_detached(["sleep", FOREVER])).collect();
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            for id in &victims {
                end(look_at(world.inspect(id).held_by.unwrap().shim_pid).unwrap().identity);
                wait_lost(&world, id);
            }
        });
        while !killing.is_finished() {
            let started = world.run_detached(["true"]);
            assert_eq!(world.wait_ended(&started).status, TaskStatus::Completed);
            // Read by a process of its own, which must live to answer.
            let said: TaskInfo = world.belay(["run", "--json", "-c", "true a b c &"]).ok().json();
            assert_eq!((said.detached, said.command.as_str()), (true, "true a b c"), "{said:?}");
        }
        killing.join().unwrap();
    });
}

// proves D3, W2
#[test]
fn whoever_waits_for_a_lost_task_is_told_at_once() {
    let world = world();
    let tree = start_tree(&world);
    let waiting = world.spawn(["wait", &tree.id]);
    let following = world.spawn(["logs", "-f", "--raw", &tree.id]);
    let stopping = |world: &World| world.belay(["stop", &tree.id]);
    following.wait_for_stdout("what it wrote", |heard| heard == b"before\n");
    wait_until("two who wait", LONG, || {
        let clients = world.status().clients;
        if clients == 3 { Ok(()) } else { Err(format!("{clients} clients")) }
    });
    end(look_at(tree.held_by.as_ref().unwrap().shim_pid).unwrap().identity);
    let waited = waiting.finish();
    assert_eq!(waited.code, Some(1), "{waited}");
    assert_eq!(following.finish().ok().stdout, b"before\n");
    let late = stopping(&world);
    assert_eq!(late.code, Some(0), "{late}");
    assert_eq!(late.line(), format!("{} already ended: lost", tree.id));
}

/// A process of ours that has just this number. None if somebody else has it meanwhile, and keeps it.
#[expect(clippy::disallowed_methods, reason = "the innocent must be nobody's task")]
fn born_as(pid: i32) -> Option<std::process::Child> {
    for _ in 0..1_000 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut child = std::process::Command::new("sleep").arg(FOREVER).spawn().unwrap();
        if child.id() == pid.unsigned_abs() {
            return Some(child);
        }
        // Somebody else was quicker.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    None
}

/// A task whose leader and shim are dead and buried, without a daemon, and their numbers.
fn dead_task(world: &World) -> (String, [i32; 2]) {
    let task = world.inspect(&world.run_detached(["sleep", FOREVER]));
    let numbers = [task.pid.unwrap(), task.held_by.unwrap().shim_pid];
    world.kill_daemon();
    for pid in [numbers[1], numbers[0]] {
        end(look_at(pid).unwrap().identity);
        wait_until("a free number", LONG, || {
            // Only this one: other tests wait for children of theirs in the same process.
            let _ = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
            look_at(pid).map_or(Ok(()), |seen| Err(format!("{seen:?}")))
        });
    }
    (task.id, numbers)
}

// proves K8
#[test]
fn whoever_has_the_numbers_of_the_dead_is_left_alone() {
    assert!(belay_testkit::is_root(), "only root may choose the number of a process");
    // Whoever is orphaned comes to us, and is buried by us: a number is free only then.
    belay_os::tree::become_subreaper().unwrap();
    for with_cgroup in ["on", "off"] {
        let world = builder().env("BELAY_CGROUP", with_cgroup).build();
        // Others are born here too, and one of them may have got a number for good: then another task has to die.
        let (id, innocent) = wait_until("two with the numbers of the dead", LONG, || {
            let (id, numbers) = dead_task(&world);
            let innocent: Vec<_> = numbers.into_iter().filter_map(born_as).collect();
            if innocent.len() == 2 {
                return Ok((id, innocent));
            }
            innocent.into_iter().for_each(bury);
            Err(format!("of {numbers:?} one is somebody else's"))
        });
        let stopped: TaskStopResult = world.belay(["stop", "--kill", "--json", &id]).ok().json();
        assert_eq!((stopped.result, stopped.status), (StopVerdict::AlreadyEnded, Some(TaskStatus::Lost)));
        world.belay(["down", "--stop-tasks"]).ok();
        for mut child in innocent {
            assert_eq!(child.try_wait().unwrap(), None, "it had a number of the dead, and was killed for it");
            bury(child);
        }
    }
}

fn bury(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
