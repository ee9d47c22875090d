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
    least_spins: u32,
    most_spins: u32,
    yields: u32,
    crowded: bool,
}

impl Patience {
    /// For `waiters` ranks that share `cores`: where every rank has a core of its own, an answer is a few
    /// hundred nanoseconds away and spinning is right; elsewhere the peer needs the core that we hold.
    pub fn for_ranks(waiters: usize, cores: usize) -> Self {
        if waiters <= cores {
            Self { least_spins: 50, most_spins: 4_000, yields: 20, crowded: false }
        } else {
            Self { least_spins: 4, most_spins: 40, yields: 200, crowded: true }
        }
    }

    /// True where there are more waiters than cores: then it matters on which core a peer is.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// How long to spin when nothing has been learned yet.
    pub fn spins(&self) -> u32 {
        self.most_spins
    }
}

/// The state of one wait, and what has been learned from earlier ones: a core of one's own may be shared with
/// another program, and then spinning keeps the peer from running. Answers that come while spinning say that it
/// pays, answers that come only after giving way say that it does not.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    spins: u32,
    looks: u32,
}

impl Backoff {
    /// A wait that begins now; `spins` is what the one before has learned.
    pub fn new(patience: Patience, spins: u32) -> Self {
        Self { patience, spins, looks: 0 }
    }

    /// Something moved: learns from the wait, and starts over.
    pub fn reset(&mut self) {
        if self.looks > 0 {
            let spun = self.looks <= self.spins;
            let spins = if spun { self.spins * 2 } else { self.spins / 2 };
            self.spins = spins.clamp(self.patience.least_spins, self.patience.most_spins);
            self.looks = 0;
        }
    }

    /// How long to spin the next time.
    pub fn spins(&self) -> u32 {
        self.spins
    }

    /// Nothing moved, and the peer that is waited for needs this very core: gives way at once, or says that it is time
    /// to sleep.
    pub fn give_way(&mut self) -> Pause {
        self.looks = self.looks.max(self.spins);
        self.pause()
    }

    /// Nothing moved: spins or gives way once, or says that it is time to sleep.
    pub fn pause(&mut self) -> Pause {
        if self.looks >= self.spins + self.patience.yields {
            return Pause::Sleep;
        }
        if self.looks < self.spins {
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
        let mut backoff = Backoff::new(patience, patience.spins());
        assert_eq!(backoff.spins(), 4000);
        for _ in 0..10 {
            wait(&mut backoff, 5000);
        }
        assert_eq!(backoff.spins(), 50);
        wait(&mut backoff, 0);
        assert_eq!(backoff.spins(), 50);
        for _ in 0..10 {
            wait(&mut backoff, 3);
        }
        assert_eq!(backoff.spins(), 4000);
    }
}
