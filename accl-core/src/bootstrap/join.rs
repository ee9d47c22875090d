//! A rank's side: it connects to the root, proves itself, learns who the others are, and hears the verdict.

use super::auth::{Greeting, Proof, Role, Secret};
use super::hearing::Hearing;
use super::id::{Creator, Invitation, Meeting, UniqueId};
use super::meet::reach_root;
use super::pre_shared;
use super::presence::Presence;
use super::relay::{Hold, seek};
use super::share::{ranks_of, share_of};
use super::tree::STAR_RANKS;
use super::wire::{MEMBER_BYTES, Message, PeerRecord};
use crate::config::Network;
use crate::encryption::{Session, Socket};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, network, random, socket, tcp};
use crate::topo::{Uplink, interface_of};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much longer than its own patience a rank waits for the root, which keeps the time.
const GRACE: Duration = Duration::from_secs(5);
/// How long "for ever" is.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the other side of a connection may take for its proof.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// A connection whose other side has proved that it knows the secret.
pub(super) struct Trusted<'a> {
    stream: Socket,
    inbox: Vec<u8>,
    descriptor: Option<OwnedFd>,
    give_up: &'a dyn Fn() -> Result<()>,
}

impl std::fmt::Debug for Trusted<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Trusted").finish_non_exhaustive()
    }
}

impl AsFd for Trusted<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<'a> Trusted<'a> {
    /// Makes both sides prove themselves. `closed` explains a listener that hangs up on us.
    pub(super) fn greet(
        stream: OwnedFd,
        secret: Secret,
        closed: &str,
        give_up: &'a dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let mut connection = Self::new(stream, Vec::new(), give_up);
        let client = random::bytes()?;
        let deadline = clock::now() + GREETING_PATIENCE;
        let hello = Message::Hello { protocol: super::PROTOCOL, token: secret.token(), nonce: client };
        connection.send(&hello, deadline)?;
        let answer = connection.receive(deadline).map_err(|error| match error.kind() {
            ErrorKind::Remote => Error::usage(closed),
            ErrorKind::Timeout => error.within(
                "the process at the other end of a local socket does not prove itself; it may be stopped",
            ),
            _ => error,
        })?;
        let Message::Challenge { nonce: server, proof } = answer else { return Err(unexpected(answer)) };
        let greeting = Greeting { secret, client, server };
        if !greeting.accepts(&proof, Role::Server) {
            return Err(Error::usage(
                "the process that answered does not know the secret of this unique id; make an id anew for each job, and give the \
                 same one to all ranks",
            ));
        }
        // What stays within a host is not encrypted; that keys differ is told all the same.
        connection.answer(&greeting, &proof, "another process of this host", deadline)?;
        Ok(connection)
    }

    /// A connection on which `inbox` has come.
    pub(super) fn new(stream: OwnedFd, inbox: Vec<u8>, give_up: &'a dyn Fn() -> Result<()>) -> Self {
        Self { stream: stream.into(), inbox, descriptor: None, give_up }
    }

    /// Proves this side to `whom`, whose proof was accepted, and encrypts from here on if both have the same key.
    pub(super) fn prove(
        mut self,
        greeting: &Greeting,
        proof: &Proof,
        whom: &str,
        deadline: Instant,
    ) -> Result<Self> {
        if let Some(session) = self.answer(greeting, proof, whom, deadline)? {
            self.stream.seal(session, std::mem::take(&mut self.inbox));
        }
        Ok(self)
    }

    /// Sends this side's proof; what to encrypt with, if both have the same key.
    fn answer(
        &mut self,
        greeting: &Greeting,
        proof: &Proof,
        whom: &str,
        deadline: Instant,
    ) -> Result<Option<Session>> {
        let key = pre_shared::key();
        let ours = greeting.prove(Role::Client, key.as_ref());
        let agreed = greeting.agree(proof, Role::Server, key.as_ref());
        // If they differ, the other side is to know, too.
        let sent = self.send(&Message::Proof(ours), deadline);
        let session = agreed.map_err(|difference| difference.between(whom, &pre_shared::here()))?;
        sent.map(|()| session)
    }

    /// What this connection says of the way to other hosts, if it leads to one; what settings say goes before.
    fn uplink(&self, settings: &Network) -> Uplink {
        let socket = self.as_fd();
        let mut uplink = Uplink::default();
        if let (Some(here), Some(there)) = (network::local_ip(socket), network::peer_ip(socket))
            && here != there
        {
            // In whole microseconds, of which there are none on a network in memory.
            let us = tcp::round_trip(socket).map(|time| time.as_micros().max(1));
            uplink.round_trip_us = us.map_or(0, |us| u32::try_from(us).unwrap_or(u32::MAX));
            // What cannot be found out is not known: no reason to fail.
            let interfaces = network::interfaces().unwrap_or_default();
            let speed = interface_of(&interfaces, here).and_then(network::speed_mbps);
            uplink.bandwidth_mbps = speed.unwrap_or(0);
        }
        if let Some(us) = settings.latency_us {
            uplink.round_trip_us = us.saturating_mul(2);
        }
        uplink.bandwidth_mbps = settings.bandwidth_mbps.unwrap_or(uplink.bandwidth_mbps);
        uplink
    }

    /// The socket, if everything that came on it has been taken.
    pub(super) fn into_socket(self) -> Result<Socket> {
        if self.inbox.is_empty() { Ok(self.stream) } else { Err(Error::remote("data before its time")) }
    }

    pub(super) fn send(&mut self, message: &Message, deadline: Instant) -> Result<()> {
        self.stream.send_all(&message.encode(), deadline, self.give_up)
    }

    /// The next message before `deadline`.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message> {
        loop {
            if let Some(message) = Message::decode(&mut self.inbox, MEMBER_BYTES)? {
                return Ok(message);
            }
            let mut head = [0u8; 4];
            let have = self.inbox.len().min(4);
            head[..have].copy_from_slice(&self.inbox[..have]);
            let missing = if have < 4 {
                4 - have
            } else {
                (4 + u32::from_le_bytes(head) as usize).saturating_sub(self.inbox.len()).min(MEMBER_BYTES)
            };
            let mut buffer = vec![0; missing.max(1)];
            let extra = self.stream.receive_exact(&mut buffer, deadline, self.give_up)?;
            self.descriptor = extra.or_else(|| self.descriptor.take());
            self.inbox.extend(buffer);
        }
    }

    /// True if there is something to receive, or the other side is gone.
    pub(super) fn has_word(&self) -> bool {
        !self.inbox.is_empty()
            || self.stream.has_waiting()
            || socket::wait_readable(&[self.stream.as_fd()], Duration::ZERO).unwrap_or(true)
    }

    /// A descriptor that came with a message.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }
}

/// The error that a message which makes no sense here stands for.
pub(super) fn unexpected(message: Message) -> Error {
    match message {
        Message::Failure(kind, text) => Error::new(kind, text),
        other => Error::internal(format!("an answer that makes no sense here: {other:?}")),
    }
}

/// A rank that has been let in, and that all others know of.
#[derive(Debug)]
pub struct Membership<'a> {
    /// All ranks, in order.
    pub peers: Arc<[PeerRecord]>,
    /// What only they know.
    pub secret: Secret,
    hearing: Hearing<'a>,
    /// Why other hosts cannot reach this process, if they cannot.
    reachable: Result<()>,
    /// What this process hands on of the list, if the ranks are many.
    _hold: Option<Hold>,
    /// Others have been told of it.
    _presence: Presence,
}

/// What a rank asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// How many ranks there are.
    pub ranks: usize,
    /// Which one this is.
    pub rank: usize,
    /// The library's version.
    pub version: i32,
    /// How long to wait for the others; none is for ever.
    pub patience: Option<Duration>,
    /// Its calls are made in the memory of a device.
    pub on_device: bool,
    /// It has ports for RDMA.
    pub has_verbs: bool,
    /// A number for the network plugin that it can use; 0 for none.
    pub plugin: u64,
    /// What the settings say of networks.
    pub network: &'a Network,
}

/// Joins the others who hold the same ids: each of them gathers a share of the ranks. `give_up` is asked every tenth of
/// a second while waiting.
pub fn join<'a>(
    ids: &[UniqueId],
    request: Request<'_>,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Membership<'a>> {
    let (ranks, rank) = (request.ranks as u32, request.rank as u32);
    let ids = several(ids);
    let count = ids.len() as u32;
    if count == 0 || count > ranks || rank >= ranks {
        return Err(Error::argument(format!(
            "rank {rank} of {ranks} with {count} unique ids; need a rank below the number of ranks, and from one id to as many as ranks"
        )));
    }
    let share = share_of(rank, ranks, count);
    let (invitation, first) = (ids[share as usize].decode()?, ids[0].decode()?);
    accept((invitation, first), (share, count), request, give_up)
}

/// Joins others who have met before: in the process of their new rank 0, which `first` is the record of, by a `secret` that is
/// theirs alone and was never used.
pub fn rejoin<'a>(
    first: &PeerRecord,
    secret: Secret,
    request: Request<'_>,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Membership<'a>> {
    let meeting = Meeting::Known(Creator {
        neighbourhood: first.place.neighbourhood(),
        pid: first.place.pid,
        process: first.place.process,
        port: first.port,
        addresses: first.addresses.clone(),
    });
    let invitation = Invitation { secret, meeting };
    accept((invitation.clone(), invitation), (0, 1), request, give_up)
}

/// Goes where the own invitation says, which is that of one `share` of `count`; and, for some, to the first one's, too.
fn accept<'a>(
    (invitation, first): (Invitation, Invitation),
    (share, count): (u32, u32),
    request: Request<'_>,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Result<Membership<'a>> {
    pre_shared::encrypts(request.network)?;
    let begin = clock::now();
    let limit = begin + request.patience.unwrap_or(FOR_EVER);
    let (ranks, rank) = (request.ranks as u32, request.rank as u32);
    // Where the ids have no port, no rank of another host can have come.
    let presence = if [&invitation, &first].iter().all(|id| id.is_local()) {
        Presence::at_home(request.network)?
    } else {
        Presence::of(request.network)?
    };
    stagger(&request, limit, give_up)?;
    let (mut own, root) = reach_root(&invitation, &request, limit, give_up)?;
    let deadline = clock::now() + request.patience.map_or(FOR_EVER, |patience| patience + GRACE);
    let record = PeerRecord {
        uplink: own.uplink(request.network),
        on_device: request.on_device,
        has_verbs: request.has_verbs,
        plugin: request.plugin,
        ..presence.record()?
    };
    let join = |stands| Message::Join {
        ranks,
        rank,
        ids: count,
        stands,
        version: request.version,
        patience_ms: request.patience.map_or(0, |patience| {
            patience.saturating_sub(clock::now().saturating_duration_since(begin)).as_millis().max(1) as u64
        }),
        record: record.clone(),
    };
    let many = request.ranks > STAR_RANKS || count > 1;
    let hold = if many { Some(Hold::open(first.secret)?) } else { None };
    own.send(&join(false), deadline).map_err(|error| lost(error, &root))?;
    let mut hearing = Hearing { own, root, trunk: None, in_branch: share > 0, deadline, give_up };
    if share > 0 && ranks_of(share, ranks, count).start == rank {
        let reach = || reach_root(&first, &request, limit, give_up).map(|(trunk, _)| trunk);
        hearing.stand(reach, &join(true))?;
    }
    learn(hearing, hold, request, first.secret, presence)
}

/// Gets the list of all ranks, and hands it on.
fn learn<'a>(
    mut hearing: Hearing<'a>,
    hold: Option<Hold>,
    request: Request<'_>,
    secret: Secret,
    presence: Presence,
) -> Result<Membership<'a>> {
    let learned = hearing.hear().and_then(|message| match (message, &hold) {
        (Message::Roster(peers), _) => Ok(peers),
        (Message::Seek(parent), Some(hold)) => {
            seek(&mut hearing, parent.as_ref(), (hold, secret), request.network)
        }
        (other, _) => Err(unexpected(other)),
    });
    let peers = learned.inspect_err(|error| hearing.tell_lack(error))?;
    if peers.len() != request.ranks {
        return Err(Error::internal(format!("a list of {} ranks, not {}", peers.len(), request.ranks)));
    }
    if let Some(hold) = &hold {
        hold.put(&peers);
    }
    let reachable = presence.check();
    Ok(Membership { peers, secret, hearing, reachable, _hold: hold, _presence: presence })
}

/// One id where they are the same, as they all are with COMM_ID.
fn several(ids: &[UniqueId]) -> &[UniqueId] {
    let distinct: HashSet<_> = ids.iter().map(|id| id.0).collect();
    if distinct.len() == ids.len() { ids } else { &ids[..1] }
}

/// Where there are very many ranks, they do not all come at once.
fn stagger(request: &Request<'_>, deadline: Instant, give_up: &dyn Fn() -> Result<()>) -> Result<()> {
    let turn = (clock::now() + request.network.stagger.delay(request.ranks, request.rank)).min(deadline);
    loop {
        let left = turn.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Ok(());
        }
        give_up()?;
        clock::sleep(left.min(Duration::from_millis(100)));
    }
}

impl Membership<'_> {
    /// An error if other hosts cannot reach this process, with the reason.
    pub fn check_reachable(&self) -> Result<()> {
        self.reachable.clone()
    }

    /// An error if the verdict has come before this rank was ready: somebody else has failed.
    pub fn check_verdict(&self) -> Result<()> {
        if self.hearing.has_word() {
            return Err(Error::remote("another rank could not be set up"));
        }
        Ok(())
    }

    /// Says whether this rank has set itself up, and returns everybody's verdict.
    pub fn confirm(mut self, outcome: Result<()>) -> Result<()> {
        let failure = outcome.as_ref().err().map(|error| (error.kind(), error.text().to_string()));
        // Whoever cannot say so may be too late: the verdict has come, and the root has hung up.
        let said = self.hearing.say(&Message::Ready(failure));
        match (self.hearing.hear(), said) {
            (Ok(Message::Go), _) => outcome,
            (Ok(other), _) => Err(unexpected(other)),
            (Err(_), Err(unsaid)) => Err(unsaid),
            (Err(error), Ok(())) => {
                self.hearing.tell_lack(&error);
                Err(error)
            }
        }
    }
}

pub(super) fn lost(error: Error, root: &str) -> Error {
    match error.kind() {
        ErrorKind::Remote => error.within(format!("{root} ended")),
        ErrorKind::Timeout => {
            error.within(format!("{root} does not answer; it may be stopped (ACCL_INIT_TIMEOUT)"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::Place;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn request(network: &Network) -> Request<'_> {
        Request {
            ranks: 1,
            rank: 0,
            version: 1,
            patience: Some(Duration::from_secs(10)),
            on_device: false,
            has_verbs: false,
            plugin: 0,
            network,
        }
    }

    #[test]
    fn a_silent_crowd_does_not_keep_a_rank_out() {
        let id = UniqueId::create().unwrap();
        let service = Place::here().unwrap().service_name();
        let crowd: Vec<_> = (0..300).map(|_| socket::connect(&service).unwrap().unwrap()).collect();
        join(&[id], request(&Network::default()), &|| Ok(())).unwrap().confirm(Ok(())).unwrap();
        drop(crowd);
    }

    /// The same id as somebody of another host would read it: that local socket is not to be seen.
    fn from_elsewhere(id: &UniqueId) -> UniqueId {
        let mut invitation = id.decode().unwrap();
        let Meeting::Created(creator) = &mut invitation.meeting else { panic!() };
        creator.neighbourhood ^= 1;
        UniqueId::encode(&invitation).unwrap()
    }

    #[test]
    fn ranks_come_over_tcp_hear_the_verdict_and_what_became_of_a_used_id() {
        const RANKS: usize = 24;
        let here = UniqueId::create().unwrap();
        let elsewhere = from_elsewhere(&here);
        let network = Network::default();
        let network = &network;
        let join_as = |rank: usize| {
            let id = if rank.is_multiple_of(3) { here } else { elsewhere };
            join(&[id], Request { ranks: RANKS, rank, ..request(network) }, &|| Ok(()))
        };
        std::thread::scope(|scope| {
            let join_as = &join_as;
            let ranks = (0..RANKS).map(|rank| {
                scope.spawn(move || {
                    let membership = join_as(rank)?;
                    assert_eq!(membership.peers.len(), RANKS);
                    assert!(
                        membership
                            .peers
                            .iter()
                            .all(|peer| peer.port > 0 && peer.shares_host(&membership.peers[0]))
                    );
                    membership.check_verdict()?;
                    membership.confirm(Ok(()))
                })
            });
            for rank in ranks.collect::<Vec<_>>() {
                rank.join().unwrap().unwrap();
            }
        });
        let late = join_as(1).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::InvalidUsage);
        assert!(late.text().contains("already used"), "{late}");
    }

    /// Outcomes of so many ranks of this process, of which one may fail.
    fn join_many(ranks: usize, ids: usize, fails: Option<usize>) -> Vec<Result<()>> {
        let ids: Vec<_> = (0..ids).map(|_| UniqueId::create().unwrap()).collect();
        let network = Network::default();
        std::thread::scope(|scope| {
            let (ids, network) = (&ids, &network);
            let ranks = (0..ranks).map(|rank| {
                scope.spawn(move || {
                    let request = Request { ranks, rank, ..request(network) };
                    let membership = join(ids, request, &|| Ok(()))?;
                    assert_eq!(membership.peers.len(), ranks);
                    assert_eq!(membership.secret, ids[0].decode()?.secret);
                    let failure = || Err(Error::system("no memory", "ENOMEM"));
                    membership.confirm(if fails == Some(rank) { failure() } else { Ok(()) })
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_of_a_process_share_the_list_that_one_of_them_gets() {
        for (ranks, ids) in [(STAR_RANKS + 8, 1), (STAR_RANKS + 8, 3), (7, 3), (2, 2)] {
            for outcome in join_many(ranks, ids, None) {
                outcome.unwrap();
            }
        }
    }

    #[test]
    fn a_failure_is_heard_by_the_ranks_of_all_ids() {
        for (ids, fails) in [(1, 30), (3, 0), (3, 14), (3, 39)] {
            for outcome in join_many(40, ids, Some(fails)) {
                let error = outcome.unwrap_err();
                assert_eq!(error.text(), format!("rank {fails} could not be set up: no memory: ENOMEM"));
            }
        }
    }

    #[test]
    fn the_missing_of_any_share_are_named() {
        let ids: Vec<_> = (0..2).map(|_| UniqueId::create().unwrap()).collect();
        let network = Network::default();
        let patience = Some(Duration::from_millis(300));
        std::thread::scope(|scope| {
            let ranks = [0, 1, 2].map(|rank| {
                let request = Request { ranks: 4, rank, patience, ..request(&network) };
                let ids = &ids;
                scope.spawn(move || join(ids, request, &|| Ok(())).unwrap_err())
            });
            for rank in ranks {
                let error = rank.join().unwrap();
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert!(error.text().starts_with("rank 3 of 4 did not come in time"), "{error}");
            }
        });
    }

    #[test]
    fn a_failure_of_one_rank_is_heard_over_tcp() {
        let id = from_elsewhere(&UniqueId::create().unwrap());
        let network = Network::default();
        let outcomes = std::thread::scope(|scope| {
            let (id, network) = (&id, &network);
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        let membership =
                            join(&[*id], Request { ranks: 3, rank, ..request(network) }, &|| Ok(())).unwrap();
                        let outcome =
                            if rank == 2 { Err(Error::system("no memory", "ENOMEM")) } else { Ok(()) };
                        membership.confirm(outcome).unwrap_err()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        for error in outcomes {
            assert_eq!(error.kind(), ErrorKind::System);
            assert_eq!(error.text(), "rank 2 could not be set up: no memory: ENOMEM");
        }
    }

    #[test]
    fn a_rank_that_is_late_for_the_verdict_hears_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let verdict = Message::Failure(ErrorKind::Remote, "rank 2 left".to_string());
        (&theirs).write_all(&verdict.encode()).unwrap();
        drop(theirs);
        let connection = Trusted::new(ours.into(), Vec::new(), &|| Ok(()));
        let deadline = clock::now() + Duration::from_secs(10);
        let hearing = Hearing {
            own: connection,
            root: String::new(),
            trunk: None,
            in_branch: false,
            deadline,
            give_up: &|| Ok(()),
        };
        let membership = Membership {
            peers: Vec::new().into(),
            secret: Secret::random().unwrap(),
            hearing,
            reachable: Ok(()),
            _hold: None,
            _presence: Presence::of(&Network::default()).unwrap(),
        };
        let error = membership.confirm(Ok(())).unwrap_err();
        assert_eq!((error.kind(), error.text()), (ErrorKind::Remote, "rank 2 left"));
    }
}
