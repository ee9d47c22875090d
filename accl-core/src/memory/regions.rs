//! Memory of this process that peers can map: what `ncclMemAlloc` gave out, and registered memory that users have
//! mapped from memory files of their own.
//!
//! A region is found by address when a buffer is lent. The peer gets its descriptor from the kernel (`pidfd_getfd`),
//! maps it once, and reads in place from then on. Numbers of regions never come back, so that a mapping is never taken
//! for that of another region; every end of a region changes the generation, which tells peers to let go.

use super::UserPointer;
use crate::os::mapping;
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// A region as its owner describes it to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Region {
    /// Never 0 for a region, and never used again by its process.
    pub number: u64,
    /// The owner's address of its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// The owner's descriptor of that file.
    pub file: u64,
    /// The file's inode: a descriptor that means another file by now is not mapped.
    pub inode: u64,
}

impl Region {
    /// True if `bytes` from `address` on lie in it.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        lies_in((self.start, self.bytes), (address, bytes))
    }
}

/// True if the second range lies in the first; each is an address and a length.
pub fn lies_in((start, length): (u64, u64), (address, bytes): (u64, u64)) -> bool {
    address >= start && address - start <= length && bytes <= length - (address - start)
}

struct Entry {
    region: Region,
    _file: OwnedFd,
    uses: usize,
}

static REGIONS: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());
/// How many there are: most programs have none, and look no further.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(1);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Makes memory known that begins at `start` and at byte `offset` of `file`; its number, unless the file says nothing.
pub(super) fn insert(start: u64, bytes: u64, file: OwnedFd, offset: u64) -> Option<u64> {
    let inode = mapping::file_inode(&file).ok()?;
    let (number, descriptor) =
        (NUMBER.fetch_add(1, Ordering::Relaxed), u64::from(file.as_raw_fd().cast_unsigned()));
    let region = Region { number, start, bytes, offset, file: descriptor, inode };
    let mut regions = REGIONS.lock();
    if regions.insert(start, Entry { region, _file: file, uses: 1 }).is_some() {
        GENERATION.fetch_add(1, Ordering::Release);
    }
    COUNT.store(regions.len(), Ordering::Release);
    Some(number)
}

/// The memory at `start` is about to go, whoever has registered it.
pub(super) fn end(start: u64) {
    let mut regions = REGIONS.lock();
    if regions.remove(&start).is_some() {
        COUNT.store(regions.len(), Ordering::Release);
        GENERATION.fetch_add(1, Ordering::Release);
    }
}

/// Makes registered memory known if it is shared memory of a file that this process has open; then the number with
/// which to [`forget`] it.
pub fn learn(start: UserPointer, bytes: usize) -> Option<u64> {
    let (first, length) = (start.address() as u64, bytes as u64);
    let mut regions = REGIONS.lock();
    let known = regions.range_mut(..=first).next_back().map(|(_, entry)| entry);
    if let Some(entry) = known.filter(|entry| entry.region.holds(first, length)) {
        entry.uses += 1;
        return Some(entry.region.number);
    }
    drop(regions);
    let (file, offset) = mapping::shared_file_at(start.address(), bytes)?;
    insert(first, length, file, offset)
}

/// Takes one [`learn`] back.
pub fn forget(number: u64) {
    let mut regions = REGIONS.lock();
    let Some(entry) = regions.values_mut().find(|entry| entry.region.number == number) else { return };
    entry.uses -= 1;
    if entry.uses == 0 {
        let start = entry.region.start;
        drop(regions);
        end(start);
    }
}

/// The region that `bytes` from `start` on lie in, if there is one.
pub fn find(start: UserPointer, bytes: usize) -> Option<Region> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let (address, bytes) = (start.address() as u64, bytes as u64);
    let regions = REGIONS.lock();
    let (_, entry) = regions.range(..=address).next_back()?;
    entry.region.holds(address, bytes).then_some(entry.region)
}

/// Changes whenever a region ends.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{allocate, free};

    fn at(address: usize) -> UserPointer {
        // SAFETY: an address that is compared and never used.
        #[expect(unsafe_code)]
        unsafe {
            UserPointer::new(address as *const _)
        }
    }

    #[test]
    fn a_region_holds_what_lies_in_it() {
        let region = Region { start: 100, bytes: 50, ..Region::default() };
        assert!(region.holds(100, 50) && region.holds(149, 1) && region.holds(150, 0));
        assert!(!region.holds(99, 1) && !region.holds(149, 2) && !region.holds(120, u64::MAX));
    }

    #[test]
    fn allocations_are_regions_until_they_are_freed() {
        let start = allocate(10_000).unwrap();
        let region = find(at(start as usize + 5000), 5000).unwrap();
        assert_eq!((region.start, region.bytes, region.offset), (start as u64, 12_288, 0));
        assert_eq!(find(at(start as usize + 5000), 7289), None);
        let before = generation();
        let number = learn(at(start as usize + 100), 1000).unwrap();
        assert_eq!(number, region.number);
        forget(number);
        assert_eq!((find(at(start as usize), 1), generation()), (Some(region), before));
        assert_eq!(learn(at(start as usize), 10_000), Some(number));
        free(start).unwrap();
        assert_ne!(generation(), before);
        assert_eq!(
            find(at(start as usize), 1),
            None,
            "freed memory is nobody's, though it was still registered"
        );
        forget(number);
    }

    #[test]
    fn private_memory_is_no_region() {
        let memory = vec![0u8; 1 << 20];
        assert_eq!(learn(at(memory.as_ptr() as usize), memory.len()), None);
    }

    #[test]
    fn memory_files_of_the_user_are_found() {
        let file = mapping::nameless_file("user", 1 << 20).unwrap();
        let map = mapping::Mapping::of_file(std::os::fd::AsFd::as_fd(&file), 1 << 20).unwrap();
        let start = at(map.start() as usize + 8192);
        let number = learn(start, 4096).unwrap();
        let region = find(start, 4096).unwrap();
        assert_eq!((region.offset, region.bytes), (8192, 4096));
        assert_eq!(region.inode, mapping::file_inode(&file).unwrap());
        forget(number);
        assert_eq!(find(start, 1), None);
    }
}
