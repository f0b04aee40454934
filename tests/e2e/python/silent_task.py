"""Three tasks in the background, one of which falls silent, and a daemon that is killed in the middle.

The silent task is found by its stall event and stopped alone; its waiters return; the others are untouched.
"""

import base64
import os
import signal
import threading
import time

from belay import LIMIT_S, Client

LINES = 40
STALL_MS = 1_500


class Background(threading.Thread):
    """A function that runs in a thread, and its result."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self._error, self._value = work, None, None
        self.start()

    def run(self):
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self):
        self.join(LIMIT_S)
        assert not self.is_alive(), "it has not returned"
        if self._error:
            raise self._error
        return self._value


def chatty(name):
    """A line every tenth of a second, on both streams, with bytes that are not UTF-8."""
    return (
        f"i=0; while [ $i -lt {LINES} ]; do printf '{name} %d \\377\\n' $i; printf 'e%d\\n' $i >&2;"
        " i=$((i + 1)); sleep 0.1; done"
    )


def expected(name):
    lines = range(LINES)
    stdout = b"".join(b"%s %d \xff\n" % (name.encode(), i) for i in lines)
    return {"stdout": stdout, "stderr": b"".join(b"e%d\n" % i for i in lines)}


def wait_for(what, is_met):
    deadline = time.monotonic() + LIMIT_S
    while not is_met():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def main():
    client = Client()
    defaults = {"stall": {"after_ms": STALL_MS}}
    session = client.connection().call("session/open", {"defaults": defaults})["session"]["id"]
    chatting = {name: client.start(chatty(name), session=session, name=name)["id"] for name in ("one", "two")}
    silent = client.start("echo begun; exec sleep 1000", session=session, name="silent")["id"]

    watcher = Client()
    events = Background(lambda: watcher.events(lambda event: event["type"] == "session.ended"))
    stall = Background(lambda: Client().events(lambda event: event["type"] == "task.stalled")[-1])
    waiters = [Client(), Client()]
    waits = [Background(lambda waiter=waiter: waiter.wait(silent)) for waiter in waiters]
    outputs = {name: Background(lambda id=id: Client().output(id)) for name, id in chatting.items()}

    # The daemon is killed when all of them have arrived, and before it has reported anything.
    wait_for("both waits", lambda: client.call("daemon/status", {})["calls_waiting"] >= 2)
    os.kill(client.connection().hello["pid"], signal.SIGKILL)

    found = stall.result()
    assert (found["task"], found["session"], found["output_bytes"]) == (silent, session, 6), found
    stopped = client.call("task/stop", {"id": found["task"], "reason": "no progress"})
    assert (stopped["result"], stopped["status"]) == ("accepted", "cancelled"), stopped
    assert stopped["receipt"]["empty_at"] and stopped["receipt"]["survivors"] == [], stopped
    for wait in waits:
        waited = wait.result()
        assert (waited["met"], waited["task"]["status"]) == ("ended", "cancelled"), waited
        assert waited["task"]["outcome"]["reason"] == "no progress", waited
    read = client.call("output/read", {"id": silent})
    assert [base64.b64decode(chunk["data"]) for chunk in read["chunks"]] == [b"begun\n"], read
    assert read["eof"] and read["gaps"] == [], read

    for name, id in chatting.items():
        assert client.wait(id)["task"]["outcome"] == {"kind": "exited", "exit_code": 0}
        assert outputs[name].result() == expected(name), name
    assert client.call("session/wait", {"id": session})["drained"]
    client.connection().call("session/close", {"id": session})

    seen = events.result()
    assert seen == client.call("event/read", {"after": 0})["events"][: len(seen)], "an event differs"
    own = [event for event in seen if event.get("session") == session]
    kinds = [event["type"] for event in own]
    for kind, count in {"task.stalled": 1, "task.recovered": 0, "session.busy": 1, "session.drained": 1}.items():
        assert kinds.count(kind) == count, (kind, kinds)
    ends = {event["task"]: event["status"] for event in own if event["type"] == "task.ended"}
    assert ends == {silent: "cancelled", **dict.fromkeys(chatting.values(), "completed")}, ends
    assert kinds.index("session.drained") > max(i for i, kind in enumerate(kinds) if kind == "task.ended")
    assert sum(event["type"] == "daemon.started" for event in seen) == 2, "the daemon was killed once"
    assert [waiter.connections for waiter in [watcher, *waiters]] == [2, 2, 2], "all have reconnected"
    print("ok")


if __name__ == "__main__":
    main()
