//! Virtual memory management: reserved addresses, memory without an address, and the mapping of one to the other.
//!
//! The memory file has a page behind the memory that says what it is, so that a process which gets its descriptor knows, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use crate::config;
use crate::device;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, lock};
use crate::memory::{self, Access, Backing, Kind, PAGE, Range};

pub(crate) const GRANULARITY: u64 = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;
const MAGIC: u64 = 0x4143_434C_564D_4D01;

/// Memory without an address.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) handle: u64,
    pub(crate) properties: Properties,
    pub(crate) backing: Arc<Backing>,
}

/// The eight words of `CUmemAllocationProp` that matter: type, kinds of handles, kind of location, device; the rest is zero.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_kinds: u32,
    pub(crate) location_kind: u32,
    pub(crate) device: i32,
    pub(crate) rest: [u32; 4],
}

impl Properties {
    pub(crate) fn check(&self) -> Outcome<usize> {
        if !config::get().vmm || self.location_kind != 1 && self.kind == 1 {
            return Err(Code::NOT_SUPPORTED);
        }
        if self.kind != 1 {
            return Err(Code::INVALID_VALUE);
        }
        if self.handle_kinds & !DESCRIPTOR != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        device::check(self.device)
    }
}

static ALLOCATIONS: Handles<Allocation> = Handles::new();

pub(crate) fn count() -> usize {
    ALLOCATIONS.all().len()
}
/// Reserved addresses and their sizes.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

pub(crate) fn reserve(bytes: u64, align: u64) -> Outcome<u64> {
    let is_even = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && (align == 0 || align.is_power_of_two());
    if !is_even {
        return Err(Code::INVALID_VALUE);
    }
    let base = memory::addresses(bytes, align.max(GRANULARITY));
    memory::close(base, bytes);
    lock(&RESERVED).insert(base, bytes);
    Ok(base)
}

pub(crate) fn unreserve(base: u64, bytes: u64) -> Outcome {
    let mut reserved = lock(&RESERVED);
    if reserved.get(&base) != Some(&bytes) || memory::overlaps(base, bytes) {
        return Err(Code::INVALID_VALUE);
    }
    reserved.remove(&base);
    Ok(())
}

pub(crate) fn create(bytes: u64, properties: Properties) -> Outcome<Arc<Allocation>> {
    let device = properties.check()?;
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    let backing = Backing::new(bytes, PAGE, Some(device))?;
    let file = File::from(backing.file.try_clone().map_err(|_| Code::OUT_OF_MEMORY)?);
    let physical = device::visible().get(device).copied().unwrap_or(device) as u64;
    let words = [MAGIC, bytes, physical];
    let note: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&note, bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
    if config::get().poison {
        file.write_all_at(&vec![0xA5; bytes as usize], 0).map_err(|_| Code::OUT_OF_MEMORY)?;
    }
    Ok(ALLOCATIONS.add(|handle| Allocation { handle, properties, backing }))
}

pub(crate) fn find(handle: u64) -> Outcome<Arc<Allocation>> {
    ALLOCATIONS.get(handle).map_err(|_| Code::INVALID_VALUE)
}

/// What is mapped stays.
pub(crate) fn release(handle: u64) -> Outcome {
    ALLOCATIONS.remove(handle).map(drop).map_err(|_| Code::INVALID_VALUE)
}

/// Maps the beginning of an allocation into reserved addresses.
pub(crate) fn map(base: u64, bytes: u64, offset: u64, allocation: &Allocation, context: u64) -> Outcome {
    let is_inside =
        lock(&RESERVED).range(..=base).next_back().is_some_and(|(start, size)| base + bytes <= start + size);
    let is_even = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && base.is_multiple_of(GRANULARITY);
    if !is_inside || !is_even || offset != 0 || bytes > allocation.backing.bytes {
        return Err(Code::INVALID_VALUE);
    }
    if memory::overlaps(base, bytes) {
        return Err(Code::ALREADY_MAPPED);
    }
    memory::map(base, bytes, Some(&allocation.backing.file), true)?;
    let device = allocation.properties.device as usize;
    let (kind, access, id) = (Kind::Mapped, Access::None, memory::next_id());
    let backing = Some(Arc::clone(&allocation.backing));
    memory::add(Range { base, bytes, kind, device, context, backing, id, access, devices: 0 });
    Ok(())
}

/// The handle of what is mapped at an address, once more.
pub(crate) fn retain(address: u64) -> Outcome<Arc<Allocation>> {
    let range =
        memory::find(address).filter(|range| range.kind == Kind::Mapped).ok_or(Code::INVALID_VALUE)?;
    let backing = range.backing.clone().ok_or(Code::INVALID_VALUE)?;
    let properties = Properties {
        kind: 1,
        handle_kinds: DESCRIPTOR,
        location_kind: 1,
        device: range.device as i32,
        rest: [0; 4],
    };
    Ok(ALLOCATIONS.add(|handle| Allocation { handle, properties, backing }))
}

/// A descriptor that any process can import.
pub(crate) fn export(allocation: &Allocation, kind: u32) -> Outcome<i32> {
    if kind != DESCRIPTOR || allocation.properties.handle_kinds & DESCRIPTOR == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let file = allocation.backing.file.try_clone().map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(file.into_raw_fd())
}

/// Memory by a descriptor, which stays the caller's.
pub(crate) fn import(descriptor: i32, kind: u32) -> Outcome<Arc<Allocation>> {
    if kind != DESCRIPTOR || descriptor < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: makes a descriptor of our own from whatever the caller gave; a bad one is an error.
    let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: fresh, and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(own) });
    let length = file.metadata().map_err(|_| Code::INVALID_VALUE)?.len();
    let bytes = length.checked_sub(PAGE).ok_or(Code::INVALID_VALUE)?;
    let mut note = [0u8; 24];
    file.read_exact_at(&mut note, bytes).map_err(|_| Code::INVALID_VALUE)?;
    let word =
        |index: usize| u64::from_ne_bytes(note[index * 8..index * 8 + 8].try_into().unwrap_or_default());
    if word(0) != MAGIC || word(1) != bytes {
        return Err(Code::INVALID_VALUE);
    }
    let device = device::visible().iter().position(|&number| number as u64 == word(2)).unwrap_or(0) as i32;
    let properties = Properties { kind: 1, handle_kinds: DESCRIPTOR, location_kind: 1, device, rest: [0; 4] };
    let backing = Arc::new(Backing { file: file.into(), bytes, charged: None });
    Ok(ALLOCATIONS.add(|handle| Allocation { handle, properties, backing }))
}
