//! The one table from a method to its handler. Handlers live with the noun they are about.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::Call;

use super::{Answer, Caller};
use crate::config::bounds;
use crate::host::Host;
use crate::runtime::Core;

impl<H: Host> Core<H> {
    pub(super) fn call(&mut self, caller: &Caller, call: Call) -> Result<Answer, RpcError> {
        let Some(client) = self.requests.client(caller.client) else { return Ok(Answer::Sent) };
        if !client.said_hello && !matches!(call, Call::DaemonHello(_)) {
            return Err(RpcError::new(ErrorKind::Version, "the first call of a connection is daemon/hello")
                .hint("send {\"method\": \"daemon/hello\", \"params\": {\"client\": {\"name\": \"NAME\", \"version\": \"VERSION\"}, \"protocol\": 1}}"));
        }
        if self.requests.count_of_client(caller.client) >= bounds::PENDING_PER_CLIENT {
            return Err(RpcError::new(
                ErrorKind::Busy,
                "this connection has too many calls waiting for an answer",
            )
            .hint(format!("at most {} at a time", bounds::PENDING_PER_CLIENT)));
        }
        match call {
            Call::DaemonHello(params) => self.hello(caller, &params),
            Call::DaemonStatus(params) => Ok(self.daemon_status(caller, *params)),
            Call::DaemonDoctor(_) => self.daemon_doctor(caller),
            Call::DaemonStop(params) => self.daemon_stop(caller, &params),
            Call::DaemonGc(params) => self.daemon_gc(caller, &params),
            Call::SessionOpen(params) => self.session_open(caller, *params),
            Call::SessionRenew(params) => self.session_renew(caller, &params),
            Call::SessionClose(params) => self.session_close(caller, &params),
            Call::SessionGet(params) => self.session_get(caller, &params),
            Call::SessionList(params) => self.session_list(caller, &params),
            Call::SessionWait(params) => self.session_wait(caller, &params),
            Call::SessionNotices(params) => self.session_notices(caller, &params),
            Call::LaneList(params) => self.lane_list(caller, &params),
            Call::LaneRelease(params) => self.lane_release(caller, &params),
            Call::ConfigGet(params) => self.config_get(caller, &params),
            Call::ConfigSet(params) => self.config_set(caller, &params),
            Call::TaskStart(params) => self.task_start(caller, *params),
            Call::TaskGet(params) => self.task_get(caller, *params),
            Call::TaskList(params) => self.task_list(caller, *params),
            Call::TaskPulse(params) => self.task_pulse(caller, *params),
            Call::TaskWait(params) => self.task_wait(caller, *params),
            Call::TaskStop(params) => self.task_stop(caller, *params),
            Call::TaskPreviewStop(params) => self.task_preview_stop(caller, *params),
            Call::TaskStopMany(params) => self.task_stop_many(caller, &params),
            Call::TaskDetach(params) => self.task_detach(caller, *params),
            Call::TaskWrite(params) => self.task_write(caller, *params),
            Call::TaskSignal(params) => self.task_signal(caller, *params),
            Call::TaskResize(params) => self.task_resize(caller, *params),
            Call::TaskSetStall(params) => self.task_set_stall(caller, *params),
            Call::TaskRemove(params) => self.task_remove(caller, *params),
            Call::ShellRead(params) => self.shell_read(caller, *params),
            Call::OutputRead(params) => self.output_read(caller, *params),
            Call::OutputSearch(params) => self.output_search(caller, *params),
            Call::OutputFollow(params) => self.output_follow(caller, *params),
            Call::OutputUnfollow(params) => self.output_unfollow(caller, *params),
            Call::EventRead(params) => self.event_read(caller, *params),
            Call::EventFollow(params) => self.event_follow(caller, *params),
            Call::EventUnfollow(params) => self.event_unfollow(caller, &params),
            Call::CallCancel(params) => Ok(self.call_cancel(caller, &params)),
        }
    }
}
