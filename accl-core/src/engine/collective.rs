//! One collective operation of one rank, as a state machine.
//!
//! post → agree → run → drain. A rank posts its call on the board, waits until those it depends on have posted
//! theirs, compares, and only then moves data: ranks that disagree find out before anything is written.

use super::call::Call;
use super::endpoint::Endpoint;
use super::exchange;
use super::explain;
use super::lanes::Fabric;
use super::steps::StepRunner;
use super::{Operation, Poll};
use crate::algo::{Algorithm, Choice, Folding, Plan, Request, reads, select};
use crate::error::{Error, Result};
use crate::memory::regions;
use crate::reduce::Reduction;
use crate::telemetry::TIMED_BYTES;
use crate::transport::board::{self, Board, Contribution, Offer, PostedCall, Regions};
use crate::types::{Collective, Rank, Scalar};

/// How a choice is posted: the algorithm in three bits (these for the ways without messages), the power of the
/// segment's size in the other five, since plans of different segments do not fit together.
const EXCHANGE_CODE: u8 = 7;
const READING_CODE: u8 = 6;
/// The same where everyone is to fold all of an AllReduce.
const FLAT_READING_CODE: u8 = 4;
const PASSING_CODE: u8 = 5;
/// Plans between hosts, beside the number of the algorithm that carries data from host to host. Nothing is read in place there.
const HIERARCHICAL_CODE: u8 = 4;
/// Its segments follow from the arena; no other's are of 2^31 bytes.
const STAGING_CODE: u8 = 31 << 3;

/// Flags of an [`Offer`]: this rank can read the memory of all others.
const READS_ALL: u64 = 1;
/// This rank's output takes the place of its input.
const IN_PLACE: u64 = 2;
/// Regions are posted with the offer.
const REGIONS: u64 = 4;

/// From how many bytes on it pays to map a peer's region.
const MAP_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Post,
    Agree,
    Run,
    Drain,
}

/// The operation and how far it is.
#[derive(Debug)]
pub(crate) struct CollectiveOp {
    pub(crate) call: Call,
    pub(crate) ranks: usize,
    pub(crate) reduction: Reduction,
    pub(crate) scale: Option<Scalar>,
    pub(crate) sequence: u64,
    pub(crate) choice: Choice,
    pub(super) posted: PostedCall,
    /// In an AllReduce: no other rank folds for this one, nor this one for others.
    folds_all: bool,
    /// The buffers are windows of devices, which all ranks can reach.
    windows: bool,
    stage: Stage,
    /// In `Agree`: the first rank that is not known to agree.
    agreed: Rank,
    runner: StepRunner,
}

impl CollectiveOp {
    /// Begins an operation: from here on it has a place in the order of the communicator's operations.
    pub(crate) fn begin(call: &Call, endpoint: &mut Endpoint) -> Result<Self> {
        Self::begin_piece(call, call.count_elems, false, endpoint)
    }

    /// The same for a piece of a call of `whole_elems`, which is what peers are told. With `windows` its buffers are memory of
    /// devices that all ranks can reach.
    pub(super) fn begin_piece(
        call: &Call,
        whole_elems: usize,
        windows: bool,
        endpoint: &mut Endpoint,
    ) -> Result<Self> {
        let mut call = *call;
        let ranks = endpoint.ranks;
        let choice = match windows {
            true => Choice::Reading,
            false => select(call.kind, call.count_bytes(), call.selection, &endpoint.facts)?,
        };
        let scale = call.scale(endpoint.device);
        if call.overlaps_badly(ranks, endpoint.rank) {
            let bytes = call.input_elems(ranks, endpoint.rank) * call.dtype.size_bytes();
            call.send = endpoint.stage(call.send, bytes)?;
        }
        endpoint.sequence += 1;
        let alone = ranks == 1;
        let posted = PostedCall { count: whole_elems as u64, ..posted(&call, choice, endpoint) };
        endpoint.recorder.begin(endpoint.sequence, posted.what, posted.count);
        if call.count_bytes() >= TIMED_BYTES {
            endpoint.recorder.time(endpoint.sequence, false);
        }
        Ok(Self {
            call,
            ranks,
            reduction: endpoint.reduction(&call),
            scale,
            sequence: endpoint.sequence,
            choice,
            posted,
            folds_all: false,
            windows,
            stage: if alone { Stage::Run } else { Stage::Post },
            agreed: 0,
            runner: StepRunner::default(),
        })
    }

    /// An operation that has been posted on the one-step path, and has seen that the ranks before `agreed` agree.
    pub(super) fn exchanging(
        call: &Call,
        ranks: usize,
        sequence: u64,
        posted: PostedCall,
        agreed: Rank,
    ) -> Self {
        Self {
            call: *call,
            ranks,
            reduction: Reduction::new(call.dtype, call.operator.op, ranks),
            scale: None,
            sequence,
            choice: Choice::Exchange,
            posted,
            folds_all: false,
            windows: false,
            stage: Stage::Agree,
            agreed,
            runner: StepRunner::default(),
        }
    }

    fn post(&mut self, endpoint: &mut Endpoint) -> Result<bool> {
        if self.choice == Choice::Reading || self.may_read() {
            return self.post_offer(endpoint);
        }
        let data = match self.choice {
            Choice::Exchange => exchange::contribution(&self.call, endpoint),
            _ => Contribution::whole(self.call.send, 0),
        };
        let (posted, scale) = (self.posted, self.scale.unwrap_or_default());
        let device = endpoint.device;
        let fabric = endpoint.fabric()?;
        let board = &mut fabric.board;
        if !board.can_post(self.sequence, data.bytes) {
            return Ok(false);
        }
        board.post(device, self.sequence, posted, scale, data);
        board.ring_peers();
        self.stage = Stage::Agree;
        Ok(true)
    }

    /// Posts where the buffers lie, and the regions that they are in.
    fn post_offer(&mut self, endpoint: &mut Endpoint) -> Result<bool> {
        let (call, rank, ranks) = (&self.call, endpoint.rank, self.ranks);
        let region = |start, count_elems: usize| {
            let bytes = count_elems * call.dtype.size_bytes();
            if bytes < MAP_BYTES || self.windows { None } else { regions::find(start, bytes) }
        };
        let input = region(call.send, call.input_elems(ranks, rank));
        // Only an AllReduce has its output read.
        let output =
            if call.kind == Collective::AllReduce { region(call.recv, call.count_elems) } else { None };
        let regions = [input.unwrap_or_default(), output.unwrap_or_default()];
        let regions = (input.is_some() || output.is_some()).then_some(&regions);
        let bytes = if regions.is_some() { size_of::<Regions>() } else { 0 };
        let fabric = endpoint.fabric()?;
        if !fabric.board.can_post(self.sequence, bytes) {
            return Ok(false);
        }
        let mut flags = if self.windows || fabric.lent.reads_all() { READS_ALL } else { 0 };
        flags |= if call.send == call.recv { IN_PLACE } else { 0 };
        flags |= if regions.is_some() { REGIONS } else { 0 };
        let offer = Offer::new(call.send, call.recv, flags);
        let scale = self.scale.unwrap_or_default();
        fabric.board.post_offer(self.sequence, self.posted, scale, offer, regions);
        fabric.board.ring_peers();
        self.stage = Stage::Agree;
        Ok(true)
    }

    /// Lets go of regions that have ended, by what peers have offered.
    fn let_go_of_regions(&self, fabric: &mut Fabric, rank: Rank) {
        for peer in (0..self.ranks).filter(|peer| *peer != rank) {
            fabric.lent.keep_up(peer, fabric.board.offer(peer, self.sequence).generation);
        }
    }

    /// Maps the regions that peers have offered, of those whose memory this rank reads.
    fn map_regions(&self, fabric: &mut Fabric, rank: Rank) {
        let reads = |peer: &Rank| reads(self.call.kind, self.call.root, rank, *peer);
        for peer in (0..self.ranks).filter(reads) {
            let offer = fabric.board.offer(peer, self.sequence);
            fabric.lent.keep_up(peer, offer.generation);
            if offer.flags & REGIONS != 0 {
                fabric.lent.map(peer, &fabric.board.regions(peer, self.sequence));
            }
        }
    }

    /// True if ranks that were to stage their data read it instead, where all of it lies in regions: they hear each other's
    /// offers, and so come to the same.
    fn may_read(&self) -> bool {
        let all_hear = matches!(
            self.call.kind,
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter
        );
        self.choice == Choice::Staging && all_hear
    }

    /// The first time, all ranks must hear from all whether they can read each other's memory.
    fn asks(&self, fabric: &Fabric) -> bool {
        self.choice == Choice::Reading && !self.windows && fabric.everyone_reads.is_none()
    }

    /// True if this rank must see that `peer` makes the same call.
    fn must_hear(&self, asking: bool, rank: Rank, peer: Rank) -> bool {
        asking || depends_on(&self.call, self.choice, rank, peer)
    }

    /// True once everybody whom this rank depends on has made the same call.
    fn agree(&mut self, endpoint: &mut Endpoint) -> Result<bool> {
        let (rank, sequence) = (endpoint.rank, self.sequence);
        let fabric = endpoint.fabric()?;
        let asking = self.asks(fabric);
        let mut agreed = self.agreed;
        let depends = |peer| self.must_hear(asking, rank, peer);
        let all_there = agree(&mut fabric.board, rank, sequence, self.posted, &mut agreed, depends)?;
        self.agreed = agreed;
        if !all_there {
            return Ok(false);
        }
        let board = &fabric.board;
        if asking {
            let reads = |peer| board.offer(peer, sequence).flags & READS_ALL != 0;
            let everyone = (0..self.ranks).all(reads);
            fabric.everyone_reads = Some(everyone);
            if !everyone {
                endpoint.facts.stop_reading();
                let Call { kind, selection, .. } = self.call;
                self.choice = match select(kind, self.call.count_bytes(), selection, &endpoint.facts)? {
                    // The board has addresses where the data would be.
                    Choice::Exchange => Choice::Passing,
                    other => other,
                };
            }
        }
        if self.may_read() {
            let board = &endpoint.fabric()?.board;
            let mapped =
                |peer| board.offer(peer, sequence).flags & (READS_ALL | REGIONS) == READS_ALL | REGIONS;
            if (0..self.ranks).all(mapped) {
                self.choice = Choice::Reading;
            } else {
                self.let_go_of_regions(endpoint.fabric()?, rank);
            }
        }
        if self.choice == Choice::Reading {
            self.map_regions(endpoint.fabric()?, rank);
        }
        self.stage = Stage::Run;
        Ok(true)
    }

    fn run(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        if !self.runner.has_plan() {
            let mut plan = std::mem::take(&mut endpoint.plan);
            self.plan(endpoint, &mut plan)?;
            let bytes = self.call.count_bytes();
            let streaming = endpoint.facts.streams(self.call.kind, bytes);
            self.runner.start(plan, &self.reduction, streaming, endpoint)?;
        }
        let mut runner = std::mem::take(&mut self.runner);
        let result = runner.poll(self, endpoint);
        self.runner = runner;
        result
    }

    /// True if peers get what this rank folds.
    pub(super) fn shares_results(&self) -> bool {
        self.call.kind == Collective::AllReduce && !self.folds_all
    }

    fn plan(&mut self, endpoint: &mut Endpoint, plan: &mut Plan) -> Result<()> {
        let request = endpoint.request(&self.call);
        match self.choice {
            Choice::Planned(algorithm) => request.plan(algorithm, plan),
            Choice::Passing => request.plan(Algorithm::Direct, plan),
            Choice::Staging => request.plan_staging(plan),
            Choice::Hierarchical(between) => {
                let layout = endpoint.facts.layout();
                let layout = layout.ok_or_else(|| Error::internal("a plan between hosts on one host"))?;
                request.plan_hierarchical(layout, between, plan);
            }
            Choice::Exchange | Choice::Reading => {
                let folding = self.folding(&request, endpoint)?;
                self.folds_all = folding == Folding::Everyone;
                request.plan_reading(folding, plan);
            }
        }
        Ok(())
    }

    /// Who folds in an AllReduce: a rank whose output takes the place of its input keeps others from reading that later.
    fn folding(&self, request: &Request, endpoint: &mut Endpoint) -> Result<Folding> {
        if self.call.kind != Collective::AllReduce {
            return Ok(Folding::Owner);
        }
        let bytes = self.call.count_bytes();
        let wanted = endpoint.facts.folding(request.kind, bytes);
        let board = &endpoint.fabric()?.board;
        let in_place = |rank| board.offer(rank, self.sequence).flags & IN_PLACE != 0;
        Ok(if (0..self.ranks).any(in_place) { Folding::Owner } else { wanted })
    }

    fn drain(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        let device = endpoint.device;
        if let Some(fabric) = &mut endpoint.fabric {
            let drained = fabric.collective.poll_drained(device)?;
            if drained != Poll::Done {
                return Ok(drained);
            }
        }
        endpoint.plan = self.runner.finish();
        endpoint.memory.trim();
        endpoint.recorder.complete(self.sequence);
        if self.call.count_bytes() >= TIMED_BYTES {
            endpoint.recorder.time(self.sequence, true);
        }
        Ok(Poll::Done)
    }

    /// The ranks that this one waits for.
    pub(crate) fn waits_for(&self, endpoint: &mut Endpoint, missing: &mut Vec<Rank>) {
        let (rank, ranks) = (endpoint.rank, endpoint.ranks);
        let Some(fabric) = &mut endpoint.fabric else { return };
        match self.stage {
            Stage::Post => {
                let bytes = match self.choice {
                    Choice::Exchange => self.call.input_elems(ranks, rank) * self.call.dtype.size_bytes(),
                    Choice::Reading | Choice::Staging => size_of::<Regions>(),
                    _ => 0,
                };
                let behind = (self.sequence + 1).saturating_sub(board::lead_for(bytes) as u64);
                missing.extend((0..ranks).filter(|peer| {
                    *peer != rank && fabric.is_local(*peer) && !fabric.board.has_posted(*peer, behind)
                }));
            }
            Stage::Agree => {
                let asking = self.asks(fabric);
                missing.extend((0..ranks).filter(|peer| {
                    *peer != rank
                        && fabric.is_local(*peer)
                        && self.must_hear(asking, rank, *peer)
                        && !fabric.board.has_posted(*peer, self.sequence)
                }));
            }
            Stage::Run => self.runner.waits_for(fabric, missing),
            Stage::Drain => {}
        }
        if self.stage == Stage::Run || self.stage == Stage::Drain {
            missing.extend(fabric.collective.undrained());
        }
    }
}

impl Operation for CollectiveOp {
    fn poll(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        if self.stage == Stage::Post && !self.post(endpoint)? {
            return Ok(Poll::Blocked);
        }
        if self.stage == Stage::Agree && !self.agree(endpoint)? {
            return Ok(Poll::Blocked);
        }
        if self.stage == Stage::Run {
            match self.choice {
                Choice::Exchange => {
                    exchange::finish(&self.call, self.scale, self.sequence, endpoint)?;
                    endpoint.recorder.complete(self.sequence);
                    return Ok(Poll::Done);
                }
                _ => {
                    if self.run(endpoint)? != Poll::Done {
                        return Ok(if self.runner.take_advanced() { Poll::Advanced } else { Poll::Blocked });
                    }
                    self.stage = Stage::Drain;
                }
            }
        }
        self.drain(endpoint)
    }

    fn waits_for_first(&self) -> Option<Rank> {
        match self.stage {
            Stage::Agree => Some(self.agreed),
            Stage::Run => self.runner.waits_for_first(),
            Stage::Post | Stage::Drain => None,
        }
    }

    fn into_op(self, _ranks: usize) -> Self {
        self
    }
}

/// The call as it is posted.
#[inline(always)]
pub(super) fn posted(call: &Call, choice: Choice, endpoint: &Endpoint) -> PostedCall {
    let segment_code = || {
        let segment_bytes = endpoint.request(call).segment_elems * call.dtype.size_bytes();
        (segment_bytes.ilog2() as u8) << 3
    };
    call.posted(match choice {
        Choice::Exchange => EXCHANGE_CODE,
        // Ranks that cannot read each other's memory go on by a plan with segments.
        Choice::Reading => {
            let bytes = call.count_bytes();
            let flat = call.kind == Collective::AllReduce
                && endpoint.facts.folding(call.kind, bytes) == Folding::Everyone;
            segment_code() | if flat { FLAT_READING_CODE } else { READING_CODE }
        }
        Choice::Passing => PASSING_CODE | segment_code(),
        Choice::Staging => STAGING_CODE,
        Choice::Hierarchical(between) => HIERARCHICAL_CODE | between as u8 | segment_code(),
        Choice::Planned(algorithm) => algorithm as u8 | segment_code(),
    })
}

/// Looks at what the ranks from `agreed` on have posted, as far as they are there; true once all whom this rank depends
/// on have made the same call.
// Inlined at both of its places: most calls go through it.
#[inline(always)]
pub(super) fn agree(
    board: &mut Board,
    rank: Rank,
    sequence: u64,
    posted: PostedCall,
    agreed: &mut Rank,
    depends: impl Fn(Rank) -> bool,
) -> Result<bool> {
    let ranks = board.ranks();
    while *agreed < ranks {
        if *agreed != rank && board.has(*agreed) && depends(*agreed) {
            if !board.has_posted(*agreed, sequence) {
                return Ok(false);
            }
            if board.call(*agreed, sequence) != posted {
                return Err(explain::mismatch(board, rank, ranks, sequence));
            }
        }
        *agreed += 1;
    }
    Ok(true)
}

/// True if `rank` must see that `peer` has come before it moves data.
#[inline]
pub(super) fn depends_on(call: &Call, choice: Choice, rank: Rank, peer: Rank) -> bool {
    let root = call.root;
    match (call.kind, choice) {
        (Collective::Broadcast | Collective::Scatter, Choice::Exchange) => peer == root,
        (Collective::Reduce | Collective::Gather, Choice::Exchange) => rank == root,
        // Only the root writes into its staging area.
        (Collective::Broadcast, Choice::Staging) => rank == root || peer == root,
        // A rank that only lends waits until it has been read: with different roots, that would be for ever.
        (kind, Choice::Reading | Choice::Passing | Choice::Planned(Algorithm::Direct)) if kind.has_root() => {
            rank == root || peer == root
        }
        _ => true,
    }
}
