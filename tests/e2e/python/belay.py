"""A small client of Belay, written from docs/protocol.md and the standard library.

`Connection` is one connection: concurrent calls, and notifications that go to the call they name.
`Client` reconnects: it repeats what is safe to repeat, and goes on with subscriptions at their position.
"""

import base64
import itertools
import json
import os
import queue
import socket
import subprocess
import threading
import uuid

PROTOCOL = 1
LIMIT_S = 60


class BelayError(Exception):
    """An error that the daemon returned."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.kind = error["data"]["kind"]


class ConnectionLost(Exception):
    """The connection ended before the reply: whether the call took effect is not known."""


class Call:
    """A request that was sent: its reply, and the notifications that name it, in order."""

    def __init__(self, id, method):
        self.id, self.method = id, method
        self.notifications = queue.Queue()
        self._reply = queue.Queue()

    def finish(self, reply):
        self._reply.put(reply)

    def lost(self):
        self._reply.put(None)
        self.notifications.put(None)

    def result(self, timeout_s=LIMIT_S):
        reply = self._reply.get(timeout=timeout_s)
        if reply is None:
            raise ConnectionLost(self.method)
        if "error" in reply:
            raise BelayError(reply["error"])
        return reply["result"]

    def notification(self, timeout_s=LIMIT_S):
        notification = self.notifications.get(timeout=timeout_s)
        if notification is None:
            raise ConnectionLost(self.method)
        return notification["method"], notification["params"]


class Connection:
    """One connection, after its handshake."""

    def __init__(self, path):
        self._ids, self._calls, self._lock = itertools.count(1), {}, threading.Lock()
        self.is_lost = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ConnectionLost(str(error)) from error
        threading.Thread(target=self._read, daemon=True).start()
        client = {"name": "python-example", "version": "1"}
        self.hello = self.call("daemon/hello", {"client": client, "protocol": PROTOCOL})

    def send(self, method, params):
        """Sends a request, and returns its call at once."""
        with self._lock:
            if self.is_lost:
                raise ConnectionLost(method)
            call = Call(next(self._ids), method)
            self._calls[call.id] = call
            message = {"jsonrpc": "2.0", "id": call.id, "method": method, "params": params}
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError as error:
                raise ConnectionLost(method) from error
        return call

    def call(self, method, params):
        return self.send(method, params).result()

    def close(self):
        # Wakes the thread that reads.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def _read(self):
        try:
            for line in self._socket.makefile("rb"):
                message = json.loads(line)
                id = message["id"] if "method" not in message else message["params"]["request"]
                with self._lock:
                    call = self._calls.get(id)
                if call is None:
                    continue
                if "method" in message:
                    call.notifications.put(message)
                else:
                    call.finish(message)
        except (OSError, ValueError):
            # A line that the end of the connection has cut off.
            pass
        with self._lock:
            self.is_lost = True
            calls = list(self._calls.values())
        for call in calls:
            call.lost()


class Client:
    """A client that starts the daemon, and goes on with the next one."""

    def __init__(self):
        self._connection, self._lock = None, threading.Lock()
        self.connections = 0

    def connection(self):
        with self._lock:
            if self._connection is None or self._connection.is_lost:
                # A daemon that is killed right now refuses once; the next attempt starts another one.
                for attempt in itertools.count():
                    try:
                        subprocess.run([os.environ["BELAY"], "up"], check=True, capture_output=True)
                        path = os.path.join(os.environ["BELAY_HOME"], "run", "daemon.sock")
                        self._connection = Connection(path)
                        break
                    except (ConnectionLost, subprocess.CalledProcessError):
                        if attempt == 50:
                            raise
                self.connections += 1
            return self._connection

    def call(self, method, params):
        """For calls that are safe to repeat."""
        while True:
            try:
                return self.connection().call(method, params)
            except ConnectionLost:
                continue
            except BelayError as error:
                if error.kind != "shutting_down":
                    raise

    def start(self, line, **params):
        """Starts a shell line in the background. The token makes the call safe to repeat."""
        spec = {"kind": "shell", "command": {"kind": "line", "line": line}}
        env = ["PATH=/usr/bin:/bin", f"BELAY_HOME={os.environ['MARKER']}"]
        params = {"spec": spec, "cwd": "/", "env": env, "detached": True, "token": uuid.uuid4().hex, **params}
        return self.call("task/start", params)

    def wait(self, id):
        """Waits until a task has ended. A wait is a level: it can be repeated at any time."""
        return self.call("task/wait", {"id": id})

    def output(self, id):
        """Follows the output of a task to its end: the bytes of each stream."""
        streams, position = {"stdout": b"", "stderr": b""}, 0
        while True:
            try:
                follow = self.connection().send(
                    "output/follow", {"id": id, "from": {"kind": "offset", "offset": position}}
                )
                follow.result()
                while True:
                    method, params = follow.notification()
                    if method == "output/end":
                        return streams
                    assert params["gaps"] == [], params
                    for chunk in params["chunks"]:
                        assert chunk["offset"] == position, (chunk, position)
                        streams[chunk["stream"]] += base64.b64decode(chunk["data"])
                        position += chunk["bytes"]
            except ConnectionLost:
                continue

    def events(self, last_wanted):
        """Follows all events until one for which `last_wanted` is true: every number once, without a hole."""
        events = []
        while True:
            try:
                follow = self.connection().send("event/follow", {"after": len(events)})
                follow.result()
                while True:
                    method, params = follow.notification()
                    assert method == "event/item", params
                    event = params["event"]
                    assert event["seq"] == len(events) + 1, (event, len(events))
                    events.append(event)
                    if last_wanted(event):
                        return events
            except ConnectionLost:
                continue
