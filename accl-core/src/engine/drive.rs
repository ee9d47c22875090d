//! The loop around the state machines: poll, wait, notice.

use super::call::{Call, SelfCopy, Transfer, describe};
use super::collective::CollectiveOp;
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::lanes::Fabric;
use super::one_sided::OneSidedCall;
use super::post::Post;
use super::seat::Seat;
use super::tagged::{Request, TaggedOp};
use super::transfer::TransferOp;
use super::watch::{LOOK_AROUND, Stall};
use super::{Operation, Poll};
use crate::error::{Error, Result};
use crate::os::futex;
use crate::sync::wait::{Backoff, Pause};
use crate::telemetry::calls;
use crate::transport::shm::Lane;
use crate::types::Rank;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// What one rank has to do in one launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Job<'a> {
    /// Collective calls, carried out in this order.
    pub calls: &'a [Call],
    /// Sends and receives, carried out all at once, beside the calls.
    pub transfers: &'a [Transfer],
    /// What this rank sends to itself.
    pub copies: &'a [SelfCopy],
    /// One-sided calls, carried out all at once, beside the calls.
    pub one_sided: &'a [OneSidedCall],
}

impl Job<'_> {
    /// True if it has anything beside collective calls.
    pub(super) fn has_transfers(&self) -> bool {
        !self.transfers.is_empty() || !self.copies.is_empty() || !self.one_sided.is_empty()
    }
}

/// How far a job is.
#[derive(Debug, Default)]
pub(crate) struct Work {
    next_call: usize,
    pub(super) collective: Option<CollectiveOp>,
    pub(super) transfer: Option<TransferOp>,
    /// Messages with tags, which `post` polls, and nobody else has work with.
    pub(super) tagged: Option<Box<TaggedOp>>,
    /// One-sided calls that are not over, and who moves them.
    one_sided: Vec<(Arc<Post>, Arc<Request>)>,
    /// True while no caller waits for it.
    pub(super) in_background: bool,
    begun: bool,
}

impl Work {
    /// An operation that has begun, and nothing else.
    pub(super) fn of(op: CollectiveOp) -> Self {
        Self { collective: Some(op), begun: true, ..Self::default() }
    }

    /// True once it has been polled.
    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The number of the collective operation that is under way, or of the last one.
    pub(super) fn sequence(&self, endpoint: &Endpoint) -> u64 {
        self.collective.as_ref().map_or(endpoint.sequence, |op| op.sequence)
    }

    /// Makes what progress it can.
    pub(crate) fn poll(&mut self, job: &Job<'_>, endpoint: &mut Endpoint) -> Result<Poll> {
        let mut advanced = false;
        if !self.begun {
            self.begun = true;
            for copy in job.copies {
                endpoint.device.copy(copy.to, copy.from, copy.bytes);
            }
            if !job.transfers.is_empty() {
                self.transfer = Some(TransferOp::begin(job.transfers, endpoint)?);
                advanced = true;
            }
            for call in job.one_sided {
                self.one_sided.push((call.post.clone(), call.begin()?));
            }
        }
        if !self.one_sided.is_empty() {
            advanced |= self.poll_one_sided()?;
        }
        if let Some(transfer) = &mut self.transfer {
            match transfer.poll(endpoint)? {
                Poll::Done => self.transfer = None,
                Poll::Advanced => advanced = true,
                Poll::Blocked => {}
            }
        }
        loop {
            if self.collective.is_none() {
                let Some(call) = job.calls.get(self.next_call) else { break };
                self.collective = Some(CollectiveOp::begin(call, endpoint)?);
                self.next_call += 1;
            }
            let Some(op) = &mut self.collective else { break };
            match op.poll(endpoint)? {
                Poll::Done => {
                    self.collective = None;
                    advanced = true;
                }
                Poll::Advanced => {
                    advanced = true;
                    break;
                }
                Poll::Blocked => break,
            }
        }
        if self.collective.is_none() && self.transfer.is_none() && self.one_sided.is_empty() {
            return Ok(Poll::Done);
        }
        Ok(if advanced { Poll::Advanced } else { Poll::Blocked })
    }

    /// True if something moved. While this thread sleeps, the thread for messages moves what there is, and rings.
    fn poll_one_sided(&mut self) -> Result<bool> {
        let before = self.one_sided.len();
        let mut moved = false;
        for (post, request) in &self.one_sided {
            moved |= !request.is_over() && post.poll();
        }
        let mut outcome = Ok(());
        self.one_sided.retain(|(_, request)| {
            if let Some(error) = request.error() {
                outcome = Err(error.clone());
            }
            !request.is_over()
        });
        outcome.map(|()| moved || self.one_sided.len() < before)
    }

    /// The kinds of messages that this job waits for.
    pub(super) fn lanes(&self) -> impl IntoIterator<Item = Lane> + use<> {
        let collective = self.collective.as_ref().map(|_| Lane::Collective);
        let transfer = (self.transfer.is_some() || self.tagged.is_some()).then_some(Lane::PointToPoint);
        collective.into_iter().chain(transfer)
    }

    /// The ranks that this job waits for.
    pub(crate) fn waits_for(&self, endpoint: &mut Endpoint, missing: &mut Vec<Rank>) {
        if let Some(transfer) = &self.transfer {
            transfer.waits_for(endpoint, missing);
        }
        if let Some(tagged) = &self.tagged {
            let lanes = endpoint.fabric.as_ref().map(|fabric| &fabric.point_to_point);
            let is_gone = |peer| lanes.is_some_and(|lanes| lanes.has_left(peer));
            tagged.waits_for(endpoint.rank, endpoint.ranks, is_gone, missing);
        }
        if let Some(op) = &self.collective {
            op.waits_for(endpoint, missing);
        }
        self.one_sided.iter().for_each(|(post, _)| post.waits_for(missing));
    }

    /// Direction, peer and number of the message that it waits for, if it waits for one.
    pub(crate) fn transfer_waiting(&self, endpoint: &Endpoint) -> Option<(bool, Rank, u64)> {
        if let Some(tagged) = &self.tagged {
            return tagged.waiting();
        }
        self.transfer.as_ref()?.waiting(endpoint)
    }

    /// What is under way, as it is recorded: whether that is a send or a receive, its number, call and count.
    pub(super) fn recorded(&self, endpoint: &Endpoint) -> (bool, u64, u64, u64) {
        match (&self.collective, self.transfer_waiting(endpoint)) {
            (Some(op), _) => (false, op.sequence, op.posted.what, op.posted.count),
            (None, Some((send, peer, number))) => (true, number, calls::transfer(send, peer), 0),
            (None, None) => (false, endpoint.sequence, 0, 0),
        }
    }

    /// True if another thread, that of messages, has ended something of this since it was looked at last.
    pub(super) fn has_news(&self) -> bool {
        self.one_sided.iter().any(|(_, request)| request.is_over())
    }

    /// What is under way, in words.
    pub(crate) fn describe(&self, endpoint: &Endpoint) -> String {
        if let Some(op) = &self.collective {
            return format!("{} (collective #{})", describe(op.posted), op.sequence);
        }
        if let Some(text) = self.tagged.as_ref().and_then(|tagged| tagged.describe()) {
            return text;
        }
        if let Some(text) = self.one_sided.first().and_then(|(post, _)| post.describe()) {
            return text;
        }
        match self.transfer_waiting(endpoint) {
            Some((true, peer, number)) => format!("Send #{number} to rank {peer}"),
            Some((false, peer, number)) => format!("Recv #{number} from rank {peer}"),
            None => "an operation".to_string(),
        }
    }
}

/// One job on its way, in the hands of the calling thread.
struct Running<'a> {
    seat: &'a Seat,
    endpoint: MutexGuard<'a, Endpoint>,
    job: Job<'a>,
    work: Work,
    stall: Stall,
    outcome: Option<Result<()>>,
}

impl<'a> Running<'a> {
    fn of(seat: &'a Seat, endpoint: MutexGuard<'a, Endpoint>, job: Job<'a>) -> Self {
        Self { seat, endpoint, job, work: Work::default(), stall: Stall::default(), outcome: None }
    }

    /// True if something moved.
    fn poll(&mut self) -> bool {
        match self.work.poll(&self.job, &mut self.endpoint) {
            Ok(Poll::Blocked) => return false,
            Ok(Poll::Advanced) => {}
            Ok(Poll::Done) => self.outcome = Some(Ok(())),
            Err(error) => self.fail(error),
        }
        self.stall.end(self.seat);
        true
    }

    fn fail(&mut self, error: Error) {
        self.outcome = Some(Err(fail(self.seat, &mut self.endpoint, error)));
    }

    /// Has the bell rung by connections, too.
    fn ring_when_ready(&mut self) {
        let armed = self.endpoint.fabric.as_ref().map_or(Ok(()), Fabric::ring_when_ready);
        if let Err(error) = armed {
            self.fail(error);
        }
    }

    /// True if that ended it.
    fn examine(&mut self) -> bool {
        if let Err(error) = self.stall.examine(self.seat, &mut self.endpoint, &self.work) {
            self.fail(error);
            self.stall.end(self.seat);
        }
        self.outcome.is_some()
    }
}

/// Carries out one call of one rank. The way of most calls: nothing is allocated, and the kernel is not asked.
pub fn run_call(seat: &Seat, call: &Call) -> Result<()> {
    let mut endpoint = seat.take_turn();
    let outcome = if let Some(exchange) = Exchange::post(call, &mut endpoint) {
        run_op(seat, endpoint, exchange)
    } else {
        match CollectiveOp::begin(call, &mut endpoint) {
            Ok(op) => run_op(seat, endpoint, op),
            Err(error) => Err(fail(seat, &mut endpoint, error)),
        }
    };
    if seat.has_queued() {
        super::stream::wake();
    }
    outcome
}

/// Records a failure, and takes the links down: the caller gets its buffers back.
pub(super) fn fail(seat: &Seat, endpoint: &mut Endpoint, error: Error) -> Error {
    let aborted = seat.check_abort().is_err();
    let error = seat.fail(error);
    if aborted {
        // Peers hear that this rank has aborted, which is all that concerns them.
        endpoint.close();
    } else {
        endpoint.close_failed(&error);
    }
    error
}

/// Polls an operation until it is time to sleep, then hands it to the loop that knows all kinds of waits.
#[inline]
fn run_op(seat: &Seat, mut endpoint: MutexGuard<'_, Endpoint>, mut op: impl Operation) -> Result<()> {
    let mut backoff = seat.backoff();
    loop {
        match op.poll(&mut endpoint) {
            Ok(Poll::Done) => break,
            Ok(Poll::Advanced) => backoff.reset(),
            Ok(Poll::Blocked) => {
                let crowded = seat.holds_core_of(op.waits_for_first());
                let pause = if crowded { backoff.give_way() } else { backoff.pause() };
                if pause == Pause::Sleep {
                    let work = Work::of(op.into_op(endpoint.ranks));
                    let running = Running { work, ..Running::of(seat, endpoint, Job::default()) };
                    return drive(&mut [running], backoff);
                }
            }
            Err(error) => return Err(fail(seat, &mut endpoint, error)),
        }
    }
    backoff.reset();
    seat.learn(&backoff);
    Ok(())
}

/// Carries out one job for each seat, all at once, and returns when all have ended. The first failure is returned.
/// Seats must be different, and in the same order in every thread that runs several: see [`super::Seat`].
pub fn run(jobs: &[(&Seat, Job<'_>)]) -> Result<()> {
    let outcome = match jobs {
        [] => Ok(()),
        [(seat, job)] => drive(&mut [Running::of(seat, seat.take_turn(), *job)], seat.backoff()),
        [(first, _), ..] => drive(&mut all_turns(jobs), first.backoff()),
    };
    if jobs.iter().any(|(seat, _)| seat.has_queued()) {
        super::stream::wake();
    }
    outcome
}

/// Takes the turns of several seats: all of them, or none while it waits.
fn all_turns<'a>(jobs: &[(&'a Seat, Job<'a>)]) -> Vec<Running<'a>> {
    loop {
        jobs.iter().for_each(|(seat, _)| seat.wait_queued());
        let running = jobs.iter().map(|(seat, job)| Running::of(seat, seat.endpoint.lock(), *job)).collect();
        if !jobs.iter().any(|(seat, _)| seat.has_queued()) {
            return running;
        }
        drop(running);
        // As in `Seat::take_turn`.
        super::stream::wake();
    }
}

fn drive(running: &mut [Running<'_>], mut backoff: Backoff) -> Result<()> {
    while running.iter().any(|one| one.outcome.is_none()) {
        if poll_all(running) {
            backoff.reset();
        } else if backoff.pause() == Pause::Sleep {
            sleep(running);
        }
    }
    if let Some(first) = running.first() {
        first.seat.learn(&backoff);
    }
    running.iter_mut().try_for_each(|one| one.outcome.take().unwrap_or(Ok(())))
}

fn poll_all(running: &mut [Running<'_>]) -> bool {
    let mut moved = false;
    for one in running.iter_mut().filter(|one| one.outcome.is_none()) {
        moved |= one.poll();
    }
    moved
}

/// Looks for reasons to give up; if there are none, sleeps until a bell rings or it is time to look again.
fn sleep(running: &mut [Running<'_>]) {
    for one in running.iter_mut().filter(|one| one.outcome.is_none()) {
        if one.examine() {
            return;
        }
    }
    let waiting: Vec<_> = running
        .iter()
        .filter(|one| one.outcome.is_none())
        .filter_map(|one| one.seat.arena.as_ref().map(|arena| &arena.block(one.seat.rank).bell))
        .map(|bell| (bell, bell.arm()))
        .collect();
    for one in running.iter_mut().filter(|one| one.outcome.is_none()) {
        one.ring_when_ready();
    }
    // The last look: whoever made something visible before the bells were armed did not ring.
    if !poll_all(running) {
        let words: Vec<_> = waiting.iter().map(|(bell, rings)| (bell.word(), *rings)).collect();
        futex::wait_any(&words, LOOK_AROUND);
    }
    for (bell, _) in waiting {
        bell.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::algo::Facts;
    use crate::config::{Settings, Source};
    use crate::device::UserPointer;
    use crate::engine::{Limits, Peer};
    use crate::memory::Scratch;
    use crate::sync::wait::Patience;
    use crate::telemetry::Recorder;
    use crate::transport::shm::{Lane, Reach, RingReceiver};
    use crate::transport::{Receiver, mem};
    use std::time::Duration;

    #[test]
    fn who_gets_a_buffer_back_after_a_failure_lends_it_no_more() {
        let arena = mem::arena(2).unwrap();
        let reach = [Reach::SameProcess; 2];
        let (fabric, peers_fabric) =
            (Fabric::new(&arena, 0, &reach, None), Fabric::new(&arena, 1, &reach, None));
        let settings = Settings::from_source(&Source::of_pairs(&[])).unwrap();
        let endpoint = Endpoint::new(
            0,
            2,
            Some(fabric),
            Facts::for_tests(&settings),
            1 << 18,
            Recorder::without_file().unwrap().into(),
        );
        let patience = Patience::for_ranks(2, 1);
        let limits = Limits { timeout: Some(Duration::from_millis(50)), warn_after: None, patience };
        let peer = |_| Peer { pid: 1, name: "process 1".to_string(), watch: None, speaker: 0 };
        let peers = (0..2).map(peer).collect();
        let seat = Seat::new(0, endpoint, Some(arena.clone()), peers, limits);

        let bytes = 1 << 20;
        let mut memory = Scratch::default();
        let transfers = [Transfer { send: true, peer: 1, buffer: memory.ensure(bytes).unwrap(), bytes }];
        let error = run(&[(&seat, Job { transfers: &transfers, ..Job::default() })]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);

        let mut receiver = RingReceiver::new(arena, 0, 1, Lane::PointToPoint, Reach::SameProcess);
        assert_eq!(receiver.head().unwrap().map(|head| head.bytes), Some(bytes));
        assert_eq!(receiver.view(64, UserPointer::null()).unwrap_err().kind(), ErrorKind::Remote);
        drop(peers_fabric);
    }
}
