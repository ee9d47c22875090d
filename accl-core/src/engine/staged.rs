//! Launches in device memory, through staging memory: what a rank gives is copied to where its peers reach it, the operation runs
//! there as any other, and what the rank gets is copied back. All of it as a state machine, which never waits for the device.
//!
//! Collective calls go in pieces, two slots for each direction: while one piece is on its way between ranks, the next one comes
//! from the user's buffer and the one before goes to it. Where all devices reach each other the slots are windows, and devices do
//! the work; else they lie in the host.

use super::Poll;
use super::call::{Call, Scale};
use super::collective::CollectiveOp;
use super::dock::Dock;
use super::dock_memory::DockMemory;
use super::drive::{Job, Work};
use super::endpoint::Endpoint;
use super::pieces::{Pieces, Portion};
use super::staged_transfers::StagedTransfers;
use super::staging::{SLOT_BYTES, SLOTS, Staging};
use super::windows::Windows;
use crate::driver::Driver;
use crate::error::Result;
use crate::memory::read_scalar;
use std::sync::Arc;

/// How far a call is: numbers of pieces.
#[derive(Debug)]
struct StagedCall {
    call: Call,
    pieces: Pieces,
    /// Devices do the work.
    by_device: bool,
    /// The factor of a pre-multiplied sum is on its way to the host.
    awaits_factor: bool,
    /// On their way to the host, or there.
    fetched: usize,
    /// There.
    arrived: usize,
    /// Done, and on their way back.
    run: usize,
    /// Back.
    returned: usize,
}

/// How far a launch is.
#[derive(Debug, Default)]
pub(super) struct StagedWork {
    /// What runs between ranks now.
    pub(super) work: Work,
    /// What it goes through, from its beginning on.
    memory: Option<Arc<DockMemory>>,
    next_call: usize,
    call: Option<StagedCall>,
    transfers: Option<StagedTransfers>,
}

/// By what a call goes.
#[derive(Clone, Copy, Debug)]
struct Means<'a> {
    driver: &'static dyn Driver,
    staging: &'a Staging,
    /// If the staging memory is a window.
    windows: Option<&'a Windows>,
}

impl DockMemory {
    fn means(&self, call: &Call, driver: &'static dyn Driver) -> Result<Means<'_>> {
        let windows = self.windows_for(call);
        let staging = windows.map_or_else(|| self.host_staging(), |windows| Ok(&windows.staging))?;
        Ok(Means { driver, staging, windows })
    }
}

impl StagedWork {
    /// Makes what progress it can. The device's context must be the thread's.
    pub(super) fn poll(&mut self, job: &Job<'_>, endpoint: &mut Endpoint, dock: &Dock) -> Result<Poll> {
        let driver = dock.accelerator.driver;
        let mut moved = self.memory.is_none();
        let memory = match &self.memory {
            Some(memory) => memory.clone(),
            None => {
                let memory = dock.memory.get()?;
                if job.has_transfers() {
                    self.transfers = Some(StagedTransfers::begin(job, driver, memory.host_staging()?)?);
                }
                self.memory.insert(memory).clone()
            }
        };
        if let Some(transfers) = &mut self.transfers {
            match transfers.poll(job, &mut self.work.transfer, endpoint, driver, memory.host_staging()?)? {
                Poll::Done => {
                    self.transfers = None;
                    moved = true;
                }
                polled => moved |= polled == Poll::Advanced,
            }
        }
        moved |= self.poll_calls(job, endpoint, dock, &memory)?;
        let done = self.transfers.is_none() && self.call.is_none() && self.next_call == job.calls.len();
        Ok(match (done, moved) {
            (true, _) => Poll::Done,
            (false, true) => Poll::Advanced,
            (false, false) => Poll::Blocked,
        })
    }

    /// True while something is on its way by the device.
    pub(super) fn awaits_device(&self) -> bool {
        self.call.as_ref().is_some_and(StagedCall::awaits_device)
            || self.transfers.as_ref().is_some_and(StagedTransfers::awaits_device)
    }

    fn poll_calls(
        &mut self,
        job: &Job<'_>,
        endpoint: &mut Endpoint,
        dock: &Dock,
        memory: &DockMemory,
    ) -> Result<bool> {
        let mut moved = false;
        loop {
            let Some(staged) = &mut self.call else {
                let Some(call) = job.calls.get(self.next_call) else { return Ok(moved) };
                self.next_call += 1;
                self.call = Some(StagedCall::begin(call, endpoint.ranks, dock, memory)?);
                moved = true;
                continue;
            };
            moved |= staged.poll(&mut self.work.collective, endpoint, dock, memory)?;
            if staged.returned < staged.pieces.count {
                return Ok(moved);
            }
            self.call = None;
        }
    }
}

impl StagedCall {
    fn begin(call: &Call, ranks: usize, dock: &Dock, memory: &DockMemory) -> Result<Self> {
        let means = memory.means(call, dock.accelerator.driver)?;
        let mut awaits_factor = false;
        if let Some((dtype, Scale::InMemory(place))) = call.operator.scale {
            let lane = &means.staging.input;
            means.driver.copy(
                dock.mailbox.factor().address(),
                place.address(),
                dtype.size_bytes(),
                lane.stream,
            )?;
            lane.mark(means.driver, 0)?;
            awaits_factor = true;
        }
        let (pieces, by_device) = (Pieces::of(call, ranks, SLOT_BYTES), means.windows.is_some());
        Ok(Self {
            call: *call,
            pieces,
            by_device,
            awaits_factor,
            fetched: 0,
            arrived: 0,
            run: 0,
            returned: 0,
        })
    }

    fn awaits_device(&self) -> bool {
        let copies = self.arrived < self.fetched || self.returned < self.run;
        self.by_device || self.awaits_factor || copies
    }

    /// Puts the factor of a pre-multiplied sum into the call once it is there; true if there is none to wait for.
    fn has_factor(&mut self, endpoint: &Endpoint, dock: &Dock, means: &Means<'_>) -> Result<bool> {
        if !self.awaits_factor {
            return Ok(true);
        }
        if !means.staging.input.has_passed(means.driver, 0)? {
            return Ok(false);
        }
        self.awaits_factor = false;
        if let Some((dtype, scale)) = &mut self.call.operator.scale {
            *scale =
                Scale::Immediate(read_scalar(endpoint.device, dock.mailbox.factor(), dtype.size_bytes()));
        }
        Ok(true)
    }

    fn poll(
        &mut self,
        running: &mut Option<CollectiveOp>,
        endpoint: &mut Endpoint,
        dock: &Dock,
        memory: &DockMemory,
    ) -> Result<bool> {
        let means = memory.means(&self.call, dock.accelerator.driver)?;
        if !self.has_factor(endpoint, dock, &means)? {
            return Ok(false);
        }
        let (driver, mut moved) = (means.driver, false);
        while self.fetched < self.pieces.count && self.fetched < self.run + SLOTS {
            self.fetch(endpoint, &means)?;
            moved = true;
        }
        if self.arrived < self.fetched && means.staging.input.has_passed(driver, self.arrived)? {
            self.arrived += 1;
            moved = true;
        }
        if running.is_none() && self.run < self.arrived && self.run < self.returned + SLOTS {
            *running = Some(self.start(endpoint, &means)?);
        }
        if let Some(op) = running {
            match means.run(op, endpoint)? {
                Poll::Done => {
                    *running = None;
                    self.give_back(endpoint, &means)?;
                    moved = true;
                }
                polled => moved |= polled == Poll::Advanced,
            }
        }
        if self.returned < self.run && means.staging.output.has_passed(driver, self.returned)? {
            self.returned += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Has the next piece of the input copied to its slot.
    fn fetch(&mut self, endpoint: &Endpoint, means: &Means<'_>) -> Result<()> {
        let (lane, piece) = (&means.staging.input, self.fetched);
        for portion in self.pieces.inputs(&self.call, endpoint.ranks, endpoint.rank, piece) {
            let Portion { buffer_at, slot_at, bytes } = portion;
            let slot = lane.slot(piece).byte_add(slot_at).address();
            means.driver.copy(slot, self.call.send.address() + buffer_at, bytes, lane.stream)?;
        }
        self.fetched += 1;
        lane.mark(means.driver, piece)
    }

    /// Begins the next piece, as a call between slots.
    fn start(&self, endpoint: &mut Endpoint, means: &Means<'_>) -> Result<CollectiveOp> {
        let call = Call {
            count_elems: self.pieces.elems(&self.call, self.run),
            send: means.staging.input.slot(self.run),
            recv: means.staging.output.slot(self.run),
            ..self.call
        };
        CollectiveOp::begin_piece(&call, self.call.count_elems, means.windows.is_some(), endpoint)
    }

    /// Has the output of the piece that is done copied to the user's buffer.
    fn give_back(&mut self, endpoint: &Endpoint, means: &Means<'_>) -> Result<()> {
        let (lane, piece) = (&means.staging.output, self.run);
        for portion in self.pieces.outputs(&self.call, endpoint.ranks, endpoint.rank, piece) {
            let Portion { buffer_at, slot_at, bytes } = portion;
            let slot = lane.slot(piece).byte_add(slot_at).address();
            means.driver.copy(self.call.recv.address() + buffer_at, slot, bytes, lane.stream)?;
        }
        self.run += 1;
        lane.mark(means.driver, piece)
    }
}

impl Means<'_> {
    /// Lets a piece make what progress it can, on the device or on the host.
    fn run(&self, op: &mut CollectiveOp, endpoint: &mut Endpoint) -> Result<Poll> {
        let host = endpoint.device;
        if let Some(windows) = self.windows {
            endpoint.device = windows.device;
        }
        let polled = super::Operation::poll(op, endpoint);
        endpoint.device = host;
        polled
    }
}
