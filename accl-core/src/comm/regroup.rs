//! Communicators made of one that has lost ranks, or is to have more: revoke, shrink, grow.
//!
//! Ranks that have met know each other's processes and share a secret. So some of them can meet again without their communicator,
//! which may be broken: in the process of the one that will be rank 0, by a secret derived from the old one and from how often they
//! have done so. All ranks that are meant make these calls in the same order, so they count alike.

use super::announce::Maker;
use super::split::ChildDone;
use super::standing::Reason;
use super::{CommConfig, Communicator};
use crate::bootstrap::{self, UniqueId};
use crate::config::Network;
use crate::error::{Error, Result};
use crate::sync::prim::Ordering;
use crate::types::{Rank, named_ranks};

/// Bytes of an id, where ranks tell each other.
const ID_BYTES: usize = 128;

impl Communicator {
    /// Ends what is under way, and refuses more; the ranks can still be split or shrunk into others. Needs no peer.
    pub fn revoke(&self) -> Result<()> {
        self.check_process()?;
        if self.shared.standing.is(Reason::Finalized) {
            return Err(Error::argument(
                "the communicator has been finalized; there is nothing to revoke; destroy it",
            ));
        }
        if self.stop() {
            return Err(Error::argument(
                "the communicator has already been revoked; split or shrink it, or destroy it",
            ));
        }
        Ok(())
    }

    /// Ends what is under way, and refuses more; true if that was so already.
    fn stop(&self) -> bool {
        let before = self.shared.standing.add(Reason::Revoked);
        if let Some(joined) = self.shared.joined.get() {
            joined.seat.abort();
            self.abort_windows();
            joined.seat.wait_queued();
        }
        before
    }

    /// The ranks that are not `excluded` call, and become a communicator, in their order here. With `abort`, what is under way here is
    /// ended first, as by [`Communicator::revoke`]; without, nothing may be, and nothing may have failed.
    pub fn shrink(
        &self,
        excluded: &[Rank],
        abort: bool,
        config: Option<CommConfig>,
        done: ChildDone,
    ) -> Result<()> {
        let members: Vec<Rank> = (0..self.ranks()).filter(|rank| !excluded.contains(rank)).collect();
        let revoked = self.shared.standing.is(Reason::Revoked);
        if abort {
            self.stop();
        } else if let Some(error) = self.failure().filter(|_| !revoked) {
            return Err(Error::usage(format!(
                "the communicator has failed, so it can only be shrunk with NCCL_SHRINK_ABORT: {}",
                error.text()
            )));
        }
        let config = config.unwrap_or_else(|| self.config());
        self.derive("accl-shrink", done, move |parent| {
            parent.meet_again("CommShrink", &members, config).map(Some)
        })
    }

    /// A split of a communicator that carries nothing out any more: by way of another one with the same ranks.
    pub(super) fn split_revoked(
        &self,
        color: Option<u32>,
        key: i32,
        config: CommConfig,
    ) -> Result<Option<Self>> {
        let all: Vec<Rank> = (0..self.ranks()).collect();
        let again =
            self.meet_again("CommSplit", &all, CommConfig { face: self.face(), ..CommConfig::default() })?;
        let child = again.split_now("CommSplit", color, key, config);
        again.destroy()?;
        child
    }

    /// `members`, this rank among them, make a communicator, wherever this one is; `function` is what the program has called.
    fn meet_again(&self, function: &'static str, members: &[Rank], config: CommConfig) -> Result<Self> {
        let joined = self.joined()?;
        let number = self.shared.regroupings.fetch_add(1, Ordering::AcqRel);
        let secret = joined.secret.derive(format!("regrouping {number}").as_bytes());
        let rank = members.iter().position(|member| *member == self.rank());
        let (Some(rank), Some(first)) = (rank, members.first()) else {
            return Err(Error::internal("a rank that is not among the members of its communicator"));
        };
        let settings = config.settings()?;
        let config = config.overridden(&settings);
        let child = self.child(members.len(), rank, config);
        let give_up = || {
            self.check_abort()?;
            bootstrap::check_service()?;
            members.iter().try_for_each(|member| joined.seat.check_peer(*member))
        };
        let making = child.say_start(Maker::Parent(function, self.key(), number + 1, 0, rank as i32));
        let plugin = child.open_plugin_of(&settings, &secret);
        let met =
            bootstrap::rejoin(&joined.peers[*first], secret, child.request(&settings, plugin), &give_up);
        let met = met.map_err(|error| error.within(format!("{} meet again", named_ranks(members))))?;
        child.settle(met, &settings, making, &give_up)?;
        Ok(child)
    }

    /// An id by which new ranks can join in [`Communicator::grow`]: for one rank to ask for, and to hand to them.
    pub fn invite(&self) -> Result<UniqueId> {
        self.check_usable()?;
        if let Some(address) = Network::load()?.comm_id {
            return Err(Error::usage(format!(
                "NCCL_COMM_ID={} is set, so every unique id is the same one; unset it to grow a communicator",
                address.text
            )));
        }
        let id = UniqueId::create()?;
        *self.shared.invitation.lock() = Some(id);
        Ok(id)
    }

    /// All ranks call, and become a communicator of `ranks`, in which they keep their numbers; new ranks join with the id, by
    /// [`Communicator::init`]. Only one rank needs to know the `id`: the one that was asked for it, or that is given it.
    pub fn grow(
        &self,
        ranks: usize,
        id: Option<UniqueId>,
        config: Option<CommConfig>,
        done: ChildDone,
    ) -> Result<()> {
        self.check_usable()?;
        let config = config.unwrap_or_else(|| self.config());
        self.derive("accl-grow", done, move |parent| parent.grow_now(ranks, id, config).map(Some))
    }

    fn grow_now(&self, ranks: usize, id: Option<UniqueId>, config: CommConfig) -> Result<Self> {
        let settings = config.settings();
        let known = self.shared.invitation.lock().take().or(id).map_or([0; ID_BYTES], |id| id.0);
        let all = self.tell_all(&known)?;
        let mut told = all.chunks_exact(ID_BYTES).filter(|id| id.iter().any(|byte| *byte != 0));
        let Some(first) = told.next() else {
            return Err(Error::usage(
                "no rank knows an id for the new ones; one must ask for it by ncclCommGetUniqueId, and hand it to them",
            ));
        };
        if told.any(|other| other != first) {
            return Err(Error::usage(
                "the ranks know different ids; one of them must ask for one by ncclCommGetUniqueId, and the others pass NULL or the same",
            ));
        }
        let mut id = UniqueId([0; ID_BYTES]);
        id.0.copy_from_slice(first);
        let settings = settings?;
        let config = config.overridden(&settings);
        let child = self.child(ranks, self.rank(), config);
        child.join("CommGrow", &[id], &settings)?;
        Ok(child)
    }
}
