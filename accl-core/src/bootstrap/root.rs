//! The gathering of one unique id: who has come, and the verdict. No I/O and no clock.
//!
//! gathering → preparing → ended. Everybody who joined hears the same verdict; those who come later hear it too.
//!
//! Where there are several ids, this is also the trunk or a branch of `share.rs`.

use super::share::{ranks_of, share_of};
use super::tree::{Roster, Source, sources, sources_in_share};
use super::wire::{Message, PeerRecord, share_uplinks};
use crate::error::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Which connection a rank is on.
pub(super) type Connection = u64;

/// What is to be sent, and to whom.
pub(super) type Outbox = Vec<(Connection, Message)>;

/// How much longer the trunk waits where the root of a share may yet say who is missing.
const BRANCH_GRACE: Duration = Duration::from_secs(2);

/// A rank that joined: for itself, or to stand for a share.
#[derive(Debug)]
struct Member {
    connection: Connection,
    version: i32,
    record: PeerRecord,
}

#[derive(Debug)]
struct Delegate {
    member: Member,
    /// The ranks of the share, once all of them are there.
    list: Option<Roster>,
}

#[derive(Debug)]
enum Phase {
    Gathering,
    Preparing { ready: BTreeSet<Connection> },
    Ended { error: Option<Error>, at: Instant },
}

/// One gathering.
#[derive(Debug)]
pub(super) struct Root {
    phase: Phase,
    /// What all must say alike: the numbers of ranks and ids. Zero before anybody has come.
    ranks: u32,
    ids: u32,
    /// Which of the ids this is for: 0 is the trunk.
    share: u32,
    members: BTreeMap<u32, Member>,
    /// Of the trunk alone: those who stand for other shares.
    delegates: BTreeMap<u32, Delegate>,
    deadline: Option<Instant>,
}

/// A rank's request.
#[derive(Debug)]
pub(super) struct JoinRequest {
    pub(super) ranks: u32,
    pub(super) rank: u32,
    pub(super) ids: u32,
    pub(super) stands: bool,
    pub(super) version: i32,
    pub(super) patience_ms: u64,
    pub(super) record: PeerRecord,
}

impl Root {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Gathering,
            ranks: 0,
            ids: 0,
            share: 0,
            members: BTreeMap::new(),
            delegates: BTreeMap::new(),
            deadline: None,
        }
    }

    /// When [`Root::handle_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Ended { .. }) {
            return None;
        }
        // The root of a share knows best who is missing there.
        let waits = self.delegates.values().any(|delegate| delegate.list.is_none());
        self.deadline.map(|deadline| if waits { deadline + BRANCH_GRACE } else { deadline })
    }

    /// When it ended, if it has.
    pub(super) fn ended_at(&self) -> Option<Instant> {
        if let Phase::Ended { at, .. } = self.phase { Some(at) } else { None }
    }

    pub(super) fn handle_join(&mut self, connection: Connection, join: JoinRequest, now: Instant) -> Outbox {
        if let Phase::Ended { error, .. } = &self.phase {
            let (kind, text) = match error {
                Some(error) => (error.kind(), error.text().to_string()),
                None => (
                    ErrorKind::InvalidUsage,
                    "this unique id was already used for a communicator; make a new one with ncclGetUniqueId for each"
                        .to_string(),
                ),
            };
            return vec![(connection, Message::Failure(kind, text))];
        }
        let objection = self.objection(&join);
        let JoinRequest { rank, patience_ms, .. } = join;
        if let (None, 0) = (&objection, self.ids) {
            (self.ranks, self.ids) = (join.ranks, join.ids);
            self.share = if join.stands { 0 } else { share_of(rank, join.ranks, join.ids) };
        }
        let member = Member { connection, version: join.version, record: join.record };
        if let Some(error) = objection {
            // The newcomer hears the verdict like everybody else, under a number that no rank has.
            self.members.insert(u32::MAX, member);
            return self.end(Some(error), now);
        }
        if join.stands {
            let share = share_of(rank, self.ranks, self.ids);
            self.delegates.insert(share, Delegate { member, list: None });
        } else {
            self.members.insert(rank, member);
        }
        if let (true, Some(deadline)) = (patience_ms > 0, now.checked_add(Duration::from_millis(patience_ms)))
        {
            self.deadline = Some(self.deadline.map_or(deadline, |old| old.min(deadline)));
        }
        self.begin_if_complete()
    }

    /// A delegate brings the list of its share.
    pub(super) fn handle_share(&mut self, connection: Connection, list: Roster, now: Instant) -> Outbox {
        let found = self.delegates.iter_mut().find(|(_, delegate)| delegate.member.connection == connection);
        let Some((share, delegate)) = found else { return Vec::new() };
        if list.len() != ranks_of(*share, self.ranks, self.ids).len() {
            let error = format!("a list of {} ranks for share {share} of {}", list.len(), self.ids);
            return self.end(Some(Error::internal(error)), now);
        }
        delegate.list = Some(list);
        self.begin_if_complete()
    }

    /// Once everybody is there: the list of all ranks, or where each can get it.
    fn begin_if_complete(&mut self) -> Outbox {
        let delegates = if self.share == 0 { self.ids as usize - 1 } else { 0 };
        let listed = self.delegates.values().filter(|delegate| delegate.list.is_some()).count();
        let complete = self.members.len() == self.ranks_here().len() && listed == delegates;
        if !complete || !matches!(self.phase, Phase::Gathering) {
            return Vec::new();
        }
        self.phase = Phase::Preparing { ready: BTreeSet::new() };
        let entries = self.everybody().map(|member| member.record.clone()).collect::<Vec<_>>();
        let (sources, list) = if self.share == 0 {
            (sources(&entries), Message::Roster(self.roster()))
        } else {
            (sources_in_share(&entries), Message::Share(entries.clone().into()))
        };
        let answers = self.everybody().zip(sources).map(|(member, source)| {
            let answer = match source {
                Source::Root => list.clone(),
                Source::ProcessOf(entry) => Message::Seek(Some(entries[entry].clone())),
                Source::OwnProcess => Message::Seek(None),
            };
            (member.connection, answer)
        });
        answers.collect()
    }

    /// A rank could not get the list from where it was told to. Only the root of the first id has it.
    pub(super) fn handle_fetch(&mut self, connection: Connection, now: Instant) -> Outbox {
        if !matches!(self.phase, Phase::Preparing { .. }) {
            return Vec::new();
        }
        if self.share == 0 {
            return vec![(connection, Message::Roster(self.roster()))];
        }
        let who = self.name_of(connection);
        let text = format!("{who} could not get the list of ranks from the process that has it");
        self.end(Some(Error::remote(text)), now)
    }

    /// How many ranks may be on their way.
    pub(super) fn expected(&self) -> usize {
        let gathering = self.ids > 0 && matches!(self.phase, Phase::Gathering);
        if gathering { self.ranks_here().len() } else { 0 }
    }

    pub(super) fn handle_ready(
        &mut self,
        connection: Connection,
        failure: Option<(ErrorKind, String)>,
        now: Instant,
    ) -> Outbox {
        if matches!(self.phase, Phase::Ended { .. }) {
            return Vec::new();
        }
        // That may come before all are there: of a process that cannot let others in, say.
        if let Some((kind, text)) = failure {
            let error = format!("{} could not be set up: {text}", self.name_of(connection));
            return self.end(Some(Error::new(kind, error)), now);
        }
        let Phase::Preparing { ready } = &mut self.phase else { return Vec::new() };
        ready.insert(connection);
        if ready.len() < self.members.len() + self.delegates.len() {
            return Vec::new();
        }
        if self.share == 0 {
            return self.end(None, now);
        }
        self.delegate().map(|delegate| (delegate, Message::Ready(None))).into_iter().collect()
    }

    /// A delegate says what became of the other side.
    pub(super) fn handle_verdict(
        &mut self,
        connection: Connection,
        error: Option<Error>,
        now: Instant,
    ) -> Outbox {
        let stands = self.delegates.values().any(|delegate| delegate.member.connection == connection);
        let all_ready =
            matches!(&self.phase, Phase::Preparing { ready } if ready.len() == self.members.len());
        let trusted = if self.share == 0 {
            stands && error.is_some()
        } else {
            self.delegate() == Some(connection) && (all_ready || error.is_some())
        };
        let open = !matches!(self.phase, Phase::Ended { .. });
        if trusted && open { self.end(error, now) } else { Vec::new() }
    }

    /// Somebody who holds the id has another encryption key.
    pub(super) fn handle_difference(&mut self, error: Error, now: Instant) -> Outbox {
        if matches!(self.phase, Phase::Ended { .. }) { Vec::new() } else { self.end(Some(error), now) }
    }

    pub(super) fn handle_closed(&mut self, connection: Connection, now: Instant) -> Outbox {
        if matches!(self.phase, Phase::Ended { .. }) {
            return Vec::new();
        }
        let Some(member) = self.everybody().find(|member| member.connection == connection) else {
            return Vec::new();
        };
        let text = format!(
            "{} ({}) left while the communicator was being made",
            self.name_of(connection),
            member.record.describe()
        );
        self.end(Some(Error::remote(text)), now)
    }

    pub(super) fn handle_time(&mut self, now: Instant) -> Outbox {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let missing = self.missing();
        let text = if missing.is_empty() {
            format!("{} did not get ready in time (ACCL_INIT_TIMEOUT)", self.named_unready())
        } else {
            format!(
                "{} of {} did not come in time (ACCL_INIT_TIMEOUT): they have not called ncclCommInitRank with this unique id, or cannot reach this host; \
                 start them, or allow more time",
                crate::types::named_runs(&missing),
                self.ranks
            )
        };
        self.end(Some(Error::new(ErrorKind::Timeout, text)), now)
    }

    /// Who has heard that all are there, and has not answered.
    fn named_unready(&self) -> String {
        let Phase::Preparing { ready } = &self.phase else { return String::new() };
        let late = self.everybody_by_rank().filter(|(_, member)| !ready.contains(&member.connection));
        crate::types::named_ranks(&late.map(|(rank, _)| rank as usize).collect::<Vec<_>>())
    }

    /// Who has not come, in runs: a wrong number of ranks may be any number.
    fn missing(&self) -> Vec<(usize, usize)> {
        let here = self.ranks_here();
        let mut next = here.start;
        let mut missing = Vec::new();
        for rank in self.members.keys().copied().chain([here.end]) {
            if rank > next {
                missing.push((next as usize, rank as usize - 1));
            }
            next = rank.saturating_add(1);
        }
        if self.share == 0 && self.ids > 1 {
            let lacks =
                |share: &u32| self.delegates.get(share).is_none_or(|delegate| delegate.list.is_none());
            let shares = (1..self.ids).filter(lacks).map(|share| ranks_of(share, self.ranks, self.ids));
            missing.extend(shares.map(|ranks| (ranks.start as usize, ranks.end as usize - 1)));
        }
        missing
    }

    /// Why this rank cannot be let in.
    fn objection(&self, join: &JoinRequest) -> Option<Error> {
        let first = self.everybody_by_rank().next();
        if join.rank >= join.ranks && first.is_none() || join.ids == 0 || join.ids > join.ranks {
            return Some(Error::argument(format!(
                "rank {} of {} with {} unique ids; need a rank below the number of ranks, and from one id to as many as ranks",
                join.rank, join.ranks, join.ids
            )));
        }
        let (first_rank, first) = first?;
        if first.version != join.version {
            return Some(Error::usage(format!(
                "versions differ: rank {first_rank} runs {}, rank {} runs {}; install the same library for all ranks",
                first.version, join.rank, join.version
            )));
        }
        if self.ranks != join.ranks || join.rank >= join.ranks {
            return Some(Error::usage(format!(
                "ranks disagree on their number: rank {first_rank} says {}, rank {} says {}; pass the same nranks",
                self.ranks, join.rank, join.ranks
            )));
        }
        let share = share_of(join.rank, join.ranks, join.ids);
        let expected = if join.stands { self.share == 0 && share > 0 } else { share == self.share };
        if self.ids != join.ids || !expected {
            return Some(Error::usage(format!(
                "ranks disagree on the unique ids: rank {first_rank} has {}, rank {} has {}, or others, or in another order; \
                 pass the same ids to all ranks",
                self.ids, join.rank, join.ids
            )));
        }
        let other = if join.stands {
            self.delegates.get(&share).map(|delegate| &delegate.member)
        } else {
            self.members.get(&join.rank)
        }?;
        Some(Error::usage(format!(
            "rank {} was claimed twice, by process {} and by process {}; give each process its own rank",
            join.rank, other.record.place.pid, join.record.place.pid
        )))
    }

    fn end(&mut self, error: Option<Error>, now: Instant) -> Outbox {
        let message = match &error {
            None => Message::Go,
            Some(error) => Message::Failure(error.kind(), error.text().to_string()),
        };
        let outbox = self.everybody().map(|member| (member.connection, message.clone())).collect();
        self.phase = Phase::Ended { error, at: now };
        self.members.clear();
        self.delegates.clear();
        outbox
    }

    /// The ranks that this root gathers itself.
    fn ranks_here(&self) -> Range<u32> {
        ranks_of(self.share, self.ranks, self.ids)
    }

    /// Those who are connected to this root: delegates first, as they have most to hand on.
    fn everybody(&self) -> impl Iterator<Item = &Member> {
        self.delegates.values().map(|delegate| &delegate.member).chain(self.members.values())
    }

    fn everybody_by_rank(&self) -> impl Iterator<Item = (u32, &Member)> {
        let first = |share: &u32| ranks_of(*share, self.ranks, self.ids).start;
        let delegates = self.delegates.iter().map(move |(share, delegate)| (first(share), &delegate.member));
        self.members.iter().map(|(rank, member)| (*rank, member)).chain(delegates)
    }

    fn name_of(&self, connection: Connection) -> String {
        let found = self.everybody_by_rank().find(|(_, member)| member.connection == connection);
        format!("rank {}", found.map_or(u32::MAX, |(rank, _)| rank))
    }

    /// Of a branch: who stands for it.
    fn delegate(&self) -> Option<Connection> {
        self.members.get(&self.ranks_here().start).map(|member| member.connection)
    }

    /// The list of all ranks; for the trunk, when everybody is there.
    fn roster(&self) -> Roster {
        let own = self.members.values().map(|member| &member.record);
        let others = self.delegates.values().filter_map(|delegate| delegate.list.as_ref());
        let mut all: Vec<_> = own.chain(others.flat_map(|list| list.iter())).cloned().collect();
        share_uplinks(&mut all);
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::Place;

    fn join(ranks: u32, rank: u32, patience_ms: u64) -> JoinRequest {
        let record =
            PeerRecord { place: Place { pid: 100 + rank, ..Place::default() }, ..PeerRecord::default() };
        JoinRequest { ranks, rank, ids: 1, stands: false, version: 7, patience_ms, record }
    }

    fn verdicts(outbox: &Outbox) -> Vec<(Connection, ErrorKind)> {
        outbox
            .iter()
            .filter_map(|(to, message)| match message {
                Message::Failure(kind, _) => Some((*to, *kind)),
                _ => None,
            })
            .collect()
    }

    fn text(outbox: &Outbox) -> String {
        match &outbox[0].1 {
            Message::Failure(_, text) => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_come_in_any_order_and_hear_the_same() {
        let now = Instant::now();
        let mut root = Root::new();
        for rank in [2, 0, 3] {
            assert!(root.handle_join(u64::from(rank), join(4, rank, 0), now).is_empty());
        }
        let outbox = root.handle_join(1, join(4, 1, 0), now);
        assert_eq!(outbox.len(), 4);
        let Message::Roster(records) = &outbox[0].1 else { panic!() };
        assert_eq!(records.iter().map(|record| record.place.pid).collect::<Vec<_>>(), [100, 101, 102, 103]);
        for connection in 0..3 {
            assert!(root.handle_ready(connection, None, now).is_empty());
        }
        assert_eq!(root.handle_ready(3, None, now).len(), 4);
        let late = root.handle_join(9, join(4, 1, 0), now);
        assert_eq!(verdicts(&late), [(9, ErrorKind::InvalidUsage)]);
        assert!(text(&late).contains("already used"));
    }

    #[test]
    fn the_missing_are_named_when_time_is_up() {
        let now = Instant::now();
        let mut root = Root::new();
        root.handle_join(0, join(5, 0, 2000), now);
        root.handle_join(1, join(5, 3, 1000), now);
        assert!(root.handle_time(now + Duration::from_millis(999)).is_empty());
        let outbox = root.handle_time(now + Duration::from_millis(1000));
        assert_eq!(verdicts(&outbox), [(0, ErrorKind::Timeout), (1, ErrorKind::Timeout)]);
        assert!(text(&outbox).contains("ranks 1-2,4 of 5"), "{}", text(&outbox));
        assert_eq!(verdicts(&root.handle_join(7, join(5, 1, 0), now)), [(7, ErrorKind::Timeout)]);
    }

    #[test]
    fn who_cannot_go_on_before_all_are_there_tells_all() {
        let now = Instant::now();
        let mut root = Root::new();
        root.handle_join(0, join(3, 0, 0), now);
        root.handle_join(1, join(3, 1, 0), now);
        let outbox = root.handle_ready(0, Some((ErrorKind::System, "no descriptors".to_string())), now);
        assert_eq!(verdicts(&outbox), [(0, ErrorKind::System), (1, ErrorKind::System)]);
        assert!(text(&outbox).ends_with("no descriptors") && text(&outbox).starts_with("rank 0"));
        assert_eq!(verdicts(&root.handle_join(2, join(3, 2, 0), now)), [(2, ErrorKind::System)]);
    }

    #[test]
    fn who_does_not_get_ready_is_named() {
        let now = Instant::now();
        let mut root = Root::new();
        for rank in 0..3 {
            root.handle_join(u64::from(rank), join(3, rank, 1000), now);
        }
        root.handle_ready(1, None, now);
        let outbox = root.handle_time(now + Duration::from_secs(1));
        assert_eq!(verdicts(&outbox).len(), 3);
        assert!(text(&outbox).contains("ranks 0,2 did not get ready in time"), "{}", text(&outbox));
    }

    #[test]
    fn any_number_of_ranks_can_be_missing() {
        let now = Instant::now();
        let mut root = Root::new();
        root.handle_join(0, join(u32::MAX, 1, 1000), now);
        let outbox = root.handle_time(now + Duration::from_secs(1));
        assert!(text(&outbox).contains("ranks 0,2-4294967294 of 4294967295"), "{}", text(&outbox));
    }

    #[test]
    fn objections_are_everybodys_verdict() {
        let now = Instant::now();
        let other_version = JoinRequest { version: 8, ..join(3, 1, 0) };
        for (second, part) in [
            (join(4, 1, 0), "disagree on their number"),
            (join(3, 0, 0), "claimed twice, by process 100 and by process 100"),
            (other_version, "rank 0 runs 7, rank 1 runs 8"),
        ] {
            let mut root = Root::new();
            root.handle_join(0, join(3, 0, 0), now);
            let outbox = root.handle_join(1, second, now);
            assert_eq!(verdicts(&outbox), [(0, ErrorKind::InvalidUsage), (1, ErrorKind::InvalidUsage)]);
            assert!(text(&outbox).contains(part), "{}", text(&outbox));
        }
    }

    #[test]
    fn ids_that_differ_are_an_objection() {
        let now = Instant::now();
        let of_several = |rank, ids, stands| JoinRequest { ids, stands, ..join(4, rank, 0) };
        for (first, second) in [
            (of_several(0, 2, false), of_several(1, 4, false)),
            // Rank 2 is of the other share, and stands for it only where it says so.
            (of_several(0, 2, false), of_several(2, 2, false)),
            (of_several(2, 2, false), of_several(0, 2, false)),
            (of_several(2, 2, false), of_several(3, 2, true)),
        ] {
            let mut root = Root::new();
            assert!(root.handle_join(0, first, now).is_empty());
            let outbox = root.handle_join(1, second, now);
            assert_eq!(verdicts(&outbox), [(0, ErrorKind::InvalidUsage), (1, ErrorKind::InvalidUsage)]);
            assert!(text(&outbox).contains("disagree on the unique ids"), "{}", text(&outbox));
        }
        let outbox = Root::new().handle_join(0, of_several(0, 5, false), now);
        assert_eq!(
            text(&outbox),
            "rank 0 of 4 with 5 unique ids; need a rank below the number of ranks, and from one id to as many as ranks"
        );
    }

    #[test]
    fn a_rank_that_fails_or_leaves_ends_it_for_all() {
        let now = Instant::now();
        let mut root = Root::new();
        root.handle_join(0, join(2, 0, 0), now);
        assert_eq!(verdicts(&root.handle_closed(0, now)).len(), 1);

        let mut root = Root::new();
        root.handle_join(0, join(2, 0, 0), now);
        root.handle_join(1, join(2, 1, 0), now);
        let outbox = root.handle_ready(1, Some((ErrorKind::System, "no memory".into())), now);
        assert_eq!(verdicts(&outbox), [(0, ErrorKind::System), (1, ErrorKind::System)]);
        assert!(text(&outbox).contains("rank 1 could not be set up: no memory"));
    }
}
