//! What a restart of the machine leaves: nobody. Another boot is played by a daemon that is shown another name of it.

use std::os::unix::fs::PermissionsExt as _;

use belay_protocol::event::{Event, EventInfo};
use belay_protocol::lane::LaneInfo;
use belay_testkit::{World, end, example, look_at};

use crate::support::{builder, put_before};

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Starts a daemon as if the machine had been restarted since.
fn up_after_reboot(world: &World) {
    let other = world.dir().join("boot_id");
    std::fs::write(&other, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let script = format!("mount --bind \"$0\" {BOOT} && exec \"$@\"");
    let outer = ["unshare", "-m", "sh", "-c", &script, other.to_str().unwrap()];
    let up = world.belay_with(["up"], |up| put_before(&outer, up));
    up.ok();
}

fn lanes(world: &World) -> Vec<LaneInfo> {
    world.belay(["lanes", "--json"]).ok().json_lines()
}

// proves L4, D1
#[test]
fn a_lane_that_was_blocked_by_survivors_is_free_after_a_restart_of_the_machine() {
    let world = builder().as_nobody().build();
    // A program that becomes root: what it leaves is beyond an ordinary user's reach.
    let zoo = world.reachable(&example("zoo"));
    std::fs::set_permissions(&zoo, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let words =
        ["--lane", "seat", "--", zoo.to_str().unwrap(), "other-user", "0", "--marker", world.marker()];
    let id = world.run_detached(words);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    assert_eq!(world.belay(["stop", "--kill", &id]).code, Some(3));
    let survivor = world.inspect(&id).outcome.unwrap().survivors()[0].clone();
    let blocked = |world: &World| lanes(world).remove(0).holder.unwrap().blocked;
    assert_eq!(blocked(&world).as_deref(), Some("1 of its processes could not be stopped"));
    world.kill_daemon();
    assert_eq!(blocked(&world).as_deref(), Some("1 of its processes could not be stopped"), "another daemon");

    world.kill_daemon();
    up_after_reboot(&world);
    assert_eq!(lanes(&world), [], "nobody survives that");
    let told = world.belay(["events", "--json", "--type", "lane.released"]).ok().json_lines::<EventInfo>();
    let [told] = told.try_into().unwrap();
    let released = Event::LaneReleased {
        lane: "seat".to_owned(),
        owners: Vec::new(),
        unblocked: Some(id),
        by: "daemon".to_owned(),
        reason: Some("the machine was restarted".to_owned()),
    };
    assert_eq!(told.event, released);
    world.belay(["run", "--lane", "seat", "--", "true"]).ok();
    end(look_at(survivor.pid).unwrap().identity);
}
