//! The table of allocations. Each one is a memory file, mapped at an address that this process never uses again: memory that was
//! freed becomes inaccessible, and stays so. Processes start at different addresses, so that a pointer of another process is wrong.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use crate::config;
use crate::error::{Code, Outcome};
use crate::handles::{read, write};
use crate::raw;

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device.
    Device,
    /// Pinned host memory.
    Host,
    /// The program's own memory, pinned.
    Registered,
    /// Managed memory.
    Managed,
    /// Another process's device memory.
    Imported,
    /// Device memory mapped into reserved addresses.
    Mapped,
}

/// A live allocation.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    /// Handle of the context that made it.
    pub(crate) context: u64,
    /// What it is made of, if that is not the program's.
    pub(crate) backing: Option<Arc<Backing>>,
    /// Never the same for two allocations of a process.
    pub(crate) id: u64,
    /// May devices write it (mapped memory can be read-only), or even touch it?
    pub(crate) access: Access,
    /// Devices (a bit each) that mapped memory lets in.
    pub(crate) devices: u64,
}

/// A memory file, and what it takes of a device's capacity.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    pub(crate) bytes: u64,
    /// The device whose capacity it takes; `None` for host memory, and for memory that another process has made.
    pub(crate) charged: Option<usize>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(used) = self.charged.and_then(|device| used().get(device)) {
            used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Backing {
    /// A memory file of at least so many bytes, with room for `more` behind them.
    pub(crate) fn new(bytes: u64, more: u64, device: Option<usize>) -> Outcome<Arc<Self>> {
        if let Some(device) = device {
            charge(device, bytes)?;
        }
        let made = memory_file(bytes.next_multiple_of(PAGE) + more);
        match made {
            Ok(file) => Ok(Arc::new(Self { file, bytes, charged: device })),
            Err(code) => {
                if let Some(used) = device.and_then(|device| used().get(device)) {
                    used.fetch_sub(bytes, Ordering::Relaxed);
                }
                Err(code)
            }
        }
    }
}

/// What devices may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    None = 0,
    Read = 1,
    ReadWrite = 3,
}

impl Range {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Is it the memory of a device, as opposed to memory of the host?
    pub(crate) fn on_device(&self) -> bool {
        !matches!(self.kind, Kind::Host | Kind::Registered)
    }
}

pub(crate) const PAGE: u64 = 4096;
/// What cudaMalloc gives is aligned so.
const GRAIN: u64 = 2 << 20;

static TABLE: RwLock<BTreeMap<u64, Arc<Range>>> = RwLock::new(BTreeMap::new());
/// Counts changes of the table: who caches a range knows when to look again.
static CHANGES: AtomicU64 = AtomicU64::new(0);

fn used() -> &'static [AtomicU64] {
    static USED: OnceLock<Vec<AtomicU64>> = OnceLock::new();
    USED.get_or_init(|| (0..config::get().devices).map(|_| AtomicU64::new(0)).collect())
}

/// Fresh addresses, with a gap behind them.
pub(crate) fn addresses(bytes: u64, align: u64) -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next =
        NEXT.get_or_init(|| AtomicU64::new(0x1000_0000_0000 + ((u64::from(std::process::id()) % 512) << 36)));
    let align = align.max(GRAIN);
    let step = bytes.next_multiple_of(PAGE) + PAGE + align;
    next.fetch_add(step.next_multiple_of(GRAIN), Ordering::Relaxed).next_multiple_of(align)
}

/// Maps a memory file (or fresh memory) at an address nobody uses.
pub(crate) fn map(base: u64, bytes: u64, file: Option<&OwnedFd>, fixed: bool) -> Outcome {
    let place = if fixed { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let (flags, descriptor) = match file {
        Some(file) => (libc::MAP_SHARED | place, file.as_raw_fd()),
        None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS | place, -1),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the addresses are this table's own (see `addresses`): nothing of the program is replaced.
    let at = unsafe { libc::mmap(base as *mut _, bytes as usize, protection, flags, descriptor, 0) };
    if at as u64 == base { Ok(()) } else { Err(Code::OUT_OF_MEMORY) }
}

/// Makes addresses inaccessible; they stay taken.
pub(crate) fn close(base: u64, bytes: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the addresses are this table's own.
    unsafe { libc::mmap(base as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
}

/// Each allocation takes a descriptor, which programs for a GPU do not reckon with.
pub(crate) fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max.min(1 << 16).max(limit.rlim_cur);
        // SAFETY: a limit within what is allowed.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// A memory file.
fn memory_file(bytes: u64) -> Outcome<OwnedFd> {
    // SAFETY: a string with its end.
    let descriptor = unsafe { libc::memfd_create(c"accl-sim".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Code::OUT_OF_MEMORY);
    }
    // SAFETY: fresh, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: a descriptor of ours.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0 {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(file)
}

/// Takes some of a device's capacity.
fn charge(device: usize, bytes: u64) -> Outcome {
    let used = used().get(device).ok_or(Code::INVALID_DEVICE)?;
    let fits = |now: u64| now.checked_add(bytes).filter(|&sum| sum <= config::get().capacity_bytes);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(())
}

/// Free and total bytes of a device.
pub(crate) fn info(device: usize) -> (u64, u64) {
    let total = config::get().capacity_bytes;
    (total - used().get(device).map_or(0, |used| used.load(Ordering::Relaxed)), total)
}

pub(crate) fn add(range: Range) -> Arc<Range> {
    let range = Arc::new(range);
    write(&TABLE).insert(range.base, Arc::clone(&range));
    CHANGES.fetch_add(1, Ordering::Release);
    range
}

pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How often the table has changed.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Memory of a device, or pinned host memory that a device's context made.
pub(crate) fn allocate(device: usize, context: u64, bytes: u64, kind: Kind) -> Outcome<Arc<Range>> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let on_device = kind != Kind::Host;
    let backing = Backing::new(bytes, 0, on_device.then_some(device))?;
    let size = bytes.next_multiple_of(PAGE);
    let base = addresses(size, GRAIN);
    map(base, size, Some(&backing.file), false)?;
    if config::get().poison && on_device {
        raw::fill(base, 0xA5, 1, size);
    }
    let backing = Some(backing);
    let access = Access::ReadWrite;
    Ok(add(Range { base, bytes, kind, device, context, backing, id: next_id(), access, devices: 0 }))
}

/// How many allocations there are.
pub(crate) fn count() -> usize {
    read(&TABLE).len()
}

/// Pins memory of the program.
pub(crate) fn register(base: u64, bytes: u64, device: usize, context: u64) -> Outcome {
    if bytes == 0 || base == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if overlaps(base, bytes) {
        return Err(Code::HOST_ALREADY_REGISTERED);
    }
    let kind = Kind::Registered;
    let access = Access::ReadWrite;
    add(Range { base, bytes, kind, device, context, backing: None, id: next_id(), access, devices: 0 });
    Ok(())
}

/// Does a live allocation touch these addresses?
pub(crate) fn overlaps(base: u64, bytes: u64) -> bool {
    read(&TABLE).range(..base + bytes).next_back().is_some_and(|(_, last)| last.end() > base)
}

/// Takes all mapped ranges in these addresses out, if they fill them.
pub(crate) fn unmap(base: u64, bytes: u64) -> Outcome {
    let mut table = write(&TABLE);
    let inside: Vec<_> =
        table.range(base..base + bytes).map(|(_, range)| (range.base, range.bytes, range.kind)).collect();
    let covered: u64 = inside.iter().filter(|range| range.2 == Kind::Mapped).map(|range| range.1).sum();
    if covered != bytes || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    for (base, ..) in inside {
        table.remove(&base);
    }
    CHANGES.fetch_add(1, Ordering::Release);
    close(base, bytes);
    Ok(())
}

/// Takes a range out of the table and makes it inaccessible; `kinds` are those that the caller may free.
pub(crate) fn release(base: u64, kinds: &[Kind]) -> Outcome {
    let range = {
        let mut table = write(&TABLE);
        match table.get(&base) {
            Some(range) if kinds.contains(&range.kind) => table.remove(&base),
            _ => None,
        }
    };
    let range = range.ok_or(Code::INVALID_VALUE)?;
    CHANGES.fetch_add(1, Ordering::Release);
    if range.kind != Kind::Registered {
        close(range.base, range.bytes.next_multiple_of(PAGE));
    }
    Ok(())
}

/// Frees what a context made.
pub(crate) fn release_all(context: u64) {
    let mine: Vec<_> = read(&TABLE).values().filter(|range| range.context == context).cloned().collect();
    for range in mine {
        let _ = release(range.base, &[range.kind]);
    }
}

/// The live allocation that an address lies in.
pub(crate) fn find(address: u64) -> Option<Arc<Range>> {
    let table = read(&TABLE);
    let (_, range) = table.range(..=address).next_back()?;
    (address < range.end()).then(|| Arc::clone(range))
}

/// Changes what a device may do with mapped ranges in these addresses.
pub(crate) fn set_access(base: u64, bytes: u64, access: Access, device: usize) -> Outcome {
    let mut table = write(&TABLE);
    let inside: Vec<_> = table.range(base..base + bytes).map(|(_, range)| Arc::clone(range)).collect();
    let covered: u64 =
        inside.iter().filter(|range| range.kind == Kind::Mapped).map(|range| range.bytes).sum();
    if covered != bytes {
        return Err(Code::INVALID_VALUE);
    }
    for range in inside {
        let bit = 1 << device;
        let devices = if access == Access::None { range.devices & !bit } else { range.devices | bit };
        let access = if devices == 0 { Access::None } else { access.max(range.access) };
        let backing = range.backing.clone();
        table.insert(range.base, Arc::new(Range { backing, access, devices, ..*range }));
    }
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(())
}

/// The range where these addresses begin, if all of them are live and may be used so; `None` for memory that is not in the table.
/// Memory that the simulator has freed, or that reaches beyond its allocation, is an error.
pub(crate) fn check(address: u64, bytes: u64, access: Access) -> Outcome<Option<Arc<Range>>> {
    let Some(first) = find(address) else {
        return if (0x1000_0000_0000..0x4000_0000_0000).contains(&address) || address < PAGE && bytes > 0 {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(None)
        };
    };
    let mut range = Arc::clone(&first);
    let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    loop {
        if range.access < access {
            return Err(Code::INVALID_VALUE);
        }
        if range.end() >= end {
            return Ok(Some(first));
        }
        let next = find(range.end()).filter(|next| next.kind == Kind::Mapped && range.kind == Kind::Mapped);
        range = next.ok_or(Code::INVALID_VALUE)?;
    }
}
