//! The gathering of one unique id: who has come, and the verdict. No I/O and no clock.
//!
//! gathering → preparing → ended. Everybody who joined hears the same verdict; those who come later hear it too.

use super::tree::{Source, sources};
use super::wire::{Message, PeerRecord};
use crate::error::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Which connection a rank is on.
pub(super) type Connection = u64;

/// What is to be sent, and to whom.
pub(super) type Outbox = Vec<(Connection, Message)>;

#[derive(Debug)]
struct Member {
    connection: Connection,
    version: i32,
    record: PeerRecord,
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
    ranks: u32,
    members: BTreeMap<u32, Member>,
    deadline: Option<Instant>,
}

/// A rank's request.
#[derive(Debug)]
pub(super) struct JoinRequest {
    pub(super) ranks: u32,
    pub(super) rank: u32,
    pub(super) version: i32,
    pub(super) patience_ms: u64,
    pub(super) record: PeerRecord,
}

impl Root {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Gathering, ranks: 0, members: BTreeMap::new(), deadline: None }
    }

    /// When [`Root::handle_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Ended { .. }) { None } else { self.deadline }
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
        if self.members.is_empty() {
            self.ranks = join.ranks;
        }
        let (rank, patience_ms) = (join.rank, join.patience_ms);
        let member = Member { connection, version: join.version, record: join.record };
        if let Some(error) = objection {
            // The newcomer hears the verdict like everybody else, under a number that no rank has.
            self.members.insert(u32::MAX, member);
            return self.end(Some(error), now);
        }
        self.members.insert(rank, member);
        if let (true, Some(deadline)) = (patience_ms > 0, now.checked_add(Duration::from_millis(patience_ms)))
        {
            self.deadline = Some(self.deadline.map_or(deadline, |old| old.min(deadline)));
        }
        if self.members.len() < self.ranks as usize {
            return Vec::new();
        }
        self.phase = Phase::Preparing { ready: BTreeSet::new() };
        self.hand_out()
    }

    /// The list of all ranks, or where each can get it.
    fn hand_out(&self) -> Outbox {
        let roster: Vec<_> = self.members.values().map(|member| member.record.clone()).collect();
        let sources = sources(&roster);
        let roster = Message::Roster(roster.into());
        let answers = self.members.values().zip(sources).map(|(member, source)| {
            let answer = match source {
                Source::Root => roster.clone(),
                Source::ProcessOf(rank) => {
                    let parent = self.members.get(&(rank as u32));
                    Message::Seek(parent.map(|parent| parent.record.clone()))
                }
                Source::OwnProcess => Message::Seek(None),
            };
            (member.connection, answer)
        });
        answers.collect()
    }

    /// A rank could not get the list from where it was told to.
    pub(super) fn handle_fetch(&self, connection: Connection) -> Outbox {
        if !matches!(self.phase, Phase::Preparing { .. }) {
            return Vec::new();
        }
        let roster: Vec<_> = self.members.values().map(|member| member.record.clone()).collect();
        vec![(connection, Message::Roster(roster.into()))]
    }

    /// How many ranks may be on their way.
    pub(super) fn expected(&self) -> usize {
        if matches!(self.phase, Phase::Gathering) { self.ranks as usize } else { 0 }
    }

    pub(super) fn handle_ready(
        &mut self,
        connection: Connection,
        failure: Option<(ErrorKind, String)>,
        now: Instant,
    ) -> Outbox {
        let Phase::Preparing { ready } = &mut self.phase else { return Vec::new() };
        if let Some((kind, text)) = failure {
            let rank = self.members.iter().find(|(_, member)| member.connection == connection);
            let rank = rank.map_or(u32::MAX, |(rank, _)| *rank);
            return self.end(Some(Error::new(kind, format!("rank {rank} could not be set up: {text}"))), now);
        }
        ready.insert(connection);
        if ready.len() == self.members.len() { self.end(None, now) } else { Vec::new() }
    }

    pub(super) fn handle_closed(&mut self, connection: Connection, now: Instant) -> Outbox {
        if matches!(self.phase, Phase::Ended { .. }) {
            return Vec::new();
        }
        let Some((rank, member)) = self.members.iter().find(|(_, member)| member.connection == connection)
        else {
            return Vec::new();
        };
        let error = Error::remote(format!(
            "rank {rank} ({}) left while the communicator was being made",
            member.record.describe()
        ));
        self.end(Some(error), now)
    }

    pub(super) fn handle_time(&mut self, now: Instant) -> Outbox {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let missing = self.missing();
        let text = if missing.is_empty() {
            "not all ranks could set themselves up in time (ACCL_INIT_TIMEOUT)".to_string()
        } else {
            format!(
                "{} of {} did not come in time (ACCL_INIT_TIMEOUT): they have not called ncclCommInitRank with this unique id, or cannot reach this host",
                crate::types::named_runs(&missing),
                self.ranks
            )
        };
        self.end(Some(Error::new(ErrorKind::Timeout, text)), now)
    }

    /// Who has not come, in runs: a wrong number of ranks may be any number.
    fn missing(&self) -> Vec<(usize, usize)> {
        let mut next = 0;
        let mut missing = Vec::new();
        for rank in self.members.keys().copied().chain([self.ranks]) {
            if rank > next {
                missing.push((next as usize, rank as usize - 1));
            }
            next = rank.saturating_add(1);
        }
        missing
    }

    /// Why this rank cannot be let in.
    fn objection(&self, join: &JoinRequest) -> Option<Error> {
        let Some((first_rank, first)) = self.members.first_key_value() else {
            return (join.rank >= join.ranks)
                .then(|| Error::argument(format!("rank {} of {}", join.rank, join.ranks)));
        };
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
        let other = self.members.get(&join.rank)?;
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
        let outbox = self.to_all(&message);
        self.phase = Phase::Ended { error, at: now };
        self.members.clear();
        outbox
    }

    fn to_all(&self, message: &Message) -> Outbox {
        self.members.values().map(|member| (member.connection, message.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::Place;

    fn join(ranks: u32, rank: u32, patience_ms: u64) -> JoinRequest {
        let record =
            PeerRecord { place: Place { pid: 100 + rank, ..Place::default() }, ..PeerRecord::default() };
        JoinRequest { ranks, rank, version: 7, patience_ms, record }
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
