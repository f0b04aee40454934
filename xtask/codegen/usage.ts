// Uses the generated types: unions are told apart by their tag, statuses compare with strings, requests are complete.
import type { ClientRequest, DaemonNotification, EventInfo, Outcome, TaskInfo } from "./client.js";

export const start: ClientRequest = {
  jsonrpc: "2.0",
  id: 1,
  method: "task/stop",
  params: { id: "sh-1", level: "kill" },
};

export function exitCode(outcome: Outcome): number | null {
  switch (outcome.kind) {
    case "exited":
      return outcome.exit_code;
    case "cancelled":
      return outcome.exit_code ?? null;
    case "signaled":
      return 128 + outcome.signal;
    default:
      return null;
  }
}

export function isCompleted(task: TaskInfo): boolean {
  return task.status === "completed";
}

export function taskOf(event: EventInfo): string | null {
  return event.type === "task.ended" ? event.task : null;
}

export function requestOf(message: DaemonNotification): number | string {
  return message.method === "output/chunk" ? message.params.next : message.params.request;
}
