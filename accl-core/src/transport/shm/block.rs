//! What a rank says of itself, in memory that others read: its state, what it waits for and for whom, how far it is.
//!
//! ```text
//! block:  bell 128 B | status 128 B: state u32 | core u32 | probe u64 | wait 88 B | progress 128 B
//! wait:   kind u32 (0 none, 1 collective, 2 send, 3 receive) | count u32 | peer u64 | number u64 | needs 16 × u32
//! heard (of a rank of another host):  stamp u64 | standing u32 (0 free, 1 stopped, 2 waits) | zero u32 | wait 88 B
//! ```

use crate::sync::bell::Bell;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::types::Rank;

/// What a rank says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RankState {
    /// It has not mapped the arena yet.
    Absent = 0,
    /// It takes part.
    Present = 1,
    /// It has left in good order.
    Left = 2,
    /// It has aborted the communicator.
    Aborted = 3,
}

impl RankState {
    /// True if the rank takes no part any more, and has said so.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Left | Self::Aborted)
    }

    pub(in crate::transport) fn of(code: u32) -> Self {
        match code {
            0 => Self::Absent,
            1 => Self::Present,
            2 => Self::Left,
            _ => Self::Aborted,
        }
    }
}

/// What a rank waits for, for explanations: the operation's sequence number and the rank it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Nothing.
    No,
    /// A collective operation of this sequence number, and the first rank that it needs, if it is known.
    Collective(u64, Option<Rank>),
    /// A message to this rank, the so-manieth.
    Send(Rank, u64),
    /// A message from this rank, the so-manieth.
    Recv(Rank, u64),
}

/// What is known of a rank that others may be waiting for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// Nothing was heard of it.
    Unheard,
    /// It waits for nobody: it makes no call, or works.
    Free,
    /// Its process is stopped, whatever it waited for before.
    Stopped,
    /// It waits, in what, and for whom: at most [`MOST_NEEDS`] ranks, none if that is not known.
    Waits(Waiting, Vec<Rank>),
}

/// How many of the ranks that a rank waits for it names.
pub const MOST_NEEDS: usize = 16;
const NOBODY: Rank = Rank::MAX;

/// One rank's words: bell (its peers write) | state and what it waits for (it writes) | progress (it writes).
#[derive(Debug)]
#[repr(C, align(128))]
pub struct RankBlock {
    /// Rung by peers whenever they have made something visible to this rank.
    pub bell: Bell,
    status: Status,
    progress: Progress,
}

/// How far a rank is in an operation whose memory is read in place: the operation's number and what it has told.
#[derive(Debug)]
#[repr(C, align(128))]
struct Progress(AtomicU64);

#[derive(Debug)]
#[repr(C, align(128))]
struct Status {
    state: AtomicU32,
    /// One more than the number of the core that the rank last waited on; 0 for unknown.
    core: AtomicU32,
    probe: AtomicU64,
    wait: Wait,
}

/// A wait. May be torn while it changes, so it serves explanations only.
#[derive(Debug)]
#[repr(C)]
struct Wait {
    kind: AtomicU32,
    /// How many of `needs` are set; none before a wait has lasted.
    count: AtomicU32,
    peer: AtomicU64,
    number: AtomicU64,
    needs: [AtomicU32; MOST_NEEDS],
}

impl Wait {
    fn get(&self) -> Waiting {
        let number = self.number.load(Ordering::Relaxed);
        let peer = self.peer.load(Ordering::Relaxed) as Rank;
        // Acquire: pairs with `set`.
        match self.kind.load(Ordering::Acquire) {
            1 => Waiting::Collective(number, Some(peer).filter(|peer| *peer != NOBODY)),
            2 => Waiting::Send(peer, number),
            3 => Waiting::Recv(peer, number),
            _ => Waiting::No,
        }
    }

    fn set(&self, waiting: Waiting) {
        let (kind, peer, number) = match waiting {
            Waiting::No => (0, 0, 0),
            Waiting::Collective(number, peer) => (1, peer.unwrap_or(NOBODY), number),
            Waiting::Send(peer, number) => (2, peer, number),
            Waiting::Recv(peer, number) => (3, peer, number),
        };
        self.peer.store(peer as u64, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.kind.store(kind, Ordering::Release);
    }

    fn set_needs(&self, needs: &[Rank]) {
        for (place, need) in self.needs.iter().zip(needs) {
            place.store(*need as u32, Ordering::Relaxed);
        }
        // Release: pairs with `word`.
        self.count.store(needs.len().min(MOST_NEEDS) as u32, Ordering::Release);
    }

    /// With the one rank that the wait itself names, where no more are known.
    fn word(&self) -> Word {
        let waiting = self.get();
        let first = match waiting {
            Waiting::No => return Word::Free,
            Waiting::Collective(_, first) => first,
            Waiting::Send(peer, _) | Waiting::Recv(peer, _) => Some(peer),
        };
        let count = (self.count.load(Ordering::Acquire) as usize).min(MOST_NEEDS);
        let needs = self.needs[..count].iter().map(|need| need.load(Ordering::Relaxed) as Rank);
        Word::Waits(waiting, if count == 0 { first.into_iter().collect() } else { needs.collect() })
    }
}

impl RankBlock {
    /// What the rank says of itself.
    pub fn state(&self) -> RankState {
        RankState::of(self.status.state.load(Ordering::Acquire))
    }

    /// Says so. Release: pairs with [`RankBlock::state`].
    pub fn set_state(&self, state: RankState) {
        self.status.state.store(state as u32, Ordering::Release);
    }

    /// What the rank says that it waits for.
    pub fn waiting(&self) -> Waiting {
        self.status.wait.get()
    }

    /// Says what this rank is about to wait for.
    pub fn set_waiting(&self, waiting: Waiting) {
        self.status.wait.set(waiting);
    }

    /// Says for whom this rank waits; for waits that last. None again when it waits no more.
    pub fn set_needs(&self, needs: &[Rank]) {
        self.status.wait.set_needs(needs);
    }

    /// Both, for those who ask who keeps whom waiting.
    pub fn word(&self) -> Word {
        self.status.wait.word()
    }

    /// How far the rank is, as it has told. Acquire: what it did before it told so is seen with it.
    pub fn progress(&self) -> u64 {
        self.progress.0.load(Ordering::Acquire)
    }

    /// Tells how far this rank is: it never goes back. Release: pairs with [`RankBlock::progress`].
    pub fn set_progress(&self, progress: u64) {
        self.progress.0.store(progress, Ordering::Release);
    }

    /// The core that the rank last waited on, if it has said so.
    pub fn core(&self) -> Option<u32> {
        self.status.core.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Says on which core this rank waits.
    pub fn set_core(&self, core: u32) {
        let number = core.wrapping_add(1);
        if self.status.core.load(Ordering::Relaxed) != number {
            self.status.core.store(number, Ordering::Relaxed);
        }
    }

    /// A word that peers read across processes, to learn whether the kernel lets them.
    pub fn probe(&self) -> &AtomicU64 {
        &self.status.probe
    }
}

/// What another host has told of a rank of its, and when: as the number of the last question of this host.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Heard {
    stamp: AtomicU64,
    standing: AtomicU32,
    _unused: u32,
    wait: Wait,
}

impl Heard {
    /// What was told since question `since`, which is not 0.
    pub(super) fn since(&self, since: u64) -> Word {
        // Acquire: pairs with `set`.
        if self.stamp.load(Ordering::Acquire) < since {
            return Word::Unheard;
        }
        match self.standing.load(Ordering::Relaxed) {
            0 => Word::Free,
            1 => Word::Stopped,
            _ => self.wait.word(),
        }
    }

    /// For the one who carries what hosts tell.
    pub(super) fn set(&self, word: &Word, stamp: u64) {
        let (standing, waiting, needs): (_, _, &[Rank]) = match word {
            Word::Unheard => return,
            Word::Free => (0, Waiting::No, &[]),
            Word::Stopped => (1, Waiting::No, &[]),
            Word::Waits(waiting, needs) => (2, *waiting, needs),
        };
        self.standing.store(standing, Ordering::Relaxed);
        self.wait.set(waiting);
        self.wait.set_needs(needs);
        self.stamp.store(stamp, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mem;
    use crate::transport::shm::Members;

    #[test]
    fn a_wait_names_one_rank_and_more_once_it_lasts() {
        assert_eq!(size_of::<RankBlock>(), 384);
        let arena = mem::arena(3).unwrap();
        let block = arena.block(1);
        assert_eq!(block.word(), Word::Free);
        let waiting = Waiting::Collective(7, Some(2));
        block.set_waiting(waiting);
        assert_eq!(block.word(), Word::Waits(waiting, vec![2]));
        block.set_needs(&[2, 0]);
        assert_eq!(block.word(), Word::Waits(waiting, vec![2, 0]));
        block.set_needs(&(0..40).collect::<Vec<_>>());
        assert_eq!(block.word(), Word::Waits(waiting, (0..MOST_NEEDS).collect()));
        block.set_needs(&[]);
        block.set_waiting(Waiting::Collective(7, None));
        assert_eq!(block.word(), Word::Waits(Waiting::Collective(7, None), Vec::new()));
        block.set_waiting(Waiting::No);
        assert_eq!(block.word(), Word::Free);
    }

    #[test]
    fn what_was_heard_before_the_question_is_no_answer() {
        let arena = mem::arena(Members::of(3, |rank| rank == 0)).unwrap();
        let waits = Word::Waits(Waiting::Recv(1, 4), vec![1]);
        arena.set_heard(2, &waits);
        let question = arena.ask();
        assert_eq!((question, arena.asked()), (1, 1));
        assert_eq!(arena.heard_of(2, question), Word::Unheard);
        for word in [waits, Word::Stopped, Word::Free] {
            arena.set_heard(2, &word);
            assert_eq!(arena.heard_of(2, question), word);
            arena.set_heard(2, &Word::Unheard);
            assert_eq!(arena.heard_of(2, question), word);
        }
        assert_eq!(arena.heard_of(2, arena.ask()), Word::Unheard);
        assert_eq!(arena.heard_of(1, question), Word::Unheard);
    }
}
