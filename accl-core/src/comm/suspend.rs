//! Suspending a communicator: it gives memory back in which data goes from rank to rank, and takes it again when it is resumed.
//!
//! Both are calls of all ranks. To suspend, they meet when all are through with their calls, let go of each other's device memory, and meet
//! once more before anybody frees its own. To resume, each takes memory, they open each other's again, and tell each other
//! whether that went well: if not, all of them stay suspended.

use super::Communicator;
use super::standing::Reason;
use crate::error::{Error, Result};
use crate::types::named_ranks;

impl Communicator {
    /// Gives memory back until [`Self::resume`]; calls are refused meanwhile (InvalidUsage). All ranks call; done, in a group, or in the
    /// background as for [`Communicator::split`]. What was captured in graphs stays valid, and must not be replayed meanwhile.
    pub fn suspend(&self) -> Result<()> {
        self.check_usable()?;
        self.derive("accl-suspend", Box::new(|()| ()), Self::suspend_now)
    }

    /// Takes memory again. All ranks call, as for [`Self::suspend`].
    pub fn resume(&self) -> Result<()> {
        self.check_process()?;
        self.check_ready()?;
        self.check_revoked()?;
        self.failure().map_or(Ok(()), Err)?;
        self.derive("accl-resume", Box::new(|()| ()), Self::resume_now)
    }

    /// True between the two.
    pub fn is_suspended(&self) -> bool {
        self.shared.standing.is(Reason::Suspended)
    }

    fn suspend_now(&self) -> Result<()> {
        let seat = &self.joined()?.seat;
        seat.wait_queued();
        let busy = seat.dock.as_ref().is_some_and(|dock| dock.is_in_use());
        let all = self.tell_all(&[u8::from(busy)])?;
        let busy: Vec<_> = (0..self.ranks()).filter(|rank| all[*rank] != 0).collect();
        if !busy.is_empty() {
            return Err(Error::usage(format!(
                "{} cannot be suspended while a graph that was captured with the communicator runs; wait for its stream on every \
                 rank, then suspend",
                named_ranks(&busy)
            )));
        }
        if self.shared.standing.add(Reason::Suspended) {
            return Err(Error::usage(
                "the communicator is suspended already; call ncclCommResume on every rank",
            ));
        }
        self.give_memory_back()
    }

    /// All ranks call, and have nothing under way.
    fn give_memory_back(&self) -> Result<()> {
        let seat = &self.joined()?.seat;
        let closed = seat.close_windows();
        self.tell_all(&[0])?;
        seat.give_memory_back().and(closed)
    }

    fn resume_now(&self) -> Result<()> {
        if !self.is_suspended() {
            return Err(Error::usage(
                "the communicator is not suspended; call ncclCommSuspend on every rank before",
            ));
        }
        let taken = self.take_memory()?;
        if let Err(error) = self.verdict(taken.as_ref().err()) {
            self.give_memory_back()?;
            return Err(error);
        }
        self.shared.standing.remove(Reason::Suspended);
        Ok(())
    }

    /// What this rank could not get is the inner error; it has taken part in what all ranks do anyway.
    fn take_memory(&self) -> Result<Result<()>> {
        let Some(dock) = &self.joined()?.seat.dock else { return Ok(Ok(())) };
        let (had_windows, taken) = dock.take_memory();
        if !had_windows {
            return Ok(taken);
        }
        // Windows are there on all ranks or on none, so that all come here.
        let apart = self.shared.config.settings().is_ok_and(|settings| settings.driver.apart);
        self.open_windows(apart)?;
        Ok(taken.and_then(|()| dock.replace_windows()))
    }
}
