//! How to wait: spin while a peer is likely to answer at once, give way where cores are scarce, then sleep.

use super::prim::spin_hint;
use crate::os::{clock, cpu};
use std::time::{Duration, Instant};

/// Whoever gives way and is away for so long each time has given its core to a program that computes, until the kernel's next tick. One that
/// sleeps instead is put before that program when it is woken.
const ABSENCE: Duration = Duration::from_micros(1500);
/// For how many waits that is remembered, the first time, and when it happens again and again.
const CAUTION: Bounds = Bounds { least: 64, most: 4096 };
/// One of so many waits is timed as long as nothing of that kind happens.
const SAMPLE: u8 = 8;

/// What the waiter should do before it looks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Just look again.
    Look,
    /// Arm the bells, look once more, and sleep if that look finds nothing.
    Sleep,
}

/// How long to spin and to give way before sleeping.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    spins: Bounds,
    yields: Bounds,
    crowded: bool,
    absence: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: u16,
    most: u16,
}

impl Bounds {
    fn learn(self, count: u16, paid: bool) -> u16 {
        (if paid { count.saturating_mul(2) } else { count / 2 }).clamp(self.least, self.most)
    }
}

impl Patience {
    /// For `waiters` ranks that share `cores`: where every rank has a core of its own, an answer is a few
    /// hundred nanoseconds away and spinning is right; elsewhere the peer needs the core that we hold.
    pub fn for_ranks(waiters: usize, cores: usize) -> Self {
        if waiters <= cores {
            let (spins, yields) = (Bounds { least: 50, most: 4_000 }, Bounds { least: 20, most: 20 });
            Self { spins, yields, crowded: false, absence: ABSENCE }
        } else {
            // Sleepers are woken on the core of whoever wakes them, so that in the end all ranks are on one.
            let (spins, yields) = (Bounds { least: 4, most: 40 }, Bounds { least: 200, most: 6_000 });
            Self { spins, yields, crowded: true, absence: ABSENCE }
        }
    }

    /// The same where peers answer through a device that others drive: an answer takes longer than from memory, and being woken takes longer
    /// still, so that looking pays even where the first looks find nothing.
    pub fn for_devices(self) -> Self {
        if self.crowded { self } else { Self { spins: Bounds { least: 2_000, most: 8_000 }, ..self } }
    }

    /// For a thread beside the program's own: the cores are the program's.
    pub fn for_helper() -> Self {
        let (spins, yields) = (Bounds { least: 4, most: 40 }, Bounds { least: 200, most: 200 });
        Self { spins, yields, crowded: true, absence: ABSENCE }
    }

    /// True where there are more waiters than cores: then it matters on which core a peer is.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// What is assumed before anything is learned.
    pub fn habit(&self) -> Habit {
        Habit { spins: self.spins.most, yields: self.yields.most, cautious: 0, caution: 0, waits: 0 }
    }
}

/// What earlier waits have taught: how often to spin, and then to give way, before sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habit {
    spins: u16,
    yields: u16,
    /// So many more waits do not give way, but sleep.
    cautious: u16,
    /// How many it was the last time; halved by each wait that gives way and is not away for long.
    caution: u16,
    /// Waits that gave way.
    waits: u8,
}

impl Habit {
    /// All numbers in one word: none of the others has more than 14 bits.
    pub fn to_word(self) -> u64 {
        let parts = [self.caution, self.cautious, self.yields, self.spins];
        parts.iter().fold(u64::from(self.waits), |word, part| word << 14 | u64::from(*part))
    }

    /// The habit that a word stands for.
    pub fn from_word(word: u64) -> Self {
        let part = |place: u32| (word >> (14 * place)) as u16 & ((1 << 14) - 1);
        let waits = (word >> 56) as u8;
        Self { spins: part(0), yields: part(1), cautious: part(2), caution: part(3), waits }
    }

    /// True if it is to be found out how long a wait is away that gives way now.
    fn is_timed(self) -> bool {
        self.caution > 0 || self.waits.is_multiple_of(SAMPLE)
    }
}

/// The state of one wait, and what has been learned from earlier ones: a core of one's own may be shared with
/// another program, and then spinning keeps the peer from running. Answers that come while spinning say that it
/// pays, answers that come only after giving way say that it does not; and in the same way for giving way and sleeping.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    habit: Habit,
    looks: u32,
    /// When it gave way first and how often it has since, until it slept; and whether that took too long.
    giving_way: Option<(Instant, u32)>,
    was_away: bool,
}

impl Backoff {
    /// A wait that begins now, with what the one before has learned.
    pub fn new(patience: Patience, habit: Habit) -> Self {
        Self { patience, habit, looks: 0, giving_way: None, was_away: false }
    }

    /// Something moved: learns from the wait, and starts over.
    #[inline]
    pub fn reset(&mut self) {
        if self.looks > 0 {
            let spun = self.looks <= u32::from(self.habit.spins);
            if !spun {
                self.learn_to_give_way();
            }
            self.habit.spins = self.patience.spins.learn(self.habit.spins, spun);
            self.looks = 0;
        }
    }

    fn learn_to_give_way(&mut self) {
        self.take_back();
        let habit = &mut self.habit;
        if self.was_away {
            habit.caution = CAUTION.learn(habit.caution, true);
            habit.cautious = habit.caution;
        } else if habit.cautious > 0 {
            habit.cautious -= 1;
        } else {
            let looks = u32::from(habit.spins) + u32::from(habit.yields);
            habit.yields = self.patience.yields.learn(habit.yields, self.looks < looks);
            habit.caution /= 2;
            habit.waits = habit.waits.wrapping_add(1);
        }
        self.was_away = false;
    }

    /// Does not give way any more: how long was it away?
    fn take_back(&mut self) {
        if let Some((begin, times)) = self.giving_way.take() {
            self.was_away |= clock::now() - begin > self.patience.absence.saturating_mul(times);
        }
    }

    /// What has been learned.
    pub fn habit(&self) -> Habit {
        self.habit
    }

    /// Nothing moved, and the peer that is waited for needs this very core: gives way at once, or says that it is time
    /// to sleep.
    pub fn give_way(&mut self) -> Pause {
        self.looks = self.looks.max(u32::from(self.habit.spins));
        self.pause()
    }

    /// Nothing moved: spins or gives way once, or says that it is time to sleep.
    pub fn pause(&mut self) -> Pause {
        let spins = u32::from(self.habit.spins);
        if self.looks < spins {
            spin_hint();
        } else if self.gives_way(self.looks - spins) {
            if let Some((_, times)) = &mut self.giving_way {
                *times += 1;
            } else if self.looks == spins && self.habit.is_timed() {
                self.giving_way = Some((clock::now(), 1));
            }
            cpu::yield_now();
        } else {
            self.take_back();
            // Such a wait did not end while it spun.
            self.looks = self.looks.max(spins + 1);
            return Pause::Sleep;
        }
        self.looks += 1;
        Pause::Look
    }

    /// True if a wait that has given way so many times should do so again.
    fn gives_way(&self, times: u32) -> bool {
        self.habit.cautious == 0 && times < u32::from(self.habit.yields)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn wait(backoff: &mut Backoff, looks: u32) {
        for _ in 0..looks {
            let _ = backoff.pause();
        }
        backoff.reset();
    }

    /// On a busy machine, giving way may take long.
    fn undisturbed(patience: Patience) -> Patience {
        Patience { absence: Duration::MAX, ..patience }
    }

    #[test]
    fn spinning_that_does_not_pay_becomes_short_and_recovers() {
        let patience = undisturbed(Patience::for_ranks(2, 2));
        let mut backoff = Backoff::new(patience, patience.habit());
        assert_eq!(backoff.habit().spins, 4000);
        for _ in 0..10 {
            wait(&mut backoff, 5000);
        }
        assert_eq!(backoff.habit().spins, 50);
        wait(&mut backoff, 0);
        assert_eq!(backoff.habit().spins, 50);
        for _ in 0..10 {
            wait(&mut backoff, 3);
        }
        assert_eq!(backoff.habit().spins, 4000);
    }

    #[test]
    fn giving_way_that_ends_in_sleep_becomes_short_and_recovers() {
        let patience = undisturbed(Patience::for_ranks(4, 2));
        let mut backoff = Backoff::new(patience, Habit::from_word(patience.habit().to_word()));
        assert_eq!((backoff.habit().spins, backoff.habit().yields), (40, 6_000));
        for _ in 0..10 {
            wait(&mut backoff, 10_000);
        }
        assert_eq!((backoff.habit().spins, backoff.habit().yields), (4, 200));
        for _ in 0..10 {
            wait(&mut backoff, 30);
        }
        assert_eq!((backoff.habit().spins, backoff.habit().yields), (4, 6_000));
    }

    #[test]
    fn who_gives_way_to_a_program_that_computes_sleeps_for_a_while_instead() {
        // However short it is.
        let patience = Patience { absence: Duration::ZERO, ..Patience::for_ranks(4, 2) };
        let mut backoff = Backoff::new(patience, patience.habit());
        assert_eq!(Habit::from_word(backoff.habit().to_word()), backoff.habit());
        let mut waits_without = || {
            for waits in 0.. {
                let spins = backoff.habit().spins;
                (0..spins).for_each(|_| assert_eq!(backoff.pause(), Pause::Look));
                let gave_way = backoff.pause() == Pause::Look;
                backoff.reset();
                if gave_way {
                    return waits;
                }
            }
            unreachable!()
        };
        // It is tried again, each time after longer.
        assert_eq!([waits_without(), waits_without(), waits_without()], [0, 64, 128]);
    }
}
