//! Stub, to be replaced at the merge.
use crate::Result;

/// The name of a communicator to be.
#[derive(Clone, Copy, Debug)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// A new name.
    pub fn create() -> Result<Self> {
        Ok(Self([7; 128]))
    }
}
