//! Connections that carry data between ranks of different hosts: one side dials, the other takes in.
//!
//! The service of a process listens for all of its ranks. A connection to its port that proves the communicator's
//! secret for links and then asks for a rank ([`LinkRequest`]) is acknowledged, and handed to that rank's [`LinkSink`]; from
//! then on not a byte of it is the service's.

use super::auth::Secret;
use super::dial::{Dial, Found};
use super::join::unexpected;
use super::service::Service;
use super::wire::{Message, PeerRecord};
use crate::config::{Network, Retries};
use crate::encryption::Socket;
use crate::error::{Error, ErrorKind, Result};
use crate::os::network;
use crate::topo::{Place, Route, targets};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a new connection is for. All of it is the transport's to interpret, except `to_rank`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkRequest {
    /// The rank that dials.
    pub from_rank: u32,
    /// The rank that is dialled: several of a communicator may live in one process.
    pub to_rank: u32,
    /// Which kind of link.
    pub purpose: u8,
    /// Which of several.
    pub index: u16,
}

/// Takes connections in for one rank.
pub trait LinkSink: Send + Sync + std::fmt::Debug {
    /// A connection whose other side has proved that it belongs to the communicator. Non-blocking, TCP_NODELAY, with
    /// keep-alive; nothing was read from it that is not the service's. Called on the service's thread: must not wait.
    /// The same request may come again, when a dialler gave up in the last moment.
    fn accept(&self, request: LinkRequest, socket: Socket);

    /// The connection will be handed over, unless [`LinkSink::forget`] says that it will not. Whoever dialled hears that it
    /// was let in only after this.
    fn expect(&self, request: LinkRequest) {
        let _ = request;
    }

    /// The connection has broken before it was handed over.
    fn forget(&self, request: LinkRequest) {
        let _ = request;
    }
}

/// Connections are taken in until this is dropped; the process's TCP port stays open as long.
#[derive(Debug)]
pub struct LinkExpectation {
    service: Arc<Service>,
    secret: Secret,
    rank: u32,
}

/// The secret that diallers prove, made one way from the communicator's.
pub fn link_secret(communicator: Secret) -> Secret {
    communicator.derive(b"links")
}

/// Has `sink` take in the connections to `rank` of those who prove `secret` ([`link_secret`]). Hold a
/// [`super::Presence`] meanwhile, or have held one before: it opens the port.
pub fn expect_links(secret: Secret, rank: u32, sink: Arc<dyn LinkSink>) -> Result<LinkExpectation> {
    let service = Service::of_process()?;
    service.expect_links(secret, rank, sink)?;
    Ok(LinkExpectation { service, secret, rank })
}

impl Drop for LinkExpectation {
    fn drop(&mut self) {
        self.service.withdraw_links(self.secret, self.rank);
    }
}

/// By which address a process was reached: the next link goes there first.
static REACHED: Mutex<Option<HashMap<(u64, u16), IpAddr>>> = Mutex::new(None);
/// How long somebody who was found may take to let a connection in.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// More are not remembered.
const MOST_REACHED: usize = 1 << 14;

/// The address by which a process was reached for a link, if one was made from here.
pub fn reached(peer: &PeerRecord) -> Option<IpAddr> {
    REACHED.lock().as_ref().and_then(|reached| reached.get(&(peer.place.process, peer.port)).copied())
}

/// Connects to the process of `peer`, on behalf of `request.from_rank`. Tries the addresses that it told, in order, a
/// new one every quarter of a second, and those that fail again, until one of them proves `secret` or `deadline`
/// comes; asks `give_up` every tenth of a second.
///
/// The socket is non-blocking, TCP_NODELAY, with keep-alive, and what the peer's [`LinkSink`] writes on it is unread.
pub fn dial_link(
    peer: &PeerRecord,
    secret: Secret,
    request: LinkRequest,
    settings: &Network,
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Socket> {
    let dial = Dial {
        addresses: addresses_of(peer, reached(peer), settings)?,
        by: None,
        retries: settings.retries,
        ..to_peer(peer, secret, request, deadline, give_up)
    };
    let (socket, address) = ask(&dial, request, deadline)?;
    let mut all = REACHED.lock();
    let all = all.get_or_insert_default();
    if all.len() >= MOST_REACHED {
        all.clear();
    }
    all.insert((peer.place.process, peer.port), address.ip());
    Ok(socket)
}

/// The same by one route only.
pub fn dial_route(
    peer: &PeerRecord,
    secret: Secret,
    request: LinkRequest,
    route: &Route,
    deadline: Instant,
    give_up: &dyn Fn() -> Result<()>,
) -> Result<Socket> {
    let dial = Dial {
        addresses: vec![route.target(peer.port)],
        by: route.by.clone(),
        ..to_peer(peer, secret, request, deadline, give_up)
    };
    // Who has come so far is not left alone: the peer would count on a connection that ends.
    ask(&dial, request, deadline + ANSWER_PATIENCE).map(|(socket, _)| socket)
}

/// A dial without addresses.
fn to_peer<'a>(
    peer: &PeerRecord,
    secret: Secret,
    request: LinkRequest,
    deadline: Instant,
    give_up: &'a dyn Fn() -> Result<()>,
) -> Dial<'a> {
    Dial {
        whom: format!("rank {} ({})", request.to_rank, peer.describe()),
        addresses: Vec::new(),
        by: None,
        secret,
        deadline,
        hung_up: (ErrorKind::Remote, "it does not wait for links of this communicator (any more)"),
        may_come_late: false,
        retries: Retries::default(),
        told: peer.addresses.clone(),
        give_up,
    }
}

/// Finds the peer and asks it to let this connection in.
fn ask(dial: &Dial<'_>, request: LinkRequest, deadline: Instant) -> Result<(Socket, SocketAddr)> {
    let Found { mut connection, address } = dial.run()?;
    connection.send(&Message::Link(request), deadline)?;
    match connection.receive(deadline).map_err(|error| error.within(format!("no link to {}", dial.whom)))? {
        Message::LinkAccepted => Ok((connection.into_socket()?, address)),
        other => Err(unexpected(other)),
    }
}

pub(super) fn addresses_of(
    peer: &PeerRecord,
    known: Option<IpAddr>,
    settings: &Network,
) -> Result<Vec<SocketAddr>> {
    if peer.port == 0 {
        return Err(Error::remote(format!("{} listens on no TCP port", peer.describe())));
    }
    let mut all = targets(&peer.addresses, peer.port, &network::interfaces()?, settings.family);
    if peer.place.shares_host(&Place::here()?) {
        let home = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let home = home.into_iter().filter(|ip| {
            settings.family.is_none_or(|family| network::Family::of(*ip) == family)
                && !peer.addresses.contains(ip)
        });
        // Told addresses first: they say what the user chose.
        all.extend(home.map(|ip| SocketAddr::new(ip, peer.port)));
    }
    all.sort_by_key(|address| Some(address.ip()) != known);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::Presence;
    use super::*;
    use crate::os::clock;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::JoinHandle;

    #[derive(Debug, Default)]
    struct Guests(Mutex<Vec<(LinkRequest, Socket)>>);

    impl LinkSink for Guests {
        fn accept(&self, request: LinkRequest, socket: Socket) {
            self.0.lock().push((request, socket));
        }
    }

    fn soon() -> Instant {
        clock::now() + Duration::from_secs(20)
    }

    fn read(socket: &Socket) -> u8 {
        let mut byte = [0];
        socket.receive_exact(&mut byte, soon(), &|| Ok(())).unwrap();
        byte[0]
    }

    #[test]
    fn a_link_reaches_the_rank_that_is_meant_and_carries_bytes_both_ways() {
        let settings = Network::default();
        let presence = Presence::of(&settings).unwrap();
        let peer = presence.record().unwrap();
        let secret = link_secret(Secret::random().unwrap());
        let guests = [Arc::new(Guests::default()), Arc::new(Guests::default())];
        let mut expectations: Vec<_> = (0..2u32)
            .map(|rank| expect_links(secret, 4 + rank, guests[rank as usize].clone()).unwrap())
            .collect();
        drop(presence);
        for round in 0..2 {
            let request = LinkRequest { from_rank: 9, to_rank: 5, purpose: 3, index: round };
            let ours = dial_link(&peer, secret, request, &settings, soon(), &|| Ok(())).unwrap();
            ours.send_all(&[7], soon(), &|| Ok(())).unwrap();
            let (asked, theirs) = loop {
                if let Some(guest) = guests[1].0.lock().pop() {
                    break guest;
                }
                clock::sleep(Duration::from_millis(1));
            };
            assert_eq!(asked, request);
            assert_eq!(read(&theirs), 7);
            theirs.send_all(&[8], soon(), &|| Ok(())).unwrap();
            assert_eq!(read(&ours), 8);
        }
        assert!(guests[0].0.lock().is_empty());

        let stranger = LinkRequest { from_rank: 9, to_rank: 6, purpose: 0, index: 0 };
        let error = dial_link(&peer, secret, stranger, &settings, soon(), &|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Remote);
        assert!(error.text().contains("rank 9 wants a link to rank 6, which is not in process"), "{error}");

        expectations.remove(0);
        let gone = LinkRequest { to_rank: 4, ..stranger };
        let error = dial_link(&peer, secret, gone, &settings, soon(), &|| Ok(())).unwrap_err();
        assert!(error.text().contains("to rank 4, which is not in process"), "{error}");
    }

    #[test]
    fn who_does_not_know_the_secret_gets_no_link() {
        let settings = Network::default();
        let presence = Presence::of(&settings).unwrap();
        let guests = Arc::new(Guests::default());
        let secret = Secret::random().unwrap();
        let _expectation = expect_links(secret, 0, guests.clone()).unwrap();
        let request = LinkRequest { from_rank: 1, to_rank: 0, purpose: 0, index: 0 };
        let peer = presence.record().unwrap();
        let other = Secret::random().unwrap();
        let error = dial_link(&peer, other, request, &settings, soon(), &|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
        assert!(error.text().contains("it does not wait for links of this communicator"), "{error}");
        let gives_up = || Err(Error::usage("enough"));
        let error = dial_link(&peer, secret, request, &settings, soon(), &gives_up).unwrap_err();
        assert_eq!(error.text(), "enough");
        assert!(guests.0.lock().is_empty());
    }

    /// Passes what two connections say on to each other; what the dialler said, when both are done.
    fn overhear(dialler: TcpStream, listener: TcpStream) -> JoinHandle<Vec<u8>> {
        let (mut from, mut to) = (dialler.try_clone().unwrap(), listener.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut &listener, &mut &dialler));
        std::thread::spawn(move || {
            let (mut said, mut piece) = (Vec::new(), [0; 512]);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                said.extend(&piece[..count]);
                to.write_all(&piece[..count]).unwrap();
            }
            said
        })
    }

    #[test]
    fn who_repeats_what_was_overheard_gets_no_link() {
        let settings = Network::default();
        let presence = Presence::of(&settings).unwrap();
        let secret = link_secret(Secret::random().unwrap());
        let guests = Arc::new(Guests::default());
        let _expectation = expect_links(secret, 0, guests.clone()).unwrap();
        let port = presence.port();
        // In the way, as the peer's record says where to go.
        let middle = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let record = presence.record().unwrap();
        let peer = PeerRecord {
            port: middle.local_addr().unwrap().port(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ..record
        };
        let listening = std::thread::spawn(move || {
            let dialler = middle.accept().unwrap().0;
            overhear(dialler, TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).join().unwrap()
        });
        let request = LinkRequest { from_rank: 1, to_rank: 0, purpose: 0, index: 0 };
        drop(dial_link(&peer, secret, request, &settings, soon(), &|| Ok(())).unwrap());
        let said = listening.join().unwrap();
        assert!(said.len() > 64, "{said:?}");

        let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        again.write_all(&said).unwrap();
        again.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        // The listener's own proof, and the end (or a reset, since not all was read).
        let _ = again.read_to_end(&mut answer);
        assert!(answer.len() < 128, "{answer:?}");
        let known = guests.0.lock().len();
        assert_eq!(known, 1, "the one that was overheard");
    }
}
