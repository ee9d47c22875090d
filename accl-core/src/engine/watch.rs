//! What a wait notices that lasts: an abort, a failure elsewhere, a dead peer, a time limit.

use super::drive::Work;
use super::endpoint::Endpoint;
use super::explain;
use super::seat::Seat;
use crate::error::{Error, ErrorKind, Result};
use crate::os::clock;
use crate::os::process::{self, Fate};
use crate::telemetry::Waiting as Recorded;
use crate::transport::shm::{RankState, Waiting};
use crate::types::{Rank, named_ranks};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How often a sleeping waiter looks around.
pub(super) const LOOK_AROUND: Duration = Duration::from_millis(100);

/// One task's standstill. Lasts while nothing moves.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    since: Option<Instant>,
    /// The same for people, on another clock: nanoseconds since 1970.
    since_ns: u64,
    /// How long it had lasted when the recorder was told what was exchanged, and when it was told why.
    traffic_at: Option<Duration>,
    recorded: Option<Duration>,
    warned: bool,
    told: bool,
    /// A failure that the next look must confirm: data that came before it takes precedence.
    suspect: Option<Error>,
}

/// A rank that waits for others that wait lets those speak first who know more; for so long at most.
const MOST_DEFERENCE: Duration = Duration::from_secs(5);

impl Stall {
    /// Something moved.
    pub(crate) fn end(&mut self, seat: &Seat) {
        if self.since.is_none() {
            return;
        }
        seat.recorder.end_wait();
        if let (true, Some(arena)) = (self.told, &seat.arena) {
            arena.block(seat.rank).set_waiting(Waiting::No);
        }
        *self = Self::default();
    }

    /// Looks for reasons to give up. Called when nothing has moved for a while, before every sleep.
    pub(crate) fn examine(&mut self, seat: &Seat, endpoint: &mut Endpoint, work: &Work) -> Result<()> {
        seat.check_abort()?;
        let suspected = self.suspect.take().is_some();
        if let Some(error) = seat.error() {
            if suspected {
                return Err(error);
            }
            self.suspect = Some(error);
            return Ok(());
        }
        let now = clock::now();
        let since = *self.since.get_or_insert(now);
        if since == now {
            self.since_ns = clock::wall_ns();
        }
        let mut missing = Vec::new();
        work.waits_for(endpoint, &mut missing);
        missing.sort_unstable();
        missing.dedup();
        self.tell(seat, endpoint, work, missing.first().copied());
        let waited = now - since;
        match lost_peer(seat, work, endpoint, &missing, waited) {
            Some(error) if suspected => return Err(error),
            lost => self.suspect = lost,
        }
        self.record(seat, endpoint, work, &missing, waited);
        let passed =
            |limit: &Duration| waited >= *limit && waited >= *limit + deference(seat, &missing, *limit);
        if let Some(limit) = seat.timeout().filter(passed) {
            let text = format!(
                "{} stood still for {:.1} s (the limit is {:.1} s: ACCL_TIMEOUT, or what a call has set): {}",
                work.describe(endpoint),
                waited.as_secs_f64(),
                limit.as_secs_f64(),
                reasons(seat, endpoint, work.sequence(endpoint), &missing)
            );
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        if let Some(limit) = seat.warn_after().filter(|limit| !self.warned && waited >= *limit) {
            self.warned = true;
            crate::telemetry::warn(&format!(
                "rank {}: {} has waited {:.1} s for {}: {}",
                seat.rank,
                work.describe(endpoint),
                limit.as_secs_f64(),
                named_ranks(&missing),
                reasons(seat, endpoint, work.sequence(endpoint), &missing)
            ));
        }
        Ok(())
    }

    /// Leaves word for readers of the flight recorder; in words once the wait lasts, and anew each second.
    fn record(&mut self, seat: &Seat, endpoint: &Endpoint, work: &Work, missing: &[Rank], waited: Duration) {
        if self.traffic_at.is_none_or(|before| waited - before >= LOOK_AROUND)
            && let Some(fabric) = &endpoint.fabric
        {
            self.traffic_at = Some(waited);
            seat.recorder.traffic(fabric.traffic());
        }
        let lasts = waited >= LOOK_AROUND;
        let due = lasts && self.recorded.is_none_or(|before| waited - before >= Duration::from_secs(1));
        let text = due.then(|| reasons(seat, endpoint, work.sequence(endpoint), missing));
        if due {
            self.recorded = Some(waited);
        }
        let (transfer, number, what, count) = work.recorded(endpoint);
        let text = text.as_deref();
        let since_ns = self.since_ns;
        seat.recorder.wait(&Recorded { since_ns, transfer, number, what, count, missing, text });
    }

    /// Leaves word for peers that want to explain their own waits.
    fn tell(&mut self, seat: &Seat, endpoint: &Endpoint, work: &Work, needs: Option<Rank>) {
        let Some(arena) = &seat.arena else { return };
        let waiting = match work.transfer_waiting(endpoint) {
            Some((true, peer, number)) => Waiting::Send(peer, number),
            Some((false, peer, number)) => Waiting::Recv(peer, number),
            None => Waiting::Collective(work.sequence(endpoint), needs),
        };
        arena.block(seat.rank).set_waiting(waiting);
        self.told = true;
    }
}

/// How much longer than its limit a rank waits. Between hosts it may not see that those it waits for wait themselves: whoever waits for a
/// rank that does not should speak first, since the first failure is everybody's, and names it.
fn deference(seat: &Seat, missing: &[Rank], limit: Duration) -> Duration {
    let Some(arena) = seat.arena.as_ref() else { return Duration::ZERO };
    let members = arena.members();
    // A stopped rank may have been stopped while it waited.
    let idle =
        |rank: Rank| arena.block(rank).waiting() == Waiting::No || process::is_stopped(seat.peers[rank].pid);
    let culprit = |rank: &Rank| members.has(*rank) && idle(*rank);
    if members.local() == members.ranks() || missing.iter().any(culprit) {
        return Duration::ZERO;
    }
    (limit / 4).min(MOST_DEFERENCE)
}

fn reasons(seat: &Seat, endpoint: &Endpoint, sequence: u64, missing: &[Rank]) -> String {
    let cycle = seat.arena.as_ref().and_then(|arena| explain::chain(arena, seat.rank));
    cycle.unwrap_or_else(|| explain::missing(seat, endpoint, sequence, missing))
}

/// The error for a peer that this rank needs and that will never come.
fn lost_peer(
    seat: &Seat,
    work: &Work,
    endpoint: &Endpoint,
    missing: &[Rank],
    waited: Duration,
) -> Option<Error> {
    let arena = seat.arena.as_ref()?;
    let lost = |peer: Rank, how: &dyn Display| {
        let latest = endpoint.fabric.as_ref().filter(|_| arena.members().has(peer));
        let latest = latest.map_or(String::new(), |fabric| {
            format!("; its last collective was #{}", fabric.board.latest(peer))
        });
        Some(Error::remote(format!(
            "rank {peer} ({}) {how} while {} needed it{latest}; see that process's own output, then shrink or abort this communicator",
            seat.peers[peer].name,
            work.describe(endpoint),
        )))
    };
    for peer in missing.iter().copied() {
        // What a rank has sent before it left is not lost on a slow way from host to host.
        let hears = || {
            let fabric = endpoint.fabric.as_ref();
            fabric.is_some_and(|fabric| work.lanes().into_iter().any(|kind| fabric.hears(peer, kind)))
        };
        match arena.state_of(peer) {
            RankState::Aborted => return lost(peer, &"aborted the communicator"),
            RankState::Left if !hears() => return lost(peer, &"destroyed its communicator"),
            RankState::Left | RankState::Absent | RankState::Present => {}
        }
        let Some(watch) = &seat.peers[peer].watch else { continue };
        // Short waits ask for nothing but the death, which is the cheaper question.
        let ended = || watch.has_ended().then_some(Fate::Ended);
        if let Some(fate) = if waited < LOOK_AROUND { ended() } else { watch.fate() } {
            return lost(peer, &fate);
        }
    }
    None
}
