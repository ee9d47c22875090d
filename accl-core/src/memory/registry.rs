//! What users have registered with one communicator.

use super::{UserPointer, regions};
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// One registered range.
#[derive(Debug)]
struct Entry {
    start: usize,
    bytes: usize,
    uses: usize,
    /// The number of the region that it is, if peers can map it.
    region: Option<u64>,
}

/// The registered ranges of one communicator. The same range registered twice is one entry, used twice.
#[derive(Debug, Default)]
pub struct Registry {
    entries: BTreeMap<usize, Entry>,
    last_handle: usize,
}

impl Registry {
    /// Registers a range; the handle is never 0.
    pub fn register(&mut self, place: UserPointer, bytes: usize) -> usize {
        let start = place.address();
        for (handle, entry) in &mut self.entries {
            if entry.start == start && entry.bytes == bytes {
                entry.uses += 1;
                return *handle;
            }
        }
        // Handles look like aligned pointers to callers that print them, and never repeat.
        self.last_handle += 16;
        let region = regions::learn(place, bytes);
        self.entries.insert(self.last_handle, Entry { start, bytes, uses: 1, region });
        self.last_handle
    }

    /// Takes one use of a handle back.
    pub fn deregister(&mut self, handle: usize) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&handle) else {
            return Err(Error::usage(format!(
                "{handle:#x} is not a registration of this communicator; need a handle from ncclCommRegister that \
                 has not been deregistered"
            )));
        };
        entry.uses -= 1;
        if entry.uses == 0
            && let Some(region) = self.entries.remove(&handle).and_then(|entry| entry.region)
        {
            regions::forget(region);
        }
        Ok(())
    }

    /// Number of distinct ranges.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.entries.values().filter_map(|entry| entry.region).for_each(regions::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_registered_twice_is_counted() {
        let mut registry = Registry::default();
        let (a, b) = (registry.register(UserPointer::null(), 8), registry.register(UserPointer::null(), 8));
        assert_eq!((a, registry.len()), (b, 1));
        registry.deregister(a).unwrap();
        registry.deregister(a).unwrap();
        assert_eq!(registry.deregister(a).unwrap_err().kind(), crate::ErrorKind::InvalidUsage);
        assert!(registry.is_empty());
    }
}
