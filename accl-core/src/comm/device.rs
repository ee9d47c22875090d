//! Which device a communicator is of, and the streams on which its calls are made.

use super::Communicator;
use crate::bootstrap::PeerRecord;
use crate::config::Settings;
use crate::driver;
use crate::engine::{Accelerator, HostStream, OwnWindow, WindowOffer};
use crate::error::{Error, Result};

/// Where a call is made.
#[derive(Clone, Copy, Debug)]
pub enum Stream<'a> {
    /// In host memory, at once: the call returns when it is done.
    None,
    /// In host memory, in the order of a host stream.
    Host(&'a HostStream),
    /// In the memory of the communicator's device, in the order of one of its streams.
    Device(driver::Stream),
}

/// The device that the calling thread uses, if it uses one, and settings do not keep the library from it.
pub(super) fn current(settings: &Settings) -> Result<Option<Accelerator>> {
    let Some(driver) = wanted(settings)? else { return Ok(None) };
    Ok(driver.current()?.map(|context| Accelerator { driver, context }))
}

/// The devices with these numbers, or the first `ranks`; none if the process uses no devices.
pub(super) fn listed(
    settings: &Settings,
    ranks: usize,
    numbers: Option<&[i32]>,
) -> Result<Vec<Option<Accelerator>>> {
    let driver = wanted(settings)?;
    let devices = driver.map_or(Ok(0), driver::Driver::devices)?;
    let Some(driver) = driver.filter(|_| devices > 0) else { return Ok(vec![None; ranks]) };
    let device = |rank: usize| {
        let ordinal = numbers.map_or(Ok(rank as i32), |numbers| {
            numbers.get(rank).copied().ok_or_else(|| Error::internal("a rank without a device"))
        })?;
        if !(0..devices).contains(&ordinal) {
            return Err(Error::argument(format!(
                "device {ordinal} for rank {rank}: this process has {devices} devices; pass numbers from 0 to {}",
                devices - 1
            )));
        }
        Ok(Some(Accelerator { driver, context: driver.primary(ordinal)? }))
    };
    (0..ranks).map(device).collect()
}

fn wanted(settings: &Settings) -> Result<Option<&'static dyn driver::Driver>> {
    if settings.driver.on { driver::of_process(&settings.driver) } else { Ok(None) }
}

/// An error unless all ranks are of host memory, or all of devices: they would cut calls differently.
pub(super) fn check_alike(peers: &[PeerRecord]) -> Result<()> {
    let first = |on_device| peers.iter().position(|peer| peer.on_device == on_device);
    let (Some(device), Some(host)) = (first(true), first(false)) else { return Ok(()) };
    Err(Error::usage(format!(
        "rank {device} ({}) uses a device, and rank {host} ({}) had none when it called; choose a device before that on every rank, or set ACCL_DEVICE=none everywhere",
        peers[device].describe(),
        peers[host].describe()
    )))
}

impl Communicator {
    /// True if its calls are made on streams of a device.
    #[inline]
    pub fn has_device(&self) -> bool {
        self.shared.device.is_some()
    }

    /// Records an event of the program in a stream of the communicator's device, behind what is on the stream so far.
    pub fn record(&self, event: driver::Event, stream: Stream<'_>) -> Result<()> {
        let (Some(device), Stream::Device(stream)) = (&self.shared.device, stream) else {
            return Err(Error::usage(
                "launchCompletionEvent is set, and the communicator is of host memory, which has no events; pass NULL there",
            ));
        };
        device.within(|driver| driver.record(event, stream))
    }

    /// Has devices reach each other's memory, if all can, and it is not wanted that they go apart. Every rank calls when it has its seat.
    pub(super) fn open_windows(&self, apart: bool) -> Result<()> {
        let joined = self.joined()?;
        let own = self.rank();
        let on_one_host = joined.peers.iter().all(|peer| peer.shares_host(&joined.peers[own]));
        if !self.has_device() || self.ranks() == 1 || !on_one_host {
            return Ok(());
        }
        let process = joined.peers[own].place.process;
        let (window, offer) = joined.seat.offer_window(process, apart);
        let agreed = self.agree_on_windows(window.as_ref(), &offer);
        match (window, &agreed) {
            (Some(window), Ok(Some(reduces))) => joined.seat.use_windows(window, *reduces),
            (Some(window), _) => window.give_back(),
            (None, _) => {}
        }
        agreed.map(|_| ())
    }

    /// Whether everybody reaches everybody's window, and then whether devices can reduce.
    fn agree_on_windows(&self, window: Option<&OwnWindow>, offer: &WindowOffer) -> Result<Option<bool>> {
        let offers = self.tell_all(&offer.to_bytes())?;
        let seat = &self.joined()?.seat;
        let opened = window.map(|window| window.open_others(seat, self.rank(), &offers));
        let (reached, reduces) = opened.unwrap_or((false, false));
        let all = self.tell_all(&[u8::from(reached)])?;
        Ok(all.iter().all(|reached| *reached == 1).then_some(reduces))
    }

    /// The number of its device in this process, or -1 in host memory.
    pub fn device(&self) -> i32 {
        self.shared.device.map_or(-1, |device| device.context.ordinal)
    }
}
