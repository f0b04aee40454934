//! The end of a run: faults stop, every task is brought to its end, everybody leaves, and the world falls silent.

use belay_protocol::life::StopLevel;

use super::client::{Spec, Want, start_params};
use super::{Checked, Sim};

impl Sim {
    /// The fixed scenario: one command that ends by itself, one that is stopped.
    pub(crate) fn write_small_script(&mut self) {
        for (place, program) in ["ends", "runs"].into_iter().enumerate() {
            let mut params = start_params(program);
            params.detached = true;
            params.name = Some(program.to_owned());
            params.token = Some(format!("token-{place}"));
            params.notify = (place == 0).then(|| "tell somebody".to_owned());
            self.specs.push(Spec { params, id: None });
        }
        let script = [
            Want::Start { spec: 0 },
            Want::Start { spec: 1 },
            Want::StopSpec { spec: 1 },
            Want::WaitSpec { spec: 0 },
        ];
        self.clients[0].wanted.extend(script);
    }

    /// When nobody wants anything any more, faults stop after a while.
    pub(crate) fn maybe_close(&mut self) {
        if self.is_closing || !self.clients.iter().all(super::Client::is_content) {
            return;
        }
        let small = self.plan.wants == 0;
        let waiting = self.clients.iter().any(|client| !client.open.is_empty());
        // In between, tasks run on and clocks ring while faults go on.
        if (small && waiting) || (!small && !self.rng.once_in(40)) {
            return;
        }
        self.note("machine", "no more faults");
        self.is_closing = true;
        self.plan.blocked_percent = 0;
        self.plan.disk_full_percent = 0;
        self.plan.slow_worker = None;
        self.machine.chaos.borrow_mut().once_in = 0;
    }

    /// What a client does in the end: the first one stops whatever runs until nothing does, the others wait.
    pub(crate) fn close_up(&mut self, n: usize) -> Checked {
        let waits = self.clients.iter().any(|client| !client.open.is_empty());
        let all_ended = self.tasks.values().all(|truth| truth.record.end.is_some());
        if all_ended && !waits {
            return self.everybody_leaves();
        }
        let busy = |want: &Want| matches!(want, Want::Hello | Want::List | Want::Stop { .. });
        if n == 0 && !self.clients[0].open.values().any(|ask| busy(&ask.want)) {
            self.ask(0, Want::List);
        }
        let pause_ms = self.rng.between(5, 300);
        self.agenda.add(self.mono_ms + pause_ms, &mut self.rng, super::Job::ClientActs { client: n });
        Ok(())
    }

    pub(crate) fn stop_these(&mut self, n: usize, ids: Vec<String>) {
        for id in ids {
            self.ask(n, Want::Stop { id, level: StopLevel::Kill, grace_ms: None, wait: true });
        }
    }

    fn everybody_leaves(&mut self) -> Checked {
        self.note("machine", "everybody leaves");
        self.is_over = true;
        for n in 0..self.clients.len() {
            self.client_goes(n)?;
        }
        Ok(())
    }

    pub(crate) fn check_clients_at_end(&self) -> Checked {
        let mut open = self.clients.iter().flat_map(|client| client.open.values());
        open.next().map_or(Ok(()), |ask| Err(format!("{:?} was never answered", ask.want)))
    }
}
