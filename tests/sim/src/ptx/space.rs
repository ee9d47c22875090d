//! State spaces: from an address of a program to memory of the host, if the program may touch it.

use std::sync::Arc;

use crate::device::Context;
use crate::error::Code;
use crate::handles::lock;
use crate::memory::{self, Access, Kind, Range};

use super::machine::Fault;
use super::types::Space;

/// Generic addresses of shared, local and parameter memory; the simulator's allocations lie higher.
const SHARED: u64 = 0x0100_0000_0000;
const LOCAL: u64 = 0x0200_0000_0000;
const PARAM: u64 = 0x0300_0000_0000;
const WINDOW: u64 = 1 << 32;

/// Zeroed memory, aligned for every access.
#[derive(Debug)]
pub(super) struct Words {
    words: Vec<u64>,
    bytes: u64,
}

impl Words {
    pub(super) fn new(bytes: u64) -> Self {
        Self { words: vec![0; bytes.div_ceil(8) as usize], bytes }
    }

    pub(super) fn from(content: &[u8]) -> Self {
        let words = Self::new(content.len() as u64);
        crate::raw::copy(words.words.as_ptr() as u64, content.as_ptr() as u64, content.len() as u64);
        words
    }

    /// Grows, so that frames fit.
    pub(super) fn reserve(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.words.resize(bytes.div_ceil(8) as usize, 0);
            self.bytes = bytes;
        }
    }

    fn at(&self, offset: u64, bytes: u64) -> Option<u64> {
        (offset.checked_add(bytes)? <= self.bytes).then(|| self.words.as_ptr() as u64 + offset)
    }
}

/// The allocations that were found last.
#[derive(Debug)]
pub(super) struct Cache {
    context: Arc<Context>,
    entries: [Entry; 4],
    /// Which entry is replaced next.
    next: usize,
    /// The state of the table that the entries are of.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    base: u64,
    end: u64,
    access: Access,
}

const NOTHING: Entry = Entry { base: 0, end: 0, access: Access::None };

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context {:#x} of device {}", self.handle, self.device)
    }
}

impl Cache {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), entries: [NOTHING; 4], next: 0, changes: 0 }
    }

    /// Global memory: a live allocation that this device may touch.
    fn global(&mut self, address: u64, bytes: u64, access: Access) -> Result<u64, Fault> {
        let end = address.wrapping_add(bytes);
        let changes = memory::changes();
        if changes != self.changes {
            self.entries = [NOTHING; 4];
            self.changes = changes;
        }
        if self
            .entries
            .iter()
            .any(|entry| address >= entry.base && end <= entry.end && access <= entry.access)
        {
            return Ok(address);
        }
        let why = match memory::find(address) {
            None => "is no live allocation".to_owned(),
            Some(range) if range.end() < end => "reaches beyond its allocation".to_owned(),
            Some(range) if !self.may(&range) => {
                format!("is memory of device {}, which is not enabled here", range.device)
            }
            Some(range) if range.access < access => "may not be used so".to_owned(),
            Some(range) => {
                self.entries[self.next] = Entry { base: range.base, end: range.end(), access: range.access };
                self.next = (self.next + 1) % self.entries.len();
                return Ok(address);
            }
        };
        Err(Fault::new(Code::ILLEGAL_ADDRESS, format!("{bytes} bytes at {address:#x}: {why}")))
    }

    fn may(&self, range: &Range) -> bool {
        let mine = self.context.device;
        match range.kind {
            Kind::Host | Kind::Registered | Kind::Managed => true,
            Kind::Mapped => range.devices >> mine & 1 == 1,
            // Opening another process's memory enables access to it.
            Kind::Imported => range.device == mine || crate::device::can_access(mine, range.device),
            Kind::Device => range.device == mine || lock(&self.context.peers).contains(&range.device),
        }
    }
}

/// The memories that a thread sees.
pub(super) struct Memories<'a> {
    pub(super) cache: &'a mut Cache,
    pub(super) shared: &'a Words,
    pub(super) local: &'a Words,
    pub(super) parameters: &'a Words,
}

impl Memories<'_> {
    /// Where `bytes` at an address are; `align` is what the access needs.
    pub(super) fn find(
        &mut self,
        space: Space,
        address: u64,
        bytes: u64,
        align: u64,
        access: Access,
    ) -> Result<u64, Fault> {
        let address = if space == Space::Shared { address & 0xFFFF_FFFF } else { address };
        if !address.is_multiple_of(align) {
            return Err(Fault::new(
                Code::MISALIGNED,
                format!("{bytes} bytes at {address:#x} are not aligned"),
            ));
        }
        let (words, offset, name) = match space {
            Space::Shared => (self.shared, address, "shared"),
            Space::Local => (self.local, address, "local"),
            Space::Param => (self.parameters, address, "parameter"),
            Space::Global => return self.cache.global(address, bytes, access),
            Space::Generic => match address & !(WINDOW - 1) {
                SHARED => (self.shared, address - SHARED, "shared"),
                LOCAL => (self.local, address - LOCAL, "local"),
                PARAM => (self.parameters, address - PARAM, "parameter"),
                _ => return self.cache.global(address, bytes, access),
            },
        };
        words.at(offset, bytes).ok_or_else(|| {
            Fault::new(
                Code::ILLEGAL_ADDRESS,
                format!("{bytes} bytes at {offset:#x} are not in {name} memory"),
            )
        })
    }
}

/// First generic address of a space.
pub(super) fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Param => PARAM,
        Space::Global | Space::Generic => 0,
    }
}

/// Does a generic address lie in a space?
pub(super) fn is_in(space: Space, address: u64) -> bool {
    let base = address & !(WINDOW - 1);
    match space {
        Space::Global | Space::Generic => ![SHARED, LOCAL, PARAM].contains(&base),
        _ => base == window(space),
    }
}
