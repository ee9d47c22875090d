//! Splits: the ranks of a communicator tell each other their colours, and each colour becomes a communicator.

use super::announce::{Maker, Part};
use super::standing::Reason;
use super::{CommConfig, Communicator, group};
use crate::algo::Selection;
use crate::bootstrap::PeerRecord;
use crate::engine::{Call, Job, Operator, run};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Scratch;
use crate::sync::prim::Ordering;
use crate::topo::Place;
use crate::types::{Collective, DataType, Rank, ReduceOp};

/// What is called with the new communicator (none for a rank without a colour), before the parent says that the
/// call is over.
pub type ChildDone = Box<dyn FnOnce(Option<Communicator>) + Send>;

/// What every rank tells of its set-up: a length, then that many bytes of the reason why it failed.
const VERDICT_BYTES: usize = 512;

impl Communicator {
    /// All ranks must call. Those with the same colour become a communicator, ordered by key, then by rank here.
    /// `config` is the new one's; none is this one's. In a group, or not blocking, as for [`Communicator::init`].
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        config: Option<CommConfig>,
        done: ChildDone,
    ) -> Result<()> {
        let config = config.unwrap_or_else(|| self.config());
        self.derive("accl-split", done, move |parent| {
            if parent.shared.standing.is(Reason::Revoked) {
                return parent.split_revoked(color, key, config);
            }
            parent.split_now("CommSplit", color, key, config)
        })
    }

    /// Makes something of this communicator with all its ranks: now; or when the group ends that is open; or in the background, if this one does not block.
    pub(super) fn derive<T>(
        &self,
        thread: &str,
        done: Box<dyn FnOnce(T) + Send>,
        make: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<()>
    where
        T: 'static,
    {
        let blocking = self.shared.config.blocking;
        if !group::is_open() && blocking {
            done(make(self)?);
            return Ok(());
        }
        let background = self.begin_background();
        let job = move |dropped: Option<Error>| {
            let parent = &background.0;
            let outcome = dropped.map_or_else(|| make(parent), Err).map(done);
            if let (Err(error), false) = (&outcome, blocking) {
                parent.store_error(error);
            }
            outcome
        };
        let deferred = group::is_open();
        group::defer_or_spawn(self, blocking, thread, Box::new(job))?;
        if !deferred || !blocking {
            return Err(Error::new(ErrorKind::InProgress, "a non-blocking call is under way"));
        }
        Ok(())
    }

    pub(super) fn split_now(
        &self,
        function: &'static str,
        color: Option<u32>,
        key: i32,
        config: CommConfig,
    ) -> Result<Option<Self>> {
        let joined = self.joined()?;
        // A rank whose settings are bad still takes part, so that the others need not wait for it.
        let settings = config.settings();
        let number = self.shared.splits.fetch_add(1, Ordering::AcqRel);
        let code = color.map_or(-1, i64::from);
        let mut words = [0u8; 16];
        words[..8].copy_from_slice(&code.to_le_bytes());
        words[8..].copy_from_slice(&i64::from(key).to_le_bytes());
        let all = self.tell_all(&words)?;
        let members = members(&all, code);
        let child = color.map(|color| {
            let rank = members.iter().position(|member| *member == self.rank()).unwrap_or(0);
            let config = match &settings {
                Ok(settings) => config.overridden(settings),
                Err(_) => config,
            };
            let secret = joined.secret.derive(format!("split {number} {color}").as_bytes());
            let peers: Vec<PeerRecord> = members.iter().map(|member| joined.peers[*member].clone()).collect();
            (self.child(members.len(), rank, config), peers, secret)
        });
        let making = child
            .as_ref()
            .map(|(child, ..)| child.say_start(Maker::Parent(function, self.key(), number + 1, code, key)));
        // The memory of the new communicator comes from the process of its first rank on each host.
        let leader = members
            .iter()
            .copied()
            .find(|member| joined.peers[*member].shares_host(&joined.peers[self.rank()]));
        let leader = leader.unwrap_or_else(|| self.rank());
        let give_up = || joined.seat.check_alive().and_then(|()| joined.seat.check_peer(leader));
        let prepare = || {
            let prepare = |(child, peers, secret): &(Self, Vec<PeerRecord>, _)| {
                child.prepare(peers, *secret, settings.as_ref().map_err(Clone::clone)?, &give_up)
            };
            child.as_ref().map(prepare).transpose()
        };
        // First those whose process makes the memory, so that nobody waits for memory that never comes.
        let here = Place::here()?;
        let leads = child.is_some() && joined.peers[leader].place.shares_process(&here);
        let early = if leads { Some(prepare()) } else { None };
        self.verdict(early.as_ref().and_then(|prepared| prepared.as_ref().err()))?;
        let prepared = early.unwrap_or_else(prepare);
        self.verdict(prepared.as_ref().err())?;
        let (Some((child, peers, secret)), Some(prepared)) = (child, prepared?) else { return Ok(None) };
        let Some(mut making) = making else { return Ok(None) };
        making.ends(Part::Alloc);
        child.take_seat(prepared, peers, secret, &settings?)?;
        making.ends(Part::Connections);
        child.say_complete(&making);
        Ok(Some(child))
    }

    /// Tells everybody whether this rank has set itself up; an error on all ranks if one has not.
    pub(super) fn verdict(&self, failure: Option<&Error>) -> Result<()> {
        let mut words = [0u8; VERDICT_BYTES];
        if let Some(error) = failure {
            let text = error.text();
            let text = &text.as_bytes()[..text.floor_char_boundary(VERDICT_BYTES - 4)];
            words[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
            words[4..4 + text.len()].copy_from_slice(text);
        }
        let all = self.tell_all(&words)?;
        for (rank, words) in all.chunks(VERDICT_BYTES).enumerate() {
            let length = u32::from_le_bytes([words[0], words[1], words[2], words[3]]) as usize;
            if length > 0 {
                let text = String::from_utf8_lossy(&words[4..4 + length.min(VERDICT_BYTES - 4)]);
                return Err(Error::new(
                    ErrorKind::System,
                    format!("rank {rank} could not be set up: {text}"),
                ));
            }
        }
        Ok(())
    }

    /// Everybody's words, in rank order.
    pub(super) fn tell_all(&self, words: &[u8]) -> Result<Vec<u8>> {
        let mut memory = (Scratch::default(), Scratch::default());
        let all_bytes = words.len() * self.ranks();
        let call = Call {
            kind: Collective::Split,
            dtype: DataType::Uint8,
            operator: Operator::plain(ReduceOp::Sum),
            root: 0,
            count_elems: words.len(),
            send: memory.0.fill(words)?,
            recv: memory.1.ensure(all_bytes)?,
            selection: Selection::default(),
        };
        run(&[(&self.joined()?.seat, Job { calls: &[call], ..Job::default() })])?;
        Ok(memory.1.read(all_bytes))
    }
}

/// The ranks of one colour, by key, then by rank.
fn members(all: &[u8], code: i64) -> Vec<Rank> {
    let word = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let mut keyed: Vec<(i64, Rank)> = all
        .chunks(16)
        .enumerate()
        .filter(|(_, words)| word(&words[..8]) == code)
        .map(|(rank, words)| (word(&words[8..]), rank))
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, rank)| rank).collect()
}
