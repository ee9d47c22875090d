//! The life of a path, as both ends agree on it by records. Pure: what is to be done comes back as an answer.
//!
//! ```text
//!            leader: offer        hears pair: connect, say ready        hears ready: try a packet      passed, and hears passed
//!   Idle ─────────────────▶ Offered ───────────────────────▶ Connected ───────────────▶ Trying ───────────────────▶ Up
//!     ▲      follower: hears pair ─────────────────────────────▲     │                    │                         │
//!     │                                                              ▼                    ▼                         ▼   trouble, or hears closed
//!     └── hears closed ── Closed ◀── drained: say closed ────────── Draining ◀────────────┴─────────────────────────┘
//! ```
//! A path is up only once a packet of either end has passed: queue pairs connect without one.
//! The lower rank leads. Each round through the circle is an *epoch*, whose number stands in all its records; what comes of an
//! earlier one is old news. An end is *drained* when its queue pair is given back: nothing arrives by it any more. Who is closed and has heard that
//! the peer is, knows which segments have not arrived.

use super::window::Have;

/// Where one end of a path stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    Idle,
    Offered,
    Connected,
    Trying,
    Up,
    Draining,
    Closed,
}

/// One end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PathState {
    leads: bool,
    stage: Stage,
    epoch: u32,
    /// A packet of this end has passed, and one of the peer's.
    passed: (bool, bool),
    /// What the peer has, if it has closed its end.
    peer_closed: Option<Have>,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Todo {
    Nothing,
    /// Make a queue pair, say its address, connect it, and say ready.
    Answer,
    /// Connect the queue pair, and say ready.
    Connect,
    /// Send a packet that shows whether any pass.
    Try,
    /// Say that it has passed.
    SayPassed,
    /// End the queue pair and drain it.
    Drain,
    /// Send again what the peer has not got.
    TakeBack(Have),
    /// The peer says what cannot be.
    Wrong,
}

impl PathState {
    pub(super) const fn new(leads: bool) -> Self {
        Self { leads, stage: Stage::Idle, epoch: 0, passed: (false, false), peer_closed: None }
    }

    pub(super) const fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// True if this end may offer the path.
    pub(super) fn may_offer(&self) -> bool {
        self.leads && self.stage == Stage::Idle
    }

    /// This end offers the path: it makes a queue pair and says its address.
    pub(super) fn offer(&mut self) {
        self.begin(Stage::Offered);
    }

    fn begin(&mut self, stage: Stage) {
        (self.stage, self.passed, self.peer_closed) = (stage, (false, false), None);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The peer has said its queue pair's address.
    pub(super) fn hear_pair(&mut self, epoch: u32) -> Todo {
        if self.leads {
            return match self.stage {
                _ if epoch != self.epoch => Todo::Wrong,
                Stage::Offered => {
                    self.stage = Stage::Connected;
                    Todo::Connect
                }
                // This end has met with trouble meanwhile.
                Stage::Draining | Stage::Closed => Todo::Nothing,
                Stage::Idle | Stage::Connected | Stage::Trying | Stage::Up => Todo::Wrong,
            };
        }
        if self.stage != Stage::Idle || epoch != self.epoch.wrapping_add(1) {
            return Todo::Wrong;
        }
        self.begin(Stage::Connected);
        Todo::Answer
    }

    /// The peer is ready.
    pub(super) fn hear_ready(&mut self, epoch: u32) -> Todo {
        match self.stage {
            _ if epoch != self.epoch => Todo::Wrong,
            Stage::Connected => {
                self.stage = Stage::Trying;
                Todo::Try
            }
            Stage::Draining | Stage::Closed => Todo::Nothing,
            Stage::Idle | Stage::Offered | Stage::Trying | Stage::Up => Todo::Wrong,
        }
    }

    /// True as long as this end's packet is under way.
    pub(super) fn tries(&self) -> bool {
        self.stage == Stage::Trying && !self.passed.0
    }

    /// This end's packet has passed.
    pub(super) fn passed(&mut self) -> Todo {
        if !self.tries() {
            return Todo::Nothing;
        }
        self.passed.0 = true;
        self.see_passed();
        Todo::SayPassed
    }

    /// The peer's packet has passed.
    pub(super) fn hear_passed(&mut self, epoch: u32) -> Todo {
        match self.stage {
            _ if epoch != self.epoch || self.passed.1 => Todo::Wrong,
            Stage::Trying => {
                self.passed.1 = true;
                self.see_passed();
                Todo::Nothing
            }
            Stage::Draining | Stage::Closed => Todo::Nothing,
            Stage::Idle | Stage::Offered | Stage::Connected | Stage::Up => Todo::Wrong,
        }
    }

    fn see_passed(&mut self) {
        if self.passed == (true, true) {
            self.stage = Stage::Up;
        }
    }

    /// Something is wrong with this end.
    pub(super) fn trouble(&mut self) -> Todo {
        match self.stage {
            Stage::Offered | Stage::Connected | Stage::Trying | Stage::Up => {
                self.stage = Stage::Draining;
                Todo::Drain
            }
            Stage::Idle | Stage::Draining | Stage::Closed => Todo::Nothing,
        }
    }

    /// This end's queue pair is given back; that is to be said, with what this end has.
    pub(super) fn drained(&mut self) -> Todo {
        if self.stage != Stage::Draining {
            return Todo::Nothing;
        }
        self.stage = Stage::Closed;
        self.peer_closed.take().map_or(Todo::Nothing, |have| self.end(have))
    }

    fn end(&mut self, have: Have) -> Todo {
        self.stage = Stage::Idle;
        Todo::TakeBack(have)
    }

    /// The peer's end is closed, and this is what it has.
    pub(super) fn hear_closed(&mut self, epoch: u32, have: Have) -> Todo {
        if epoch != self.epoch || self.peer_closed.is_some() {
            return Todo::Wrong;
        }
        match self.stage {
            Stage::Idle => Todo::Wrong,
            Stage::Closed => self.end(have),
            Stage::Draining => {
                self.peer_closed = Some(have);
                Todo::Nothing
            }
            Stage::Offered | Stage::Connected | Stage::Trying | Stage::Up => {
                self.peer_closed = Some(have);
                self.trouble()
            }
        }
    }
}
