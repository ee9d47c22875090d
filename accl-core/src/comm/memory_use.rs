//! How much memory a communicator takes.

use super::Communicator;
use crate::error::{Error, Result};

impl Communicator {
    /// Bytes of memory that this rank's part takes now: what it has for itself, and its share of what the ranks of its host have in
    /// common. Counted, not estimated; `docs/performance.md` has a formula. An error (InvalidUsage) while an operation is under way.
    pub fn memory_bytes(&self) -> Result<u64> {
        self.check_process()?;
        self.check_ready()?;
        let Some(joined) = self.shared.joined.get() else { return Ok(0) };
        let seat = &joined.seat;
        let Some(endpoint) = seat.endpoint.try_lock() else {
            return Err(Error::usage(
                "the communicator's memory was asked for while an operation was under way; ask again when it is done",
            ));
        };
        let staging_bytes = seat.dock.as_ref().map_or(0, |dock| dock.staging_bytes());
        let own_bytes = endpoint.own_bytes() + seat.recorder.used_bytes()? + staging_bytes;
        drop(endpoint);
        let shared_bytes = match &seat.arena {
            Some(arena) => arena.used_bytes()? / arena.members().local(),
            None => 0,
        };
        Ok((own_bytes + shared_bytes) as u64)
    }
}
