//! How a communicator ends: finalize, destroy, abort; and what goes on in the background meanwhile.

use super::standing::Reason;
use super::{Communicator, group};
use crate::config::subsystem;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::prim::Ordering;
use crate::telemetry::log;
use std::time::Duration;

/// How long an abort waits for background work to notice it.
const ABORT_PATIENCE: Duration = Duration::from_secs(2);

/// Something that goes on in the background, until this is dropped: also if no thread could be started for it.
#[derive(Debug)]
pub(super) struct Background(pub(super) Communicator);

impl Drop for Background {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        shared.background.fetch_sub(1, Ordering::AcqRel);
        let _guard = shared.background_ended.0.lock();
        shared.background_ended.1.notify_all();
    }
}

impl Communicator {
    /// Waits until everything queued is done (in the background for a non-blocking communicator, then the error is
    /// of kind InProgress). No calls may follow. A second time is an error.
    pub fn finalize(&self) -> Result<()> {
        self.check_process()?;
        self.check_ready()?;
        self.check_revoked()?;
        if self.shared.standing.add(Reason::Finalized) {
            return Err(Error::argument("the communicator has already been finalized; destroy it"));
        }
        if self.shared.config.blocking {
            return self.flush();
        }
        let background = self.begin_background();
        let job = move |dropped: Option<Error>| dropped.map_or_else(|| background.0.flush(), Err);
        group::spawn("accl-finalize", Box::new(job))?;
        Err(Error::new(ErrorKind::InProgress, "finalizing in the background"))
    }

    /// Ends this rank's part in good order: what it has sent stays for its peers. Needs no peer.
    pub fn destroy(&self) -> Result<()> {
        self.check_process()?;
        if group::keeps(self) {
            self.abort()?;
            return Err(Error::usage(
                "the communicator was destroyed inside the group that makes or splits it; end the group first",
            ));
        }
        self.wait_background(None);
        if self.failure().is_some() {
            return self.abort();
        }
        let outcome = self.flush();
        self.end_messages("destroyed");
        self.end_windows();
        self.say_ended("Destroy");
        if let Some(joined) = self.shared.joined.get() {
            joined.seat.leave();
        }
        outcome
    }

    /// Ends this rank's part at once: operations under way fail. Needs no peer, works from any thread.
    pub fn abort(&self) -> Result<()> {
        self.check_process()?;
        self.shared.aborted.store(true, Ordering::Release);
        if let Some(joined) = self.shared.joined.get() {
            joined.seat.abort();
            self.abort_windows();
            joined.seat.wait_queued();
        }
        self.end_messages("aborted");
        if !group::keeps(self) {
            self.wait_background(Some(ABORT_PATIENCE));
        }
        self.say_ended("Abort");
        Ok(())
    }

    fn say_ended(&self, how: &str) {
        let (comm, rank, ranks) = (self.key(), self.rank(), self.ranks());
        log::info(
            subsystem::INIT,
            format_args!(
                "comm {comm:#x} rank {rank} nranks {ranks} cudaDev {} busId 0 - {how} COMPLETE",
                self.device()
            ),
        );
    }

    fn flush(&self) -> Result<()> {
        if let Some(joined) = self.shared.joined.get() {
            joined.seat.wait_queued();
        }
        self.failure().map_or(Ok(()), Err)
    }

    pub(super) fn begin_background(&self) -> Background {
        self.shared.background.fetch_add(1, Ordering::AcqRel);
        Background(self.clone())
    }

    fn wait_background(&self, longest: Option<Duration>) {
        let (lock, ended) = &self.shared.background_ended;
        let mut guard = lock.lock();
        while self.shared.background.load(Ordering::Acquire) > 0 {
            match longest {
                None => ended.wait(&mut guard),
                Some(longest) => {
                    if ended.wait_for(&mut guard, longest).timed_out() {
                        return;
                    }
                }
            }
        }
    }
}
