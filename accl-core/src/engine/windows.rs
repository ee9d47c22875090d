//! Windows: memory of each rank's device that all ranks of a communicator can reach, on one host.
//!
//! When ranks have joined, each says where its window is ([`Offer`]), all open those of the others, and all say whether they could. Only if
//! everybody can reach everybody are windows used: then pieces are copied to a window, peers' devices read there, and nothing
//! goes through the host. Users' own buffers are never opened by peers: their owners may free them at any time.

use super::dock::{Accelerator, relaxed};
use super::seat::Seat;
use super::staging::{Kind, Staging};
use crate::device;
use crate::driver::{Context, Exported};
use crate::error::{Error, Result};
use crate::transport::shm::Window;
use crate::types::Rank;

/// What a rank says of its window.
///
/// ```text
/// 1 if there is one u8 | 1 if it can be reduced from u8 | 0 ×6 | process u64 | context u64 | device i64 | start u64 | exported ×64
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    there: bool,
    reduces: bool,
    process: u64,
    context: Context,
    start: u64,
    exported: Exported,
}

impl Offer {
    /// Its length in bytes.
    pub const BYTES: usize = 104;

    const NONE: Self = Self {
        there: false,
        reduces: false,
        process: 0,
        context: Context { handle: 0, ordinal: 0 },
        start: 0,
        exported: [0; 64],
    };

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.there.into();
        bytes[1] = self.reduces.into();
        let words = [
            self.process,
            self.context.handle as u64,
            i64::from(self.context.ordinal).cast_unsigned(),
            self.start,
        ];
        for (place, word) in bytes[8..40].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..].copy_from_slice(&self.exported);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let mut exported = [0; 64];
        exported.copy_from_slice(&bytes[40..Self::BYTES]);
        Self {
            there: bytes[0] == 1,
            reduces: bytes[1] == 1,
            process: word(8),
            context: Context { handle: word(16) as usize, ordinal: word(24) as i32 },
            start: word(32),
            exported,
        }
    }
}

/// One rank's window.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) staging: Staging,
    /// Who works there.
    pub(super) device: &'static device::Accelerator,
    /// All devices can reduce.
    pub(super) reduces: bool,
}

impl Seat {
    /// Makes this rank's window, and says what others need to open it. What cannot be made is not offered: then all go through the
    /// host. `process` is this process, as its peers know it; `apart`: windows are not wanted.
    pub fn offer_window(&self, process: u64, apart: bool) -> (Option<OwnWindow>, Offer) {
        let Some(dock) = self.dock.as_ref().filter(|_| !apart) else { return (None, Offer::NONE) };
        let accelerator = dock.accelerator;
        let make = |driver| {
            let staging = Staging::take(driver, accelerator.context, Kind::Device)?;
            match staging.exported(driver) {
                Ok(exported) => Ok((staging, exported)),
                Err(error) => {
                    staging.give_back();
                    Err(error)
                }
            }
        };
        let made = accelerator.within(|driver| relaxed(driver, || make(driver)));
        let Ok((staging, exported)) = made else { return (None, Offer::NONE) };
        let offer = Offer {
            there: true,
            reduces: staging.accelerator().is_some_and(device::Accelerator::has_kernels),
            process,
            context: accelerator.context,
            start: staging.start().address() as u64,
            exported,
        };
        (Some(OwnWindow { staging, accelerator }), offer)
    }

    /// Uses the window from now on: all ranks have said that they can.
    pub fn use_windows(&self, own: OwnWindow, reduces: bool) {
        let (Some(dock), Some(device)) = (&self.dock, own.staging.accelerator()) else { return };
        match dock.memory.get() {
            Ok(memory) => memory.set_windows(Windows { staging: own.staging, device, reduces }),
            Err(_) => own.staging.give_back(),
        }
    }
}

/// A window that is not used yet.
#[derive(Debug)]
pub struct OwnWindow {
    staging: Staging,
    accelerator: Accelerator,
}

impl OwnWindow {
    /// Opens everybody's windows, as all have offered them; false if that cannot be. Then whether all can reduce.
    pub fn open_others(&self, seat: &Seat, own: Rank, offers: &[u8]) -> (bool, bool) {
        let offers: Vec<Offer> = offers.chunks_exact(Offer::BYTES).map(Offer::from_bytes).collect();
        let process = offers.get(own).map_or(0, |offer| offer.process);
        let few = offers.len() <= device::OPERANDS_MOST;
        let reduces = few && offers.iter().all(|offer| offer.reduces);
        let open = |(rank, offer)| self.open(rank == own, process, offer);
        let open_all = || offers.iter().enumerate().map(open).collect::<Result<Vec<_>>>();
        let opened = self.accelerator.within(|driver| relaxed(driver, open_all));
        let Ok(windows) = opened else { return (false, reduces) };
        let mut endpoint = seat.endpoint.lock();
        let Some(fabric) = &mut endpoint.fabric else { return (false, reduces) };
        for (peer, window) in windows.into_iter().enumerate() {
            if let Some(window) = window {
                fabric.lent.open_window(peer, window);
            }
        }
        (true, reduces)
    }

    /// The window of a rank of another process; addresses of one process mean the same on all of its devices, once those reach each
    /// other.
    fn open(&self, is_own: bool, process: u64, offer: &Offer) -> Result<Option<Window>> {
        let driver = self.accelerator.driver;
        if !offer.there {
            return Err(Error::internal("a rank without a window"));
        }
        if is_own {
            return Ok(None);
        }
        if offer.process == process {
            let reached = driver.reach(self.accelerator.context, offer.context)?;
            return if reached {
                Ok(None)
            } else {
                Err(Error::internal("devices that do not reach each other"))
            };
        }
        let here = device::Accelerator::open(driver, &offer.exported)?;
        Ok(Some(Window { start: offer.start, bytes: Staging::BYTES as u64, here }))
    }

    /// Gives it back, if it is not to be used.
    pub fn give_back(self) {
        self.staging.give_back();
    }
}
