//! `ncclMemAlloc` for host memory: nameless files, so that peers can map them.

use super::{UserPointer, regions};
use crate::error::{Error, Result};
use crate::os::mapping::{Mapping, nameless_file};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// One allocation.
#[derive(Debug)]
struct Allocation {
    mapping: Mapping,
}

static ALLOCATIONS: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

const PAGE_BYTES: usize = 4096;

/// At least `bytes` of zeroed, page-aligned memory; null for 0 bytes.
pub fn allocate(bytes: usize) -> Result<*mut u8> {
    if bytes == 0 {
        return Ok(std::ptr::null_mut());
    }
    let rounded = bytes
        .checked_next_multiple_of(PAGE_BYTES)
        .filter(|rounded| isize::try_from(*rounded).is_ok())
        .ok_or_else(|| {
            Error::argument(format!(
                "cannot allocate {bytes} bytes: more than the address space; ask for fewer"
            ))
        })?;
    let file = nameless_file("accl-memory", rounded)?;
    let mapping = Mapping::of_file(file.as_fd(), rounded)?;
    let start = mapping.start();
    ALLOCATIONS.lock().insert(start as usize, Allocation { mapping });
    // The descriptor stays, so that peers can map the memory, too.
    let _ = regions::insert(start as u64, rounded as u64, file, 0);
    Ok(start)
}

/// The same, not empty, as memory that is vouched for until it is freed.
pub fn allocate_shared(bytes: usize) -> Result<UserPointer> {
    let start = allocate(bytes)?;
    // SAFETY: it is ours, mapped, and of at least that length.
    #[expect(unsafe_code)]
    Ok(unsafe { UserPointer::new(start.cast_const().cast()) })
}

/// Gives memory of [`allocate`] back; null is nothing to do.
pub fn free(start: *mut u8) -> Result<()> {
    if start.is_null() {
        return Ok(());
    }
    match ALLOCATIONS.lock().remove(&(start as usize)) {
        Some(allocation) => {
            debug_assert_eq!(allocation.mapping.start(), start);
            regions::end(start as u64);
            Ok(())
        }
        None => Err(Error::argument(format!(
            "{start:p} does not come from ncclMemAlloc, or has been freed already; free memory with the \
             function that belongs to its allocation"
        ))),
    }
}
