//! Stub, to be replaced at the merge.
use crate::Result;

/// An order of operations.
#[derive(Clone, Debug)]
pub struct HostStream(());

impl HostStream {
    /// A new one.
    pub fn create() -> Result<Self> {
        Ok(Self(()))
    }
    /// Waits.
    pub fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    /// Idle?
    pub fn query(&self) -> Result<bool> {
        Ok(true)
    }
    /// Waits and ends.
    pub fn destroy(self) -> Result<()> {
        Ok(())
    }
}
