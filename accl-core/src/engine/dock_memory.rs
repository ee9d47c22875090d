//! What launches of a dock go through: staging memory in the host and in the device. It can be given back, while the communicator is
//! suspended.

use super::call::Call;
use super::dock::{Accelerator, Dock, relaxed};
use super::drive::Job;
use super::staging::{Kind, Staging};
use super::windows::Windows;
use crate::error::{Error, Result};
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};

/// Staging memory of one rank.
#[derive(Debug, Default)]
pub(super) struct DockMemory {
    /// Made with the first launch that goes by the host.
    host: OnceLock<Staging>,
    /// There if the devices of all ranks reach each other.
    windows: OnceLock<Windows>,
}

impl DockMemory {
    /// True if a launch needs staging memory in the host, and there is none.
    pub(super) fn lacks_host_staging(&self, job: &Job<'_>) -> bool {
        self.host.get().is_none()
            && (job.has_transfers() || job.calls.iter().any(|call| self.windows_for(call).is_none()))
    }

    /// Devices read each other; a call that asks for another algorithm goes by the host.
    pub(super) fn windows_for(&self, call: &Call) -> Option<&Windows> {
        let reads =
            |windows: &&Windows| call.selection.is_open() && (windows.reduces || !call.kind.reduces());
        self.windows.get().filter(reads)
    }

    pub(super) fn host_staging(&self) -> Result<&Staging> {
        self.host.get().ok_or_else(|| Error::internal("a launch without staging memory"))
    }

    /// Makes staging memory in the host. This thread may be capturing, which that is no part of.
    #[cold]
    pub(super) fn stage(&self, accelerator: &Accelerator) -> Result<()> {
        let take = |driver| relaxed(driver, || Staging::take(driver, accelerator.context, Kind::Host));
        if self.host.get().is_none()
            && let Err(staging) = self.host.set(accelerator.within(take)?)
        {
            staging.give_back();
        }
        Ok(())
    }

    /// Uses windows from now on.
    pub(super) fn set_windows(&self, windows: Windows) {
        if let Err(again) = self.windows.set(windows) {
            again.staging.give_back();
        }
    }

    pub(super) fn stagings(&self) -> impl Iterator<Item = &Staging> {
        self.host.get().into_iter().chain(self.windows.get().map(|windows| &windows.staging))
    }

    fn take(&mut self) -> impl Iterator<Item = Staging> {
        self.host.take().into_iter().chain(self.windows.take().map(|windows| windows.staging))
    }
}

impl Drop for DockMemory {
    fn drop(&mut self) {
        self.take().for_each(Staging::give_back);
    }
}

/// The place of that memory in a dock.
#[derive(Debug)]
pub(super) struct Store(RwLock<Stored>);

#[derive(Debug)]
enum Stored {
    There(Arc<DockMemory>),
    /// Given back; which kinds there were.
    Suspended(Kinds),
}

#[derive(Clone, Copy, Debug)]
struct Kinds {
    host: bool,
    windows: bool,
}

impl Store {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Stored::There(Arc::default())))
    }

    /// The memory. An error (InvalidUsage) while it has been given back: only a graph's replay gets that far then.
    pub(super) fn get(&self) -> Result<Arc<DockMemory>> {
        match &*self.0.read() {
            Stored::There(memory) => Ok(memory.clone()),
            Stored::Suspended(_) => Err(Error::usage(
                "a graph was replayed while its communicator is suspended; call ncclCommResume on every rank before that",
            )),
        }
    }

    /// The memory, if there is any.
    fn there(&self) -> Option<Arc<DockMemory>> {
        match &*self.0.read() {
            Stored::There(memory) => Some(memory.clone()),
            Stored::Suspended(_) => None,
        }
    }
}

impl Dock {
    /// Memory that its launches go through, of the host and of the device.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.memory.there().map_or(0, |memory| memory.stagings().count() * Staging::BYTES)
    }

    /// True while a launch goes through that memory.
    pub(crate) fn is_in_use(&self) -> bool {
        // One is ours.
        self.memory.there().is_some_and(|memory| Arc::strong_count(&memory) > 2)
    }

    /// Marks the end of what the device has under way for this rank.
    pub(super) fn mark_end(&self) -> Result<()> {
        let Some(memory) = self.memory.there() else { return Ok(()) };
        self.accelerator.within(|driver| memory.stagings().try_for_each(|staging| staging.mark_end(driver)))
    }

    /// True if that is done.
    pub(super) fn has_ended(&self) -> Result<bool> {
        let Some(memory) = self.memory.there() else { return Ok(true) };
        self.accelerator.within(|driver| {
            let ended =
                memory.stagings().map(|staging| staging.has_ended(driver)).collect::<Result<Vec<_>>>()?;
            Ok(ended.into_iter().all(|ended| ended))
        })
    }

    /// Gives the memory back to the system. No launch may be under way, and no peer may have it open.
    pub(crate) fn give_memory_back(&self) -> Result<()> {
        let mut stored = self.memory.0.write();
        let Stored::There(memory) = &*stored else { return Ok(()) };
        let kinds = Kinds { host: memory.host.get().is_some(), windows: memory.windows.get().is_some() };
        let before = std::mem::replace(&mut *stored, Stored::Suspended(kinds));
        drop(stored);
        let Stored::There(memory) = before else { return Ok(()) };
        // Whoever still has it gives it back for the next communicator.
        let Some(mut memory) = Arc::into_inner(memory) else { return Ok(()) };
        let free = |driver: &'static dyn crate::driver::Driver| {
            memory.take().map(|staging| staging.free(driver)).fold(Ok(()), Result::and)
        };
        self.accelerator.within(free)
    }

    /// Has memory again, of the host where there was such; true if there were windows, which all ranks have to open again.
    pub(crate) fn take_memory(&self) -> (bool, Result<()>) {
        let mut stored = self.memory.0.write();
        let Stored::Suspended(kinds) = *stored else { return (false, Ok(())) };
        let memory = Arc::<DockMemory>::default();
        *stored = Stored::There(memory.clone());
        drop(stored);
        (kinds.windows, if kinds.host { memory.stage(&self.accelerator) } else { Ok(()) })
    }

    /// Makes sure that graphs which went by windows have something to go by.
    pub(crate) fn replace_windows(&self) -> Result<()> {
        let memory = self.memory.get()?;
        if memory.windows.get().is_some() { Ok(()) } else { memory.stage(&self.accelerator) }
    }
}
