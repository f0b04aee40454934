"""Uses the generated types: unions are told apart by their tag, and statuses compare with strings."""

import json

import client
from pydantic import TypeAdapter

outcome = TypeAdapter(client.Outcome).validate_python({"kind": "exited", "exit_code": 3})
assert isinstance(outcome, client.ExitedOutcome), outcome
assert outcome.exit_code == 3

event: client.EventInfo = TypeAdapter(client.EventInfo).validate_json(
    '{"seq": 7, "at": "2026-01-01T00:00:00.000Z", "type": "task.ended", "task": "sh-1", "session": "se-1",'
    ' "status": "completed", "outcome": {"kind": "exited", "exit_code": 0}}'
)
assert isinstance(event, client.TaskEndedEvent), event
assert event.status == "completed", event.status

stop = client.TaskStopRequest(
    jsonrpc="2.0", id=1, method="task/stop", params=client.TaskStopParams(id="sh-1", level="kill")
)
assert json.loads(stop.model_dump_json(exclude_unset=True)) == {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "task/stop",
    "params": {"id": "sh-1", "level": "kill"},
}
