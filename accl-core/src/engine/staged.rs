//! Launches in device memory, through staging memory: what a rank gives is copied to the host, the operation runs there as any other,
//! and what it gets is copied back. All of it as a state machine, which never waits for the device.
//!
//! Collective calls go in pieces, two slots for each direction: while one piece is on its way between ranks, the next one comes
//! from the device and the one before goes back to it. Slots are memory that peers map, so that they read there in place.

use super::Poll;
use super::call::{Call, Scale, Transfer};
use super::collective::CollectiveOp;
use super::drive::{Job, Work};
use super::endpoint::Endpoint;
use super::pieces::{Pieces, Portion};
use super::transfer::TransferOp;
use crate::device::UserPointer;
use crate::driver::{Context, Driver, Event, Stream};
use crate::error::Result;
use crate::memory::{self, Scratch, read_scalar};
use parking_lot::Mutex;

/// The input or the output of one piece. The same on all ranks, since they cut calls alike.
const SLOT_BYTES: usize = 2 << 20;

/// Pieces between the device and the host at once, in each direction.
const SLOTS: usize = 2;

/// Factors of pre-multiplied sums are copied here.
const SCALAR_BYTES: usize = 64;

/// One direction between the device and the slots.
#[derive(Debug)]
struct Lane {
    slots: [UserPointer; SLOTS],
    stream: Stream,
    /// Behind the copies of each slot.
    events: [Event; SLOTS],
}

impl Lane {
    fn new(driver: &dyn Driver, start: UserPointer) -> Result<Self> {
        Ok(Self {
            slots: [start, start.byte_add(SLOT_BYTES)],
            stream: driver.create_stream()?,
            events: [driver.create_event()?, driver.create_event()?],
        })
    }

    fn slot(&self, piece: usize) -> UserPointer {
        self.slots[piece % SLOTS]
    }

    fn mark(&self, driver: &dyn Driver, piece: usize) -> Result<()> {
        driver.record(self.events[piece % SLOTS], self.stream)
    }

    fn has_passed(&self, driver: &dyn Driver, piece: usize) -> Result<bool> {
        driver.has_passed(self.events[piece % SLOTS])
    }
}

/// Staging memory of one rank, and the streams that fill and empty it.
///
/// It is made when a program launches something for the first time, by the program's own thread, and kept for the next communicator
/// of the context when this one ends: drivers wait for all work of the device when memory is given back, and may when it is
/// made, and the engine's thread would wait for work that waits for the engine.
#[derive(Debug)]
pub(super) struct Staging {
    context: Context,
    input: Lane,
    output: Lane,
    /// Where factors of pre-multiplied sums are copied to.
    scalar: UserPointer,
}

/// What no communicator uses.
static SPARE: Mutex<Vec<Staging>> = Mutex::new(Vec::new());

impl Staging {
    const BYTES: usize = 2 * SLOTS * SLOT_BYTES + SCALAR_BYTES;

    /// Staging memory of a context, which must be the thread's.
    pub(super) fn take(driver: &dyn Driver, context: Context) -> Result<Self> {
        let mut spare = SPARE.lock();
        if let Some(index) = spare.iter().position(|staging| staging.context == context) {
            return Ok(spare.swap_remove(index));
        }
        drop(spare);
        let start = memory::allocate_shared(Self::BYTES)?;
        if let Err(error) = driver.register(start.address(), Self::BYTES) {
            memory::free(start.as_ptr())?;
            return Err(error);
        }
        let at = |bytes| start.byte_add(bytes);
        Ok(Self {
            context,
            input: Lane::new(driver, start)?,
            output: Lane::new(driver, at(SLOTS * SLOT_BYTES))?,
            scalar: at(2 * SLOTS * SLOT_BYTES),
        })
    }

    /// Keeps it for the next one. Nothing may be under way in it.
    pub(super) fn give_back(self) {
        SPARE.lock().push(self);
    }
}

/// How far a call is: numbers of pieces.
#[derive(Debug)]
struct StagedCall {
    call: Call,
    pieces: Pieces,
    /// The factor of a pre-multiplied sum is on its way to the host.
    awaits_scalar: bool,
    /// On their way to the host, or there.
    fetched: usize,
    /// There.
    arrived: usize,
    /// Done, and on their way back.
    run: usize,
    /// Back.
    returned: usize,
}

/// How far the sends and receives are.
#[derive(Debug)]
enum TransferStage {
    /// What is sent comes to the host.
    Fetch,
    /// It is on its way between ranks.
    Run,
    /// What was received goes to the device.
    Return,
}

/// The sends and receives of a launch, with host memory in place of their buffers.
#[derive(Debug)]
struct StagedTransfers {
    staged: Vec<Transfer>,
    _memory: Scratch,
    stage: TransferStage,
    event: Event,
}

/// How far a launch is.
#[derive(Debug, Default)]
pub(super) struct StagedWork {
    /// What runs on the host now.
    pub(super) work: Work,
    begun: bool,
    next_call: usize,
    call: Option<StagedCall>,
    transfers: Option<StagedTransfers>,
}

impl StagedWork {
    /// Makes what progress it can. The device's context must be the thread's.
    pub(super) fn poll(
        &mut self,
        job: &Job<'_>,
        endpoint: &mut Endpoint,
        driver: &dyn Driver,
        staging: &Staging,
    ) -> Result<Poll> {
        let mut moved = false;
        if !self.begun {
            self.begun = true;
            moved = true;
            self.begin(job, driver, staging)?;
        }
        moved |= self.poll_transfers(job, endpoint, driver, staging)?;
        moved |= self.poll_calls(job, endpoint, driver, staging)?;
        let done = self.transfers.is_none() && self.call.is_none() && self.next_call == job.calls.len();
        Ok(match (done, moved) {
            (true, _) => Poll::Done,
            (false, true) => Poll::Advanced,
            (false, false) => Poll::Blocked,
        })
    }

    /// True while something is on its way between device and host.
    pub(super) fn awaits_device(&self) -> bool {
        let calls = self.call.as_ref().is_some_and(|call| {
            call.awaits_scalar || call.arrived < call.fetched || call.returned < call.run
        });
        calls
            || self.transfers.as_ref().is_some_and(|transfers| !matches!(transfers.stage, TransferStage::Run))
    }

    fn begin(&mut self, job: &Job<'_>, driver: &dyn Driver, staging: &Staging) -> Result<()> {
        // What is received may be sent on by nobody in the same launch, so that the order of these does not matter.
        for copy in job.copies.iter().filter(|copy| copy.from != copy.to && copy.bytes > 0) {
            driver.copy(copy.to.address(), copy.from.address(), copy.bytes, staging.input.stream)?;
        }
        if job.transfers.is_empty() && job.copies.is_empty() {
            return Ok(());
        }
        let mut memory = Scratch::default();
        let start = memory.ensure(job.transfers.iter().map(|transfer| transfer.bytes).sum())?;
        let mut at = 0;
        let mut staged = Vec::with_capacity(job.transfers.len());
        for transfer in job.transfers {
            let buffer = start.byte_add(at);
            at += transfer.bytes;
            if transfer.send && transfer.bytes > 0 {
                driver.copy(
                    buffer.address(),
                    transfer.buffer.address(),
                    transfer.bytes,
                    staging.input.stream,
                )?;
            }
            staged.push(Transfer { buffer, ..*transfer });
        }
        let event = driver.create_event()?;
        driver.record(event, staging.input.stream)?;
        self.transfers =
            Some(StagedTransfers { staged, _memory: memory, stage: TransferStage::Fetch, event });
        Ok(())
    }

    fn poll_transfers(
        &mut self,
        job: &Job<'_>,
        endpoint: &mut Endpoint,
        driver: &dyn Driver,
        staging: &Staging,
    ) -> Result<bool> {
        let Some(transfers) = &mut self.transfers else { return Ok(false) };
        match transfers.stage {
            TransferStage::Fetch => {
                if !driver.has_passed(transfers.event)? {
                    return Ok(false);
                }
                if !transfers.staged.is_empty() {
                    self.work.transfer = Some(TransferOp::begin(&transfers.staged, endpoint)?);
                }
                transfers.stage = TransferStage::Run;
                Ok(true)
            }
            TransferStage::Run => {
                if let Some(op) = &mut self.work.transfer {
                    match op.poll(endpoint)? {
                        Poll::Done => self.work.transfer = None,
                        polled => return Ok(polled == Poll::Advanced),
                    }
                }
                let received = |(_, whole): &(&Transfer, &Transfer)| !whole.send && whole.bytes > 0;
                for (host, whole) in transfers.staged.iter().zip(job.transfers).filter(received) {
                    let (to, from) = (whole.buffer.address(), host.buffer.address());
                    driver.copy(to, from, whole.bytes, staging.output.stream)?;
                }
                driver.record(transfers.event, staging.output.stream)?;
                transfers.stage = TransferStage::Return;
                Ok(true)
            }
            TransferStage::Return => {
                let returned = driver.has_passed(transfers.event)?;
                if returned {
                    driver.destroy_event(transfers.event)?;
                    self.transfers = None;
                }
                Ok(returned)
            }
        }
    }

    fn poll_calls(
        &mut self,
        job: &Job<'_>,
        endpoint: &mut Endpoint,
        driver: &dyn Driver,
        staging: &Staging,
    ) -> Result<bool> {
        let mut moved = false;
        loop {
            let Some(staged) = &mut self.call else {
                let Some(call) = job.calls.get(self.next_call) else { return Ok(moved) };
                self.next_call += 1;
                self.call = Some(StagedCall::begin(call, endpoint.ranks, driver, staging)?);
                moved = true;
                continue;
            };
            let advanced = staged.poll(&mut self.work.collective, endpoint, driver, staging)?;
            moved |= advanced;
            if staged.returned < staged.pieces.count {
                return Ok(moved);
            }
            self.call = None;
        }
    }
}

impl StagedCall {
    fn begin(call: &Call, ranks: usize, driver: &dyn Driver, staging: &Staging) -> Result<Self> {
        let mut awaits_scalar = false;
        if let Some((dtype, Scale::InMemory(place))) = call.operator.scale {
            driver.copy(
                staging.scalar.address(),
                place.address(),
                dtype.size_bytes(),
                staging.input.stream,
            )?;
            staging.input.mark(driver, 0)?;
            awaits_scalar = true;
        }
        let pieces = Pieces::of(call, ranks, SLOT_BYTES);
        Ok(Self { call: *call, pieces, awaits_scalar, fetched: 0, arrived: 0, run: 0, returned: 0 })
    }

    fn poll(
        &mut self,
        running: &mut Option<CollectiveOp>,
        endpoint: &mut Endpoint,
        driver: &dyn Driver,
        staging: &Staging,
    ) -> Result<bool> {
        let mut moved = false;
        if self.awaits_scalar {
            if !staging.input.has_passed(driver, 0)? {
                return Ok(false);
            }
            self.awaits_scalar = false;
            if let Some((dtype, scale)) = &mut self.call.operator.scale {
                *scale = Scale::Immediate(read_scalar(endpoint.device, staging.scalar, dtype.size_bytes()));
            }
        }
        while self.fetched < self.pieces.count && self.fetched < self.run + SLOTS {
            self.fetch(endpoint, driver, staging)?;
            moved = true;
        }
        if self.arrived < self.fetched && staging.input.has_passed(driver, self.arrived)? {
            self.arrived += 1;
            moved = true;
        }
        if running.is_none() && self.run < self.arrived && self.run < self.returned + SLOTS {
            *running = Some(self.start(endpoint, staging)?);
        }
        if let Some(op) = running {
            match super::Operation::poll(op, endpoint)? {
                Poll::Done => {
                    *running = None;
                    self.give_back(endpoint, driver, staging)?;
                    moved = true;
                }
                polled => moved |= polled == Poll::Advanced,
            }
        }
        if self.returned < self.run && staging.output.has_passed(driver, self.returned)? {
            self.returned += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Has the next piece of the input copied to the host.
    fn fetch(&mut self, endpoint: &Endpoint, driver: &dyn Driver, staging: &Staging) -> Result<()> {
        let (lane, piece) = (&staging.input, self.fetched);
        for portion in self.pieces.inputs(&self.call, endpoint.ranks, endpoint.rank, piece) {
            let Portion { buffer_at, slot_at, bytes } = portion;
            let slot = lane.slot(piece).byte_add(slot_at).address();
            driver.copy(slot, self.call.send.address() + buffer_at, bytes, lane.stream)?;
        }
        self.fetched += 1;
        lane.mark(driver, piece)
    }

    /// Begins the next piece, as a call between slots.
    fn start(&self, endpoint: &mut Endpoint, staging: &Staging) -> Result<CollectiveOp> {
        let call = Call {
            count_elems: self.pieces.elems(&self.call, self.run),
            send: staging.input.slot(self.run),
            recv: staging.output.slot(self.run),
            ..self.call
        };
        CollectiveOp::begin_piece(&call, self.call.count_elems, false, endpoint)
    }

    /// Has the output of the piece that is done copied to the device.
    fn give_back(&mut self, endpoint: &Endpoint, driver: &dyn Driver, staging: &Staging) -> Result<()> {
        let (lane, piece) = (&staging.output, self.run);
        for portion in self.pieces.outputs(&self.call, endpoint.ranks, endpoint.rank, piece) {
            let Portion { buffer_at, slot_at, bytes } = portion;
            let slot = lane.slot(piece).byte_add(slot_at).address();
            driver.copy(self.call.recv.address() + buffer_at, slot, bytes, lane.stream)?;
        }
        self.run += 1;
        lane.mark(driver, piece)
    }
}
