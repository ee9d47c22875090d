//! Connections of a process that encrypts: whoever is in between, or comes uninvited, reads nothing and is not let in. In a process of its own,
//! since the key is that of the process.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_core::bootstrap::{
    LinkExpectation, LinkRequest, LinkSink, PeerRecord, Presence, Secret, dial_link, expect_links,
    link_secret, set_key,
};
use accl_core::config::Network;
use accl_core::encryption::Socket;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Guests(Mutex<Vec<Socket>>);

impl LinkSink for Guests {
    fn accept(&self, _: LinkRequest, socket: Socket) {
        self.0.lock().unwrap().push(socket);
    }
}

/// A rank that can be dialled, directly and by a way where everything can be overheard and changed.
struct Host {
    secret: Secret,
    guests: Arc<Guests>,
    peer: PeerRecord,
    _expectation: LinkExpectation,
}

const REQUEST: LinkRequest = LinkRequest { from_rank: 1, to_rank: 0, purpose: 0, index: 0 };

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

impl Host {
    fn new() -> Self {
        // The same for all tests of this process; the first one settles it.
        let _ = set_key(Some(b"a key that this test has"));
        let presence = Presence::of(&Network::default()).unwrap();
        let (secret, guests) = (link_secret(Secret::random().unwrap()), Arc::new(Guests::default()));
        let expectation = expect_links(secret, 0, guests.clone()).unwrap();
        let peer = presence.record().unwrap();
        let peer = PeerRecord { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..peer };
        Self { secret, guests, peer, _expectation: expectation }
    }

    fn dial(&self, peer: &PeerRecord) -> accl_core::Result<Socket> {
        dial_link(peer, self.secret, REQUEST, &Network::default(), soon(), &|| Ok(()))
    }

    /// The other end of what was dialled.
    fn guest(&self) -> Socket {
        loop {
            if let Some(guest) = self.guests.0.lock().unwrap().pop() {
                return guest;
            }
            assert!(Instant::now() < soon());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The same process at another address, where somebody passes on what diallers say as `change` makes it: a function of how much
    /// has passed, and of what comes next. All that a dialler said comes out when it has hung up.
    fn by_way_of(
        &self,
        change: impl Fn(usize, &mut Vec<u8>) + Send + 'static,
    ) -> (PeerRecord, Receiver<Vec<u8>>) {
        let middle = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = PeerRecord { port: middle.local_addr().unwrap().port(), ..self.peer.clone() };
        let (port, (tell, told)) = (self.peer.port, channel());
        std::thread::spawn(move || {
            while let Ok((dialler, _)) = middle.accept() {
                let listener = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                if tell.send(pass_on(&dialler, &listener, &change)).is_err() {
                    return;
                }
            }
        });
        (peer, told)
    }

    /// One more link works.
    fn works(&self) {
        let ours = self.dial(&self.peer).unwrap();
        let theirs = self.guest();
        assert!(ours.is_sealed() && theirs.is_sealed());
        ours.send_all(b"hello", soon(), &|| Ok(())).unwrap();
        let mut got = [0; 5];
        theirs.receive_exact(&mut got, soon(), &|| Ok(())).unwrap();
        assert_eq!(&got, b"hello");
    }
}

/// Passes on what two connections say to each other until both have ended; what the dialler said, as it was passed on.
fn pass_on(dialler: &TcpStream, listener: &TcpStream, change: &dyn Fn(usize, &mut Vec<u8>)) -> Vec<u8> {
    let (back_from, back_to) = (listener.try_clone().unwrap(), dialler.try_clone().unwrap());
    let back = std::thread::spawn(move || {
        let _ = std::io::copy(&mut &back_from, &mut &back_to);
        let _ = back_to.shutdown(Shutdown::Both);
    });
    let (mut said, mut piece) = (Vec::new(), [0; 512]);
    while let Ok(count @ 1..) = (&mut &*dialler).read(&mut piece) {
        let mut passed = piece[..count].to_vec();
        change(said.len(), &mut passed);
        said.extend(&passed);
        if (&mut &*listener).write_all(&passed).is_err() {
            break;
        }
    }
    let _ = listener.shutdown(Shutdown::Write);
    back.join().unwrap();
    said
}

#[test]
fn what_is_overheard_says_nothing_and_lets_nobody_in() {
    let host = Host::new();
    let (peer, passing) = host.by_way_of(|_, _| ());
    let ours = host.dial(&peer).unwrap();
    let theirs = host.guest();
    let word = [0x5a; 1000];
    ours.send_all(&word, soon(), &|| Ok(())).unwrap();
    let mut got = [0; 1000];
    theirs.receive_exact(&mut got, soon(), &|| Ok(())).unwrap();
    assert_eq!(got, word);
    drop((ours, theirs));
    let said = passing.recv().unwrap();
    assert!(said.len() > 1000 && !said.windows(8).any(|window| window == [0x5a; 8]));

    let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, host.peer.port)).unwrap();
    again.write_all(&said).unwrap();
    again.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    // The listener's own proofs, and the end (or a reset, since not all was read).
    let _ = again.read_to_end(&mut answer);
    assert!(answer.len() < 128, "{answer:?}");
    assert!(host.guests.0.lock().unwrap().is_empty());
    host.works();
}

#[test]
fn a_changed_bit_of_a_greeting_or_of_a_request_keeps_the_dialler_out_and_nobody_else() {
    let host = Host::new();
    // Of the greeting, of the proof of the secret, of that of the key, and of the first record.
    for place in [20usize, 60, 95, 130] {
        let (peer, passing) = host.by_way_of(move |passed, bytes| {
            if let Some(byte) = place.checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1;
            }
        });
        let error = host.dial(&peer).unwrap_err();
        assert_eq!(error.kind(), accl_core::ErrorKind::Remote, "{place}: {error}");
        drop(passing);
        assert!(host.guests.0.lock().unwrap().is_empty());
    }
    host.works();
}

#[test]
fn a_changed_bit_of_the_data_is_an_error_and_none_of_it_is_read() {
    let host = Host::new();
    let (peer, passing) = host.by_way_of(|passed, bytes| {
        // Beyond the greeting and the request.
        if (600..4000).contains(&passed) {
            bytes[0] ^= 0x80;
        }
    });
    let ours = host.dial(&peer).unwrap();
    let theirs = host.guest();
    ours.send_all(&[7; 10_000], soon(), &|| Ok(())).unwrap();
    let error = theirs.receive_exact(&mut [0], soon(), &|| Ok(())).unwrap_err();
    assert!(error.text().contains("is not what the other end has encrypted"), "{error}");
    drop((ours, theirs));
    passing.recv().unwrap();
    host.works();
}

#[test]
fn strangers_with_any_bytes_are_dropped() {
    let host = Host::new();
    for seed in 0..8u8 {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, host.peer.port)).unwrap();
        let bytes: Vec<u8> =
            (0..2000u32).map(|at| (at * 31 + u32::from(seed) * 77) as u8 ^ (at >> 3) as u8).collect();
        let _ = stranger.write_all(&bytes);
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    host.works();
}
