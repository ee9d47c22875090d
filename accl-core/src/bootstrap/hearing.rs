//! A rank's connection to its root; a delegate's connections to two, between which it passes on what is not for itself
//! (see [`super::share`]).

use super::join::{Trusted, lost};
use super::share::{Heard, Side, pass_on};
use super::wire::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, socket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How often `give_up` is asked.
const STEP: Duration = Duration::from_millis(100);

/// The connections.
pub(super) struct Hearing<'a> {
    pub(super) own: Trusted<'a>,
    /// Where that is, for people.
    pub(super) root: String,
    /// Of a delegate, until the trunk has said its last word.
    pub(super) trunk: Option<Trusted<'a>>,
    /// The own root is not that of the first id: it never has the list of all.
    pub(super) in_branch: bool,
    pub(super) deadline: Instant,
    pub(super) give_up: &'a dyn Fn() -> Result<()>,
}

impl std::fmt::Debug for Hearing<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Hearing").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<'a> Hearing<'a> {
    /// Makes a delegate of this rank: it joins the trunk, too. The branch is told if it cannot.
    pub(super) fn stand(
        &mut self,
        reach: impl FnOnce() -> Result<Trusted<'a>>,
        join: &Message,
    ) -> Result<()> {
        let deadline = self.deadline;
        let trunk = reach().and_then(|mut trunk| trunk.send(join, deadline).map(|()| trunk));
        let trunk = trunk.inspect_err(|error| {
            let _ = self.say(&Message::Failure(error.kind(), error.text().to_string()));
        })?;
        self.trunk = Some(trunk);
        Ok(())
    }

    /// Says something to the own root.
    pub(super) fn say(&mut self, message: &Message) -> Result<()> {
        self.own.send(message, self.deadline)
    }

    /// Says why this rank cannot go on, if that is something its process lacks: it is the reason of all others, too.
    pub(super) fn tell_lack(&mut self, error: &Error) {
        if error.kind() == ErrorKind::System {
            let _ = self.say(&Message::Ready(Some((error.kind(), error.text().to_string()))));
        }
    }

    /// The next message that is for this rank.
    pub(super) fn hear(&mut self) -> Result<Message> {
        loop {
            let Some(trunk) = &mut self.trunk else {
                match self.own.receive(self.deadline).map_err(|error| lost(error, &self.root))? {
                    // What a branch said before it heard the trunk's verdict.
                    Message::Share(_) | Message::Ready(None) if self.in_branch => continue,
                    message => return Ok(message),
                }
            };
            let side = if self.own.has_word() {
                Side::Branch
            } else if trunk.has_word() {
                Side::Trunk
            } else {
                (self.give_up)()?;
                if clock::now() >= self.deadline {
                    let error = Error::new(ErrorKind::Timeout, "no word from the roots of two unique ids");
                    return Err(lost(error, &self.root));
                }
                socket::wait_readable(&[self.own.as_fd(), trunk.as_fd()], STEP)?;
                continue;
            };
            let (from, to) = match side {
                Side::Branch => (&mut self.own, &mut *trunk),
                Side::Trunk => (&mut *trunk, &mut self.own),
            };
            let message = from.receive(self.deadline).unwrap_or_else(|error| {
                let error = lost(
                    error,
                    if side == Side::Branch { &self.root } else { "the creator of the first unique id" },
                );
                Message::Failure(error.kind(), error.text().to_string())
            });
            let last = side == Side::Trunk && matches!(message, Message::Go | Message::Failure(..));
            let (said, heard) = pass_on(side, message);
            // Whoever cannot be told any more has its verdict, or is missed by others.
            let _ = said.map(|message| to.send(&message, self.deadline));
            if last {
                self.trunk = None;
            }
            if let Heard::List(message) | Heard::Verdict(message) = heard {
                return Ok(message);
            }
        }
    }

    /// Asks for the list of all ranks where it certainly is; a branch is told why this rank cannot go on.
    pub(super) fn ask_for_list(&mut self, problem: &Error) {
        let message = if self.in_branch && self.trunk.is_none() {
            Message::Ready(Some((problem.kind(), problem.text().to_string())))
        } else {
            Message::Fetch
        };
        // If the root has hung up, its verdict is still to be read.
        let _ = self.trunk.as_mut().unwrap_or(&mut self.own).send(&message, self.deadline);
    }

    /// True if there is something to hear, or a root is gone.
    pub(super) fn has_word(&self) -> bool {
        self.own.has_word() || self.trunk.as_ref().is_some_and(Trusted::has_word)
    }

    pub(super) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.own), self.trunk.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect()
    }
}
