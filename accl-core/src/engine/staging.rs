//! Staging memory between users' buffers in a device and what ranks can reach: slots for pieces, and the streams that fill and
//! empty them.

use crate::device::{self, Device, UserPointer};
use crate::driver::{Context, Driver, Event, Exported, Stream};
use crate::error::Result;
use crate::memory;
use parking_lot::Mutex;

/// The input or the output of one piece. The same on all ranks, since they cut calls alike.
pub(super) const SLOT_BYTES: usize = 2 << 20;

/// Pieces between the device and the host at once, in each direction.
pub(super) const SLOTS: usize = 2;

/// One direction between the device and the slots.
#[derive(Debug)]
pub(super) struct Lane {
    slots: [UserPointer; SLOTS],
    pub(super) stream: Stream,
    /// Behind the copies of each slot.
    events: [Event; SLOTS],
    /// Behind everything, when the lane is to be left.
    end: Event,
}

impl Lane {
    fn new(driver: &dyn Driver, start: UserPointer) -> Result<Self> {
        Ok(Self {
            slots: [start, start.byte_add(SLOT_BYTES)],
            stream: driver.create_stream()?,
            events: [driver.create_event()?, driver.create_event()?],
            end: driver.create_event()?,
        })
    }

    /// The slot of a piece.
    pub(super) fn slot(&self, piece: usize) -> UserPointer {
        self.slots[piece % SLOTS]
    }

    /// Marks the end of what is queued for a piece.
    pub(super) fn mark(&self, driver: &dyn Driver, piece: usize) -> Result<()> {
        driver.record(self.events[piece % SLOTS], self.stream)
    }

    /// True if that is done.
    pub(super) fn has_passed(&self, driver: &dyn Driver, piece: usize) -> Result<bool> {
        driver.has_passed(self.events[piece % SLOTS])
    }

    /// Marks the end of all that is queued.
    fn mark_end(&self, driver: &dyn Driver) -> Result<()> {
        driver.record(self.end, self.stream)
    }

    /// True if that is done.
    fn has_ended(&self, driver: &dyn Driver) -> Result<bool> {
        driver.has_passed(self.end)
    }

    /// Gives stream and events back.
    fn free(&self, driver: &dyn Driver) -> Result<()> {
        let events = self.events.iter().chain([&self.end]);
        let events = events.map(|event| driver.destroy_event(*event)).fold(Ok(()), Result::and);
        driver.destroy_stream(self.stream).and(events)
    }
}

/// Where staging memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// In the host: operations run there as any other.
    Host,
    /// In the device: a window that peers open.
    Device,
}

/// Staging memory of one rank, and the streams that fill and empty it.
///
/// It is made when a program makes a communicator, or launches something for the first time, by the program's own thread, and
/// kept for the next communicator of the context when this one ends: drivers wait for all work of the device when memory is given
/// back, and may when it is made, and the engine's thread would wait for work that waits for the engine. Only a program that
/// suspends a communicator gives it back, by a thread of its own.
#[derive(Debug)]
pub(super) struct Staging {
    context: Context,
    start: UserPointer,
    pub(super) input: Lane,
    pub(super) output: Lane,
    /// Behind the copies of sends and receives. Kept with the memory, so that a launch that fails leaves none behind.
    pub(super) transfers: Event,
    /// Who works in a window; none where this is no window.
    accelerator: Option<&'static device::Accelerator>,
}

/// What no communicator uses.
static SPARE: Mutex<Vec<Staging>> = Mutex::new(Vec::new());

/// Who worked in windows that were freed, by context.
static IDLE: Mutex<Vec<(Context, &'static device::Accelerator)>> = Mutex::new(Vec::new());

impl Staging {
    pub(super) const BYTES: usize = 2 * SLOTS * SLOT_BYTES;

    /// Staging memory of a context, which must be the thread's.
    pub(super) fn take(driver: &'static dyn Driver, context: Context, kind: Kind) -> Result<Self> {
        let mut spare = SPARE.lock();
        let fits = |staging: &Self| staging.context == context && staging.kind() == kind;
        if let Some(index) = spare.iter().position(fits) {
            return Ok(spare.swap_remove(index));
        }
        drop(spare);
        let (start, accelerator) = match kind {
            Kind::Host => (host_memory(driver)?, None),
            Kind::Device => {
                let accelerator = accelerator_of(driver, context)?;
                let start = device::Accelerator::allocate(driver, Self::BYTES)
                    .inspect_err(|_| IDLE.lock().push((context, accelerator)))?;
                (start, Some(accelerator))
            }
        };
        let input = Lane::new(driver, start)?;
        let output = Lane::new(driver, start.byte_add(SLOTS * SLOT_BYTES))?;
        let transfers = driver.create_event()?;
        Ok(Self { context, start, input, output, transfers, accelerator })
    }

    fn kind(&self) -> Kind {
        if self.accelerator.is_some() { Kind::Device } else { Kind::Host }
    }

    /// Keeps it for the next one. Nothing may be under way in it.
    pub(super) fn give_back(self) {
        SPARE.lock().push(self);
    }

    /// Gives its memory back to the system, which may wait for the device. Nothing may be under way in it, and no peer may have it open.
    pub(super) fn free(self, driver: &dyn Driver) -> Result<()> {
        let freed = [
            self.input.free(driver),
            self.output.free(driver),
            driver.destroy_event(self.transfers),
            match self.accelerator {
                Some(accelerator) => {
                    IDLE.lock().push((self.context, accelerator));
                    driver.free(self.start.address())
                }
                // What the driver still knows must stay.
                None => {
                    driver.unregister(self.start.address()).and_then(|()| memory::free(self.start.as_ptr()))
                }
            },
        ];
        freed.into_iter().fold(Ok(()), Result::and)
    }

    /// Marks the end of what is under way, after a failure.
    pub(super) fn mark_end(&self, driver: &dyn Driver) -> Result<()> {
        self.input.mark_end(driver)?;
        self.output.mark_end(driver)
    }

    /// True if nothing is under way any more that was when the end was marked.
    pub(super) fn has_ended(&self, driver: &dyn Driver) -> Result<bool> {
        let device = self.accelerator.map_or(Ok(true), Device::is_through)?;
        Ok(device && self.input.has_ended(driver)? && self.output.has_ended(driver)?)
    }

    /// Its first byte.
    pub(super) fn start(&self) -> UserPointer {
        self.start
    }

    /// Who works in a window.
    pub(super) fn accelerator(&self) -> Option<&'static device::Accelerator> {
        self.accelerator
    }

    /// How other processes find a window.
    pub(super) fn exported(&self, driver: &dyn Driver) -> Result<Exported> {
        driver.export(self.start.address())
    }
}

/// Who works in a window of the context, which must be the thread's.
fn accelerator_of(driver: &'static dyn Driver, context: Context) -> Result<&'static device::Accelerator> {
    let mut idle = IDLE.lock();
    if let Some(index) = idle.iter().position(|(of, _)| *of == context) {
        return Ok(idle.swap_remove(index).1);
    }
    drop(idle);
    // Whoever runs in it holds it without a count.
    Ok(Box::leak(Box::new(device::Accelerator::new(driver)?)))
}

/// Staging memory in the host, which peers map, and the driver knows.
fn host_memory(driver: &dyn Driver) -> Result<UserPointer> {
    let start = memory::allocate_shared(Staging::BYTES)?;
    if let Err(error) = driver.register(start.address(), Staging::BYTES) {
        memory::free(start.as_ptr())?;
        return Err(error);
    }
    Ok(start)
}
