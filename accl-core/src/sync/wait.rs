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
    spins: u32,
    yields: u32,
}

impl Patience {
    /// For `waiters` ranks that share `cores`: where every rank has a core of its own, an answer is a few
    /// hundred nanoseconds away and spinning is right; elsewhere the peer needs the core that we hold.
    pub fn for_ranks(waiters: usize, cores: usize) -> Self {
        if waiters <= cores { Self { spins: 4_000, yields: 20 } } else { Self { spins: 40, yields: 200 } }
    }
}

/// The state of one wait.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    looks: u32,
}

impl Backoff {
    /// A wait that begins now.
    pub fn new(patience: Patience) -> Self {
        Self { patience, looks: 0 }
    }

    /// Something moved: start over.
    pub fn reset(&mut self) {
        self.looks = 0;
    }

    /// Nothing moved: spins or gives way once, or says that it is time to sleep.
    pub fn pause(&mut self) -> Pause {
        let Patience { spins, yields } = self.patience;
        if self.looks >= spins + yields {
            return Pause::Sleep;
        }
        if self.looks < spins {
            spin_hint();
        } else {
            cpu::yield_now();
        }
        self.looks += 1;
        Pause::Look
    }
}
