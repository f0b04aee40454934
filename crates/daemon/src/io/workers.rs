//! Worker threads beside the deciding thread: each sends its results back to the loop, and none decides anything. A `Worker` is
//! one thread that owns what it works on and takes jobs in order; a `Pool` is several threads that own nothing.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, oneshot};

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// One thread that owns `S`.
#[derive(Debug)]
pub(crate) struct Worker<S> {
    jobs: Option<Sender<Job<S>>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Send + 'static> Worker<S> {
    pub(crate) fn start(name: &str, mut state: S) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job<S>>();
        let run = move || {
            while let Ok(job) = queue.recv() {
                job(&mut state);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs a job after those before it. The result always comes: a panic ends the daemon.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, result) = oneshot::channel();
        if let Some(jobs) = &self.jobs {
            let job: Job<S> = Box::new(move |state| {
                let _ = done.send(job(state));
            });
            let _ = jobs.send(job);
        }
        result
    }

    /// Waits until every job is done and what the thread owns is dropped.
    pub(crate) fn finish(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a job on a thread of its own, for what must not wait behind other jobs.
pub(crate) fn run_alone<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    let run = move || {
        let _ = done.send(job());
    };
    // Without a thread to be had the result is missing, which the caller of this has to cope with in any case.
    let _ = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    result
}

/// Runs so many jobs at once, on threads of the runtime that end when they are idle.
#[derive(Debug)]
pub(crate) struct Pool {
    permits: Semaphore,
}

impl Pool {
    pub(crate) const fn new(threads: usize) -> Self {
        Self { permits: Semaphore::const_new(threads) }
    }

    /// Runs a job as soon as a thread is free, if it is still wanted then. None: it is not, or the runtime ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        is_wanted: impl FnOnce() -> bool,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _permit = self.permits.acquire().await.ok()?;
        if !is_wanted() {
            return None;
        }
        tokio::task::spawn_blocking(job).await.ok()
    }
}
