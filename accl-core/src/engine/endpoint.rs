//! What one rank needs to take part in operations: links, memory to work in, and where it stands.

use super::call::Call;
use super::lanes::Fabric;
use crate::algo::{Facts, Plan, Request};
use crate::device::{self, Device, Host, UserPointer};
use crate::error::{Error, Result};
use crate::memory::Scratch;
use crate::reduce::Reduction;
use crate::telemetry::Recorder;
use crate::types::{DataType, Rank, ReduceOp};
use std::sync::Arc;

/// Scratch memory above this is given back after the operation that needed it.
const KEEP_SCRATCH_BYTES: usize = 2 << 20;

/// One rank's means. Owned by whoever runs an operation of this rank: operations take turns.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    pub(crate) device: &'static dyn Device,
    /// None for a rank alone.
    pub(crate) fabric: Option<Fabric>,
    pub(crate) facts: Facts,
    pub(crate) segment_bytes: usize,
    /// The last collective operation's number.
    pub(crate) sequence: u64,
    /// Reused by every plan.
    pub(crate) plan: Plan,
    /// The last reduction and what it is for: most programs have one kind.
    reduction: Option<((DataType, ReduceOp), Reduction)>,
    /// Reused by every reduction.
    pub(crate) operands: Vec<device::Operand>,
    pub(crate) memory: WorkMemory,
    /// What this rank does, for others to read.
    pub(crate) recorder: Arc<Recorder>,
}

/// Memory to work in.
#[derive(Debug, Default)]
pub(crate) struct WorkMemory {
    /// Accumulators of a plan.
    pub(crate) partial: Scratch,
    /// Elements on their way through a plan.
    pub(crate) transit: Scratch,
    /// Pieces of peers' memory that cannot be read in place.
    pub(crate) pieces: Scratch,
    /// A copy of the input, for calls whose buffers overlap.
    pub(crate) staging: Scratch,
}

impl WorkMemory {
    /// How much there is.
    fn bytes(&self) -> usize {
        [&self.partial, &self.transit, &self.pieces, &self.staging].map(Scratch::bytes).iter().sum()
    }

    /// Gives all of it back.
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back what only a large operation needed.
    pub(crate) fn trim(&mut self) {
        self.partial.trim(KEEP_SCRATCH_BYTES);
        self.transit.trim(KEEP_SCRATCH_BYTES);
        self.staging.trim(KEEP_SCRATCH_BYTES);
    }
}

impl Endpoint {
    /// The endpoint of `rank`; a rank alone has no fabric.
    pub fn new(
        rank: Rank,
        ranks: usize,
        fabric: Option<Fabric>,
        facts: Facts,
        segment_bytes: usize,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self {
            rank,
            ranks,
            device: &Host,
            fabric,
            facts,
            segment_bytes,
            sequence: 0,
            plan: Plan::default(),
            reduction: None,
            operands: Vec::new(),
            memory: WorkMemory::default(),
            recorder,
        }
    }

    /// Memory of this rank alone that lasts from one operation to the next.
    pub(crate) fn own_bytes(&self) -> usize {
        self.memory.bytes() + self.fabric.as_ref().map_or(0, Fabric::buffer_bytes)
    }

    /// What of it can be given back between operations.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Gives that back; it comes again as it is needed.
    pub(crate) fn give_back(&mut self) {
        self.memory.clear();
    }

    /// The request behind a call. Segments grow with the data, so that a plan stays short.
    pub(crate) fn request(&self, call: &Call) -> Request {
        let element_bytes = call.dtype.size_bytes();
        let most_segments = 512;
        let segment_bytes =
            self.segment_bytes.max(call.count_elems.saturating_mul(element_bytes) / most_segments);
        let align_elems = 64 / element_bytes;
        let staging_bytes = self.fabric.as_ref().map_or(0, |fabric| fabric.lent.staging_bytes());
        Request {
            kind: call.kind,
            ranks: self.ranks,
            rank: self.rank,
            root: call.root,
            count_elems: call.count_elems,
            segment_elems: (segment_bytes / element_bytes).next_multiple_of(align_elems).max(align_elems),
            align_elems,
            staging_elems: staging_bytes / element_bytes,
        }
    }

    /// How a call reduces.
    #[inline]
    pub(crate) fn reduction(&mut self, call: &Call) -> Reduction {
        let wanted = (call.dtype, call.operator.op);
        match &self.reduction {
            Some((made, reduction)) if *made == wanted => *reduction,
            _ => self.new_reduction(wanted),
        }
    }

    fn new_reduction(&mut self, wanted: (DataType, ReduceOp)) -> Reduction {
        let reduction = Reduction::new(wanted.0, wanted.1, self.ranks);
        self.reduction = Some((wanted, reduction));
        reduction
    }

    /// The links, for operations that need them.
    #[inline]
    pub(crate) fn fabric(&mut self) -> Result<&mut Fabric> {
        self.fabric.as_mut().ok_or_else(|| Error::internal("an operation between ranks on a rank alone"))
    }

    /// Takes the links down. When this returns, no peer reads this rank's memory any more: whoever called an
    /// operation that has failed gets its buffers back, and peers must not take what it puts there for data.
    pub(crate) fn close(&mut self) {
        self.fabric = None;
    }

    /// The same after a failure, of which peers on other hosts hear.
    pub(crate) fn close_failed(&mut self, error: &Error) {
        if let Some(fabric) = self.fabric.take() {
            fabric.close_failed(error);
        }
    }

    /// Copies `bytes` of input aside and returns where they are now.
    pub(crate) fn stage(&mut self, input: UserPointer, bytes: usize) -> Result<UserPointer> {
        let place = self.memory.staging.ensure(bytes)?;
        self.device.copy(place, input, bytes);
        Ok(place)
    }
}
