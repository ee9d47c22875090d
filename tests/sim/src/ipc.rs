//! Handles by which another process opens memory or an event: they name the process and its descriptor of the memory file, and
//! `/proc` gives the file. Nothing has a name, so that nothing is left after a crash.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use crate::device::{self, Context};
use crate::error::{Code, Outcome};
use crate::event::{self, Event, Shared};
use crate::handles::lock;
use crate::memory::{self, Access, Backing, Kind, PAGE, Range};

/// A handle's 64 bytes, as words: magic and kind, process, descriptor, inode, bytes, device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Handle {
    words: [u64; 8],
}

const MEMORY: u64 = 0x4143_434C_4D45_4D01;
const EVENT: u64 = 0x4143_434C_4556_4E01;

/// What was opened: address and number of openings, by inode.
static OPENED: Mutex<Option<HashMap<u64, (u64, u32)>>> = Mutex::new(None);

fn handle(kind: u64, backing: &Backing, device: usize) -> Outcome<Handle> {
    let file = backing.file.try_clone().map_err(|_| Code::OUT_OF_MEMORY)?;
    let inode = File::from(file).metadata().map_err(|_| Code::UNKNOWN)?.ino();
    let physical = device::visible().get(device).copied().unwrap_or(device) as u64;
    let descriptor = backing.file.as_raw_fd() as u64;
    Ok(Handle {
        words: [kind, u64::from(std::process::id()), descriptor, inode, backing.bytes, physical, 0, 0],
    })
}

/// The file of a handle, if its process still has it.
fn open(handle: &Handle, kind: u64) -> Outcome<OwnedFd> {
    if handle.words[0] != kind {
        return Err(Code::INVALID_VALUE);
    }
    let path = format!("/proc/{}/fd/{}", handle.words[1], handle.words[2]);
    let file = File::options().read(true).write(true).open(path).map_err(|_| Code::INVALID_HANDLE)?;
    let inode = file.metadata().map_err(|_| Code::INVALID_HANDLE)?.ino();
    if inode == handle.words[3] { Ok(file.into()) } else { Err(Code::INVALID_HANDLE) }
}

/// A handle of the allocation that an address lies in.
pub(crate) fn memory_handle(address: u64) -> Outcome<Handle> {
    let range =
        memory::find(address).filter(|range| range.kind == Kind::Device).ok_or(Code::INVALID_VALUE)?;
    handle(MEMORY, range.backing.as_ref().ok_or(Code::INVALID_VALUE)?, range.device)
}

/// Maps another process's allocation; opening it again gives the same address.
pub(crate) fn open_memory(handle: &Handle, context: &Context) -> Outcome<u64> {
    if handle.words[1] == u64::from(std::process::id()) {
        return Err(Code::INVALID_CONTEXT);
    }
    let device = device::visible()
        .iter()
        .position(|&number| number as u64 == handle.words[5])
        .unwrap_or(context.device);
    // Opening enables access, as if the peer's context had been named for it.
    if device != context.device && !device::can_access(context.device, device) {
        return Err(Code(217));
    }
    let file = open(handle, MEMORY)?;
    let mut opened = lock(&OPENED);
    let opened = opened.get_or_insert_default();
    if let Some((base, count)) = opened.get_mut(&handle.words[3]) {
        *count += 1;
        return Ok(*base);
    }
    let bytes = handle.words[4];
    let size = bytes.next_multiple_of(PAGE);
    let base = memory::addresses(size, PAGE);
    memory::map(base, size, Some(&file), false)?;
    let backing = Some(Arc::new(Backing { file, bytes, charged: None }));
    let (kind, access, id) = (Kind::Imported, Access::ReadWrite, memory::next_id());
    memory::add(Range {
        base,
        bytes,
        kind,
        device,
        context: context.handle,
        backing,
        id,
        access,
        devices: 0,
    });
    opened.insert(handle.words[3], (base, 1));
    Ok(base)
}

/// Gives an opening back; the last one unmaps.
pub(crate) fn close_memory(address: u64) -> Outcome {
    let mut opened = lock(&OPENED);
    let opened = opened.get_or_insert_default();
    let (&inode, entry) =
        opened.iter_mut().find(|(_, (base, _))| *base == address).ok_or(Code::INVALID_VALUE)?;
    entry.1 -= 1;
    if entry.1 > 0 {
        return Ok(());
    }
    opened.remove(&inode);
    memory::release(address, &[Kind::Imported])
}

pub(crate) fn event_handle(event: &Event) -> Outcome<Handle> {
    let shared = event.shared.as_ref().ok_or(Code::INVALID_HANDLE)?;
    handle(EVENT, &shared.backing, event.context.device)
}

pub(crate) fn open_event(handle: &Handle, context: &Arc<Context>) -> Outcome<Arc<Event>> {
    let file = open(handle, EVENT)?;
    let shared = Shared::map(Arc::new(Backing { file, bytes: handle.words[4], charged: None }))?;
    event::create(context, event::DISABLE_TIMING | event::INTERPROCESS, Some(shared))
}
