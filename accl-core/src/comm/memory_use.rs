//! How much memory a communicator takes.

use super::Communicator;
use crate::error::{Error, Result};

/// Bytes of memory of one rank.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// What [`Communicator::suspend`] would give back.
    pub idle_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

impl Communicator {
    /// Memory that this rank's part takes now: what it has for itself, and its share of what the ranks of its host have in
    /// common. Counted, not estimated; `docs/performance.md` has a formula. An error (InvalidUsage) while an operation is under way.
    pub fn memory_use(&self) -> Result<MemoryUse> {
        self.check_process()?;
        self.check_ready()?;
        let Some(joined) = self.shared.joined.get() else { return Ok(MemoryUse::default()) };
        let seat = &joined.seat;
        let Some(endpoint) = seat.endpoint.try_lock() else {
            return Err(Error::usage(
                "the communicator's memory was asked for while an operation was under way; ask again when it is done",
            ));
        };
        let staging_bytes = seat.dock.as_ref().map_or(0, |dock| dock.staging_bytes());
        let own_bytes = endpoint.own_bytes() + seat.recorder.used_bytes()? + staging_bytes;
        let idle_bytes = seat.idle_bytes(&endpoint)? as u64;
        drop(endpoint);
        let shared_bytes = match &seat.arena {
            Some(arena) => arena.used_bytes()? / arena.members().local(),
            None => 0,
        };
        let total_bytes = (own_bytes + shared_bytes) as u64;
        Ok(MemoryUse { idle_bytes: idle_bytes.min(total_bytes), total_bytes })
    }
}
