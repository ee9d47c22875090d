//! How to wait: spin while a peer is likely to answer at once, give way where cores are scarce, then sleep.

use super::prim::spin_hint;
use crate::os::cpu;

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
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: u32,
    most: u32,
}

impl Bounds {
    fn learn(self, count: u32, paid: bool) -> u32 {
        (if paid { count * 2 } else { count / 2 }).clamp(self.least, self.most)
    }
}

impl Patience {
    /// For `waiters` ranks that share `cores`: where every rank has a core of its own, an answer is a few
    /// hundred nanoseconds away and spinning is right; elsewhere the peer needs the core that we hold.
    pub fn for_ranks(waiters: usize, cores: usize) -> Self {
        if waiters <= cores {
            let (spins, yields) = (Bounds { least: 50, most: 4_000 }, Bounds { least: 20, most: 20 });
            Self { spins, yields, crowded: false }
        } else {
            // Sleepers are woken on the core of whoever wakes them, so that in the end all ranks are on one.
            let (spins, yields) = (Bounds { least: 4, most: 40 }, Bounds { least: 200, most: 6_000 });
            Self { spins, yields, crowded: true }
        }
    }

    /// For a thread beside the program's own: the cores are the program's.
    pub fn for_helper() -> Self {
        let (spins, yields) = (Bounds { least: 4, most: 40 }, Bounds { least: 200, most: 200 });
        Self { spins, yields, crowded: true }
    }

    /// True where there are more waiters than cores: then it matters on which core a peer is.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// What is assumed before anything is learned.
    pub fn habit(&self) -> Habit {
        Habit { spins: self.spins.most, yields: self.yields.most }
    }
}

/// What earlier waits have taught: how often to spin, and then to give way, before sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habit {
    spins: u32,
    yields: u32,
}

impl Habit {
    /// Both numbers in one word.
    pub fn to_word(self) -> u64 {
        u64::from(self.yields) << 32 | u64::from(self.spins)
    }

    /// The habit that a word stands for.
    pub fn from_word(word: u64) -> Self {
        Self { spins: word as u32, yields: (word >> 32) as u32 }
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
}

impl Backoff {
    /// A wait that begins now, with what the one before has learned.
    pub fn new(patience: Patience, habit: Habit) -> Self {
        Self { patience, habit, looks: 0 }
    }

    /// Something moved: learns from the wait, and starts over.
    pub fn reset(&mut self) {
        if self.looks > 0 {
            let Habit { spins, yields } = self.habit;
            let spun = self.looks <= spins;
            if !spun {
                self.habit.yields = self.patience.yields.learn(yields, self.looks < spins + yields);
            }
            self.habit.spins = self.patience.spins.learn(spins, spun);
            self.looks = 0;
        }
    }

    /// What has been learned.
    pub fn habit(&self) -> Habit {
        self.habit
    }

    /// Nothing moved, and the peer that is waited for needs this very core: gives way at once, or says that it is time
    /// to sleep.
    pub fn give_way(&mut self) -> Pause {
        self.looks = self.looks.max(self.habit.spins);
        self.pause()
    }

    /// Nothing moved: spins or gives way once, or says that it is time to sleep.
    pub fn pause(&mut self) -> Pause {
        if self.looks >= self.habit.spins + self.habit.yields {
            return Pause::Sleep;
        }
        if self.looks < self.habit.spins {
            spin_hint();
        } else {
            cpu::yield_now();
        }
        self.looks += 1;
        Pause::Look
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

    #[test]
    fn spinning_that_does_not_pay_becomes_short_and_recovers() {
        let patience = Patience::for_ranks(2, 2);
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
        let patience = Patience::for_ranks(4, 2);
        let mut backoff = Backoff::new(patience, Habit::from_word(patience.habit().to_word()));
        assert_eq!(backoff.habit(), Habit { spins: 40, yields: 6_000 });
        for _ in 0..10 {
            wait(&mut backoff, 10_000);
        }
        assert_eq!(backoff.habit(), Habit { spins: 4, yields: 200 });
        for _ in 0..10 {
            wait(&mut backoff, 30);
        }
        assert_eq!(backoff.habit(), Habit { spins: 4, yields: 6_000 });
    }
}
