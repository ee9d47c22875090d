//! What becomes of a link while nobody waits for it, and when it ends.
//!
//! A message is over for its sender once all of it has gone, which is before it has arrived. If a path fails then, its segments must go
//! again, whatever this rank does meanwhile: so whoever is about to sleep tends all its links ([`RdmaLink::ring_when`](super::RdmaLink)), and the thread
//! `accl-network` does now and then.

use super::link::{Core, Path, SENDS};
use super::path::Stage;
use super::window::By;
use crate::os::clock;
use crate::transport::tcp::Tend;
use parking_lot::Mutex;
use std::time::Duration;

/// How long who leaves waits for what is under way, beside the time that a device takes to tell that a path is dead: for both ends to close
/// that path, and for its segments to go another way.
const FINISH_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that a device is given for that, whatever the settings say.
const MOST_RETRYING: Duration = Duration::from_secs(60);

impl Tend for Mutex<Core> {
    fn tend(&self) -> bool {
        // Whoever has the lock does the same.
        let Some(mut core) = self.try_lock() else { return true };
        if !core.has_greeted || core.is_over() {
            return false;
        }
        let before = core.events;
        core.tend(true);
        core.ask();
        if core.events > before {
            let world = core.tcp.world();
            world.arena.block(world.rank).bell.ring();
        }
        core.is_restless()
    }
}

impl Core {
    /// Does everything that can be done now, and leaves alone what somebody has armed; `looks` at the connection in any case.
    pub(super) fn tend(&mut self, looks: bool) {
        self.look_for_completions();
        if looks || !self.is_at_rest() {
            self.look_at_connection();
        }
        self.dispatch();
        self.give_credit();
    }

    /// Nothing more comes or goes.
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.channel.has_ended
    }

    /// True if something is to be done that the peer may wait for.
    fn is_restless(&self) -> bool {
        let busy = |path: &Path| match path.state.stage() {
            Stage::Up => path.done < path.posted,
            Stage::Idle => false,
            Stage::Offered | Stage::Connected | Stage::Trying | Stage::Draining | Stage::Closed => true,
        };
        !self.is_over()
            && (!self.has_gone() || self.receives.credit_due().is_some() || self.paths.iter().any(busy))
    }

    /// Has each path report what has gone by it: most writes do not.
    fn ask(&mut self) {
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            if path.has_room(SENDS.into()) && path.signalled < path.posted {
                // Empty, and behind all others.
                self.write(index, 0, (0, 0), None, true);
            }
        }
    }

    /// True if all segments have gone, by paths or into the socket.
    pub(super) fn has_gone(&self) -> bool {
        self.sends.first_waiting().is_none() && self.channel.is_flushed()
    }

    /// Waits until the peer's device has everything that was sent, since it is gone with this process otherwise; not for
    /// ever, and not if anything has failed or the peer is gone.
    pub(super) fn finish(&mut self) {
        let (arena, peer) = (self.tcp.world().arena.clone(), self.tcp.peer());
        let over = std::mem::replace(&mut self.is_finished, true) || self.sends.next() == 0;
        if over || arena.has_failed() {
            return;
        }
        let deadline = clock::now() + self.finish_patience();
        loop {
            self.dispatch();
            self.progress();
            let is_gone = arena.has_failed() || arena.state_of(peer).is_gone();
            if self.is_through() || self.is_over() || is_gone || clock::now() > deadline {
                return;
            }
            self.ask();
            clock::sleep(Duration::from_micros(50));
        }
    }

    /// How long a device takes to tell that a path is dead, and what comes after.
    fn finish_patience(&self) -> Duration {
        let (timeout, retries) = (self.settings().timeout, self.settings().retries);
        let attempt = Duration::from_nanos(4096 << timeout);
        // 0 stands for "for ever".
        let retrying = if timeout == 0 { MOST_RETRYING } else { attempt * (u32::from(retries) + 1) };
        retrying.min(MOST_RETRYING) + FINISH_PATIENCE
    }

    fn is_through(&self) -> bool {
        let through = |(index, path): (usize, &Path)| match path.state.stage() {
            Stage::Up => path.done == path.posted,
            _ => !self.sends.is_under_way(By::Path(index as u8)),
        };
        self.has_gone() && self.paths.iter().enumerate().all(through)
    }
}
