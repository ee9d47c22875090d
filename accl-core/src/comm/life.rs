//! How a communicator ends: finalize, destroy, abort; and what goes on in the background meanwhile.

use super::{Communicator, group};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::prim::Ordering;
use std::time::Duration;

/// How long an abort waits for background work to notice it.
const ABORT_PATIENCE: Duration = Duration::from_secs(2);

impl Communicator {
    /// Waits until everything queued is done (in the background for a non-blocking communicator, then the error is
    /// of kind InProgress). No calls may follow. A second time is an error.
    pub fn finalize(&self) -> Result<()> {
        self.check_process()?;
        self.check_ready()?;
        if self.shared.finalized.swap(true, Ordering::AcqRel) {
            return Err(Error::argument("the communicator has already been finalized"));
        }
        if self.shared.config.blocking {
            return self.flush();
        }
        let background = self.begin_background();
        let job = move |_| {
            let outcome = background.communicator.flush();
            background.end();
            outcome
        };
        group::spawn("accl-finalize", Box::new(job))?;
        Err(Error::new(ErrorKind::InProgress, "finalizing in the background"))
    }

    /// Ends this rank's part in good order: what it has sent stays for its peers. Needs no peer.
    pub fn destroy(&self) -> Result<()> {
        self.check_process()?;
        self.wait_background(None);
        if self.failure().is_some() {
            return self.abort();
        }
        let outcome = self.flush();
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
            joined.seat.wait_queued();
        }
        self.wait_background(Some(ABORT_PATIENCE));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if let Some(joined) = self.shared.joined.get() {
            joined.seat.wait_queued();
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// The communicator is not ready until the result is dropped.
    pub(super) fn begin_background(&self) -> Background {
        self.shared.background.fetch_add(1, Ordering::AcqRel);
        Background { communicator: self.clone(), over: false }
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

/// Something of a communicator that goes on in the background. If it is dropped without having ended (its thread
/// could not be started, or panicked), that is the communicator's failure; nobody waits for it for ever.
#[derive(Debug)]
pub(super) struct Background {
    pub(super) communicator: Communicator,
    over: bool,
}

impl Background {
    pub(super) fn end(mut self) {
        self.over = true;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if !self.over {
            self.communicator.store_error(&Error::new(
                ErrorKind::System,
                "a call in the background was not carried out: no thread could be started for it (see ulimit -u), or \
                 it ended early; abort the communicator",
            ));
        }
        let shared = &self.communicator.shared;
        shared.background.fetch_sub(1, Ordering::AcqRel);
        let _guard = shared.background_ended.0.lock();
        shared.background_ended.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::CommConfig;

    #[test]
    fn what_was_not_carried_out_is_a_failure_and_nobody_waits_for_it() {
        let communicator = Communicator::new(2, 0, CommConfig { blocking: false, name: None });
        let background = communicator.begin_background();
        assert_eq!(communicator.async_state().unwrap_err().kind(), ErrorKind::InProgress);
        assert_eq!(communicator.finalize().unwrap_err().kind(), ErrorKind::InvalidArgument);
        drop(background);
        assert_eq!(communicator.async_state().unwrap_err().kind(), ErrorKind::System);
        assert!(communicator.destroy().is_ok());
    }

    #[test]
    fn what_has_ended_leaves_nothing() {
        let communicator = Communicator::new(2, 0, CommConfig { blocking: false, name: None });
        communicator.begin_background().end();
        assert!(communicator.async_state().is_ok());
    }
}
