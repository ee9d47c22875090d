//! Threads that dial: ranks must not wait while a connection is made.
//!
//! A process has a few of them, named `accl-dial`, as long as there is something to dial. Connections that a rank waits for have
//! threads of their own, so that they need not wait for those that may lead nowhere.

use crate::error::{Error, Result};
use crate::os::process;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// First connections of links.
pub(super) static FIRST: Dialler = Dialler::new(8);
/// Further ones.
pub(super) static FURTHER: Dialler = Dialler::new(4);

type Job = Box<dyn FnOnce() + Send>;

/// Some threads, on demand.
pub(super) struct Dialler {
    most_threads: usize,
    queue: Mutex<Queue>,
}

struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// The process of those threads: a fork has none of them.
    pid: u32,
}

impl Dialler {
    const fn new(most_threads: usize) -> Self {
        Self { most_threads, queue: Mutex::new(Queue { jobs: VecDeque::new(), threads: 0, pid: 0 }) }
    }

    /// Has a thread do this, soon.
    pub(super) fn submit(&'static self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut queue = self.queue.lock();
        if queue.pid != process::id() {
            // What a fork has taken over is its parent's to do, and must not be dropped here.
            std::mem::forget(std::mem::take(&mut queue.jobs));
            (queue.threads, queue.pid) = (0, process::id());
        }
        if queue.threads < self.most_threads {
            std::thread::Builder::new()
                .name("accl-dial".to_string())
                .spawn(|| self.serve())
                .map_err(|error| Error::thread("a thread that connects with other hosts", error))?;
            queue.threads += 1;
        }
        queue.jobs.push_back(Box::new(job));
        Ok(())
    }

    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(job) = queue.jobs.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            job();
        }
    }
}
