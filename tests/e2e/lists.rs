//! What is said of a task in a list, or beside another answer, is what is said of it when it is looked at alone.

use belay_protocol::task::{TaskInfo, TaskWaitResult};

use belay_testkit::{LONG, wait_until};

use crate::support::{FOREVER, running, stop_of, world};

// proves O1
#[test]
fn every_answer_about_a_running_task_says_how_much_it_has_written_and_where_that_lies() {
    let world = world();
    let script = format!("head -c 3893 /dev/zero; sleep {FOREVER}");
    let in_front = world.spawn(["run", "--", "sh", "-c", &script]);
    in_front.wait_for_stdout("all of it", |heard| heard.len() == 3893);
    let id = running(&world).id;
    let said = |task: &TaskInfo| (task.output.bytes, task.output.on_disk);
    let listed = || world.belay(["ps", "--json"]).ok().json_lines::<TaskInfo>().remove(0);
    assert_eq!((said(&world.get(&id)), said(&listed())), ((3893, false), (3893, false)), "in memory");

    let detached: TaskInfo = world.belay(["detach", "--json", &id]).ok().json();
    in_front.finish();
    let waited: TaskWaitResult = world.belay(["wait", "--json", "--timeout", "1ms", &id]).json();
    let all = [world.get(&id), listed(), detached, waited.task];
    assert_eq!(all.each_ref().map(said), [(3893, true); 4], "on disk");
}

// proves O1, D1
#[test]
fn a_list_knows_of_output_that_nobody_has_followed() {
    let world = world();
    let go = world.dir().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
    let script = format!("{wait}; head -c 3893 /dev/zero; sleep {FOREVER}");
    let id = world.run_detached(["sh", "-c", &script]);
    let listed = || {
        let task = world.belay(["ps", "--json"]).ok().json_lines::<TaskInfo>().remove(0);
        (task.output.bytes, task.output.on_disk)
    };
    assert_eq!(listed(), (0, false));
    std::fs::write(&go, "").unwrap();
    wait_until("all of it in a list", LONG, || match listed() {
        (3893, true) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    world.kill_daemon();
    assert_eq!(listed(), (3893, true), "told to another daemon");
    world.stop(&stop_of(&id));
}
