//! The one-step path for small operations: everybody's contribution stands on the board, and each rank takes
//! what it needs. No queue, no thread, no allocation; one cache line from each peer for up to 32 bytes.

use super::call::Call;
use super::collective::{CollectiveOp, agree, depends_on, posted};
use super::endpoint::Endpoint;
use super::{Operation, Poll};
use crate::algo::Choice;
use crate::device::Operand;
use crate::error::Result;
use crate::reduce::Form;
use crate::transport::board::{Contribution, PostedCall};
use crate::transport::shm::BOARD_INLINE_BYTES;
use crate::types::{Collective, Rank, Scalar};

/// A small call that has been posted. What a [`CollectiveOp`] does for all kinds of calls, with the least work.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    call: &'a Call,
    sequence: u64,
    posted: PostedCall,
    agreed: Rank,
}

impl<'a> Exchange<'a> {
    /// Posts a call and wakes who waits for it; none if it is not that simple, and nothing has been done.
    #[inline]
    pub(super) fn post(call: &'a Call, endpoint: &mut Endpoint) -> Option<Self> {
        let exchange = Self::post_quietly(call, endpoint)?;
        endpoint.fabric.as_ref()?.board.ring_peers();
        Some(exchange)
    }

    /// The same for one of several calls: the peers are to be woken afterwards. Inlined at both of its places: a lone call
    /// should not pay for there being another.
    #[inline(always)]
    pub(super) fn post_quietly(call: &'a Call, endpoint: &mut Endpoint) -> Option<Self> {
        let (rank, ranks) = (endpoint.rank, endpoint.ranks);
        let simple = endpoint.facts.exchanges(call.kind, call.count_bytes())
            && call.operator.scale.is_none()
            && call.selection.is_open()
            && !call.overlaps_badly(ranks, rank);
        if !simple {
            return None;
        }
        let data = contribution(call, endpoint);
        let (device, sequence) = (endpoint.device, endpoint.sequence + 1);
        let posted = posted(call, Choice::Exchange, endpoint);
        let board = &mut endpoint.fabric.as_mut()?.board;
        if !board.can_post(sequence, data.bytes) {
            return None;
        }
        endpoint.sequence = sequence;
        endpoint.recorder.begin(sequence, posted.what, posted.count);
        board.post(device, sequence, posted, Scalar::default(), data);
        Some(Self { call, sequence, posted, agreed: 0 })
    }

    /// Operation `sequence`, which has been posted, and has seen that the ranks before `agreed` agree.
    #[inline]
    pub(super) fn resume(call: &'a Call, sequence: u64, agreed: Rank, endpoint: &Endpoint) -> Self {
        Self { call, sequence, posted: posted(call, Choice::Exchange, endpoint), agreed }
    }

    /// The first rank that is not known to agree.
    #[inline]
    pub(super) fn agreed(&self) -> Rank {
        self.agreed
    }
}

impl Operation for Exchange<'_> {
    // As `post_quietly`.
    #[inline(always)]
    fn poll(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        let Self { call, sequence, posted, agreed } = self;
        let rank = endpoint.rank;
        let depends = |peer| depends_on(call, Choice::Exchange, rank, peer);
        if !agree(&mut endpoint.fabric()?.board, rank, *sequence, *posted, agreed, depends)? {
            return Ok(Poll::Blocked);
        }
        finish(call, None, *sequence, endpoint)?;
        endpoint.recorder.complete(*sequence);
        Ok(Poll::Done)
    }

    #[inline]
    fn waits_for_first(&self) -> Option<Rank> {
        Some(self.agreed)
    }

    fn into_op(self, ranks: usize) -> CollectiveOp {
        CollectiveOp::exchanging(self.call, ranks, self.sequence, self.posted, self.agreed)
    }
}

/// What this rank posts. Where every rank has a part of it, its own part stays at home.
#[inline]
pub(super) fn contribution(call: &Call, endpoint: &Endpoint) -> Contribution {
    let (rank, block) = (endpoint.rank, call.count_bytes());
    let bytes = call.input_elems(endpoint.ranks, rank) * call.dtype.size_bytes();
    let shares = matches!(call.kind, Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter);
    // What fits into a cache line is posted as a whole.
    let own = if shares && bytes > BOARD_INLINE_BYTES { rank * block..(rank + 1) * block } else { 0..0 };
    Contribution { start: call.send, bytes, own }
}

/// Takes the result from the board, once everybody needed has posted.
#[inline]
pub(super) fn finish(
    call: &Call,
    scale: Option<Scalar>,
    sequence: u64,
    endpoint: &mut Endpoint,
) -> Result<()> {
    let (rank, ranks, root) = (endpoint.rank, endpoint.ranks, call.root);
    let bytes = call.count_bytes();
    // Of each rank's contribution, its length and where the part for this rank begins.
    let (whole, share) = ((bytes, 0), (ranks * bytes, rank * bytes));
    match call.kind {
        Collective::AllReduce => reduce(call, scale, sequence, endpoint, whole),
        Collective::ReduceScatter => reduce(call, scale, sequence, endpoint, share),
        Collective::Reduce if rank == root => reduce(call, scale, sequence, endpoint, whole),
        Collective::AllGather | Collective::Split => collect(call, sequence, endpoint, whole),
        Collective::Gather if rank == root => collect(call, sequence, endpoint, whole),
        Collective::AllToAll => collect(call, sequence, endpoint, share),
        Collective::Broadcast => take(call, sequence, endpoint, root, whole, 0),
        Collective::Scatter => take(call, sequence, endpoint, root, share, 0),
        Collective::Reduce | Collective::Gather => Ok(()),
    }
}

/// Folds everybody's contribution in rank order; contributions are given as (length, where to begin), in bytes.
fn reduce(
    call: &Call,
    scale: Option<Scalar>,
    sequence: u64,
    endpoint: &mut Endpoint,
    (posted_bytes, offset): (usize, usize),
) -> Result<()> {
    let (rank, ranks) = (endpoint.rank, endpoint.ranks);
    let reduction = endpoint.reduction(call);
    let mut operands = std::mem::take(&mut endpoint.operands);
    operands.clear();
    let board = &endpoint.fabric()?.board;
    for peer in 0..ranks {
        // This rank's own input is nearer in its buffer than on the board, whose lines peers are reading.
        let (start, scale) = if peer == rank {
            (call.send, scale)
        } else {
            let scale = scale.is_some().then(|| board.scale(peer, sequence));
            (board.data(peer, sequence, posted_bytes), scale)
        };
        operands.push(Operand { start: start.byte_add(offset), form: Form::Element, scale });
    }
    endpoint.device.reduce(&reduction, &operands, call.recv, Form::Element, call.count_elems);
    endpoint.operands = operands;
    Ok(())
}

/// One block of everybody's contribution, each into the block of its rank.
fn collect(call: &Call, sequence: u64, endpoint: &mut Endpoint, from: (usize, usize)) -> Result<()> {
    let bytes = call.count_bytes();
    (0..endpoint.ranks).try_for_each(|peer| take(call, sequence, endpoint, peer, from, peer * bytes))
}

/// Copies one block of what `peer` has posted, given as (posted bytes, offset), to byte `to` of the result.
#[inline]
fn take(
    call: &Call,
    sequence: u64,
    endpoint: &mut Endpoint,
    peer: Rank,
    (posted_bytes, offset): (usize, usize),
    to: usize,
) -> Result<()> {
    let bytes = call.count_bytes();
    let all = if peer == endpoint.rank {
        call.send
    } else {
        endpoint.fabric()?.board.data(peer, sequence, posted_bytes)
    };
    endpoint.device.copy(call.recv.byte_add(to), all.byte_add(offset), bytes);
    Ok(())
}
