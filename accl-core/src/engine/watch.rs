//! What a wait notices that lasts: an abort, a failure elsewhere, a dead peer, a time limit.

use super::blame::{self, Verdict};
use super::drive::Work;
use super::endpoint::Endpoint;
use super::explain;
use super::seat::Seat;
use crate::error::{Error, ErrorKind, Result};
use crate::os::clock;
use crate::os::process::{self, Fate};
use crate::telemetry::Waiting as Recorded;
use crate::transport::shm::{Arena, RankState, Waiting, Word};
use crate::transport::tcp;
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
    /// Other hosts have been asked what their ranks wait for.
    asked: Option<Asked>,
    /// A failure that the next look must confirm: data that came before it takes precedence.
    suspect: Option<Error>,
}

/// What a rank has asked other hosts, and when in its wait.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The first question's number: what was heard before that is no answer.
    question: u64,
    first_at: Duration,
    last_at: Duration,
}

/// How long before its limit a rank begins to ask, so that it can judge when that comes: half of the limit, and so long at most.
const MOST_NOTICE: Duration = Duration::from_secs(1);

impl Stall {
    /// Something moved.
    pub(crate) fn end(&mut self, seat: &Seat) {
        if self.since.is_none() {
            return;
        }
        seat.recorder.end_wait();
        self.untell(seat);
        *self = Self::default();
    }

    /// Something moved, but maybe not what a failure is suspected of.
    pub(crate) fn moved(&mut self, seat: &Seat) {
        let suspect = self.suspect.take();
        self.end(seat);
        self.suspect = suspect;
    }

    /// Peers are to know of no wait any more.
    fn untell(&mut self, seat: &Seat) {
        if let (true, Some(arena)) = (self.told, &seat.arena) {
            arena.block(seat.rank).set_waiting(Waiting::No);
            arena.block(seat.rank).set_needs(&[]);
        }
        self.told = false;
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
        let waited = now - since;
        self.tell(seat, endpoint, work, &missing, waited);
        match lost_peer(seat, work, endpoint, &missing, waited) {
            Some(error) if suspected => return Err(error),
            lost => self.suspect = lost,
        }
        self.record(seat, endpoint, work, &missing, waited);
        self.ask(seat, waited);
        self.judge(seat, endpoint, work, &missing, waited)
    }

    /// Has other hosts asked what their ranks wait for, again and again, from shortly before a limit until that has passed.
    fn ask(&mut self, seat: &Seat, waited: Duration) {
        let limits = [seat.timeout(), seat.warn_after().filter(|_| !self.warned)];
        let is_near = limits.into_iter().flatten().any(|limit| waited + notice(limit) >= limit);
        if !is_near {
            // What was answered before is no answer to what is asked next.
            self.asked = None;
            return;
        }
        let is_alone = |arena: &Arena| arena.members().local() == arena.members().ranks();
        let Some(arena) = seat.arena.as_ref().filter(|arena| !is_alone(arena)) else { return };
        if self.asked.is_some_and(|asked| waited < asked.last_at + LOOK_AROUND) {
            return;
        }
        let question = arena.ask();
        self.asked = Some(match self.asked {
            Some(asked) => Asked { last_at: waited, ..asked },
            None => Asked { question, first_at: waited, last_at: waited },
        });
        tcp::wake::tell(arena);
    }

    /// An error once the wait has lasted too long; a warning once it has lasted for long.
    fn judge(
        &mut self,
        seat: &Seat,
        endpoint: &Endpoint,
        work: &Work,
        missing: &[Rank],
        waited: Duration,
    ) -> Result<()> {
        let question = self.asked.map(|asked| asked.question);
        // Who has not answered by now may be about to, if there was little time.
        let asked_at = self.asked.map(|asked| asked.first_at);
        let in_time = |limit: Duration| asked_at.is_none_or(|asked| waited >= asked + notice(limit));
        let sequence = work.sequence(endpoint);
        if let Some(limit) = seat.timeout().filter(|limit| waited >= *limit) {
            let verdict = verdict(seat, missing, question);
            if verdict.is_certain() || in_time(limit) {
                let text = format!(
                    "{} stood still for {:.1} s (the limit is {:.1} s: ACCL_TIMEOUT, or what a call has set): {}",
                    work.describe(endpoint),
                    waited.as_secs_f64(),
                    limit.as_secs_f64(),
                    explain::verdict(seat, endpoint, sequence, &verdict, question)
                );
                // What has just ended is not late, and its own outcome says more.
                return if work.has_news() { Ok(()) } else { Err(Error::new(ErrorKind::Timeout, text)) };
            }
        }
        if let Some(limit) = seat.warn_after().filter(|limit| !self.warned && waited >= *limit) {
            let verdict = verdict(seat, missing, question);
            if verdict.is_certain() || in_time(limit) {
                self.warned = true;
                crate::telemetry::warn(&format!(
                    "rank {}: {} has waited {:.1} s for {}: {}",
                    seat.rank,
                    work.describe(endpoint),
                    limit.as_secs_f64(),
                    named_ranks(missing),
                    explain::verdict(seat, endpoint, sequence, &verdict, question)
                ));
            }
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
        let question = self.asked.map(|asked| asked.question);
        let text = due.then(|| {
            let verdict = verdict(seat, missing, question);
            explain::verdict(seat, endpoint, work.sequence(endpoint), &verdict, question)
        });
        if due {
            self.recorded = Some(waited);
        }
        let (transfer, number, what, count) = work.recorded(endpoint);
        let text = text.as_deref();
        let since_ns = self.since_ns;
        seat.recorder.wait(&Recorded { since_ns, transfer, number, what, count, missing, text });
    }

    /// Leaves word for peers that want to know why they wait; for whom this rank does, once it lasts.
    fn tell(&mut self, seat: &Seat, endpoint: &Endpoint, work: &Work, missing: &[Rank], waited: Duration) {
        let Some(arena) = &seat.arena else { return };
        if work.in_background {
            // Whoever does other things meanwhile keeps nobody waiting by this.
            self.untell(seat);
            return;
        }
        let waiting = match work.transfer_waiting(endpoint) {
            Some((true, peer, number)) => Waiting::Send(peer, number),
            Some((false, peer, number)) => Waiting::Recv(peer, number),
            None => Waiting::Collective(work.sequence(endpoint), missing.first().copied()),
        };
        let block = arena.block(seat.rank);
        block.set_waiting(waiting);
        if waited >= LOOK_AROUND {
            block.set_needs(missing);
        }
        self.told = true;
    }
}

/// How long before a limit a rank asks whom the others wait for.
fn notice(limit: Duration) -> Duration {
    (limit / 2).min(MOST_NOTICE)
}

/// Who keeps this rank waiting, by what the ranks of this host say, and those of others have answered to `question`.
fn verdict(seat: &Seat, missing: &[Rank], question: Option<u64>) -> Verdict {
    let Some(arena) = &seat.arena else { return Verdict::Late(Vec::new()) };
    let known = |rank: Rank| {
        if arena.state_of(rank).is_gone() {
            return Word::Free;
        }
        if !arena.members().has(rank) {
            return question.map_or(Word::Unheard, |question| arena.heard_of(rank, question));
        }
        // Who was stopped may have been stopped while it waited.
        if process::is_stopped(seat.peers[rank].pid) { Word::Stopped } else { arena.block(rank).word() }
    };
    let own = (seat.rank, arena.block(seat.rank).waiting());
    blame::judge(own, missing, arena.members().ranks(), known)
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
