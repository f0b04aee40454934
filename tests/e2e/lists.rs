//! What is said of a task in a list, or beside another answer, is what is said of it when it is looked at alone.

use belay_protocol::task::{TaskInfo, WaitResult};

use crate::support::{FOREVER, running, world};

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
    let waited: WaitResult = world.belay(["wait", "--json", "--timeout", "1ms", &id]).json();
    let all = [world.get(&id), listed(), detached, waited.task];
    assert_eq!(all.each_ref().map(said), [(3893, true); 4], "on disk");
}
