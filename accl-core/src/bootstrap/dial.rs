//! Finding a process of another host: all of its addresses are tried, and the first that proves the secret is the one.
//!
//! A new address is tried every quarter of a second, or as soon as another one has failed, while those before it are
//! still waited for; what fails is tried again, at growing distances, until there is no more time. So an address
//! that leads nowhere, or to somebody else, costs a quarter of a second. Addresses that nobody answers at are named
//! at the end, each with its own reason.

use super::auth::{Greeting, Nonce, Proof, Role, Secret};
use super::join::Trusted;
use super::wire::{Message, STRANGER_BYTES};
use crate::config::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{clock, network, random, socket};
use crate::topo::interface_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between the beginnings of two addresses.
const STAGGER: Duration = Duration::from_millis(250);
/// How long one attempt may take.
const ATTEMPT_PATIENCE: Duration = Duration::from_secs(10);
/// Before an address is tried again: the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How often `give_up` is asked.
const STEP: Duration = Duration::from_millis(100);
/// How often every address must have been answered with "no" until that is believed.
const REFUSALS: u32 = 4;
/// The same where nobody listens at all: its host may just be busy, or the port be opened by something in between.
const SILENT_REFUSALS: u32 = 16;

/// Whom to find.
pub(super) struct Dial<'a> {
    /// Who that is, for people.
    pub(super) whom: String,
    /// Where to try, best first.
    pub(super) addresses: Vec<SocketAddr>,
    /// The interface by which they must be tried, and its address.
    pub(super) by: Option<(String, IpAddr)>,
    pub(super) secret: Secret,
    pub(super) deadline: Instant,
    /// What it means if the one that is dialled hangs up.
    pub(super) hung_up: (ErrorKind, &'static str),
    /// Nobody needs to be there yet.
    pub(super) may_come_late: bool,
    pub(super) retries: Retries,
    /// What it said of its addresses; those that can be tried are among `addresses`.
    pub(super) told: Vec<IpAddr>,
    pub(super) give_up: &'a dyn Fn() -> Result<()>,
}

/// A connection to it.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) connection: Trusted<'a>,
    pub(super) address: SocketAddr,
}

/// Why an address did not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Failure {
    /// Nobody said anything.
    Silence,
    /// Nobody listens there.
    Refused,
    /// The system says that there is no way, or no more.
    NoWay(String),
    /// Somebody listens, and hung up.
    HungUp,
    /// Somebody of ours listens, and says no.
    Said(ErrorKind, String),
    /// Somebody else.
    Stranger,
}

/// One address.
struct Lane {
    address: SocketAddr,
    next_try: Instant,
    attempt: Option<Attempt>,
    failures: u32,
    last: Option<Failure>,
    /// This side's address on the way there.
    from: Option<IpAddr>,
}

struct Attempt {
    socket: OwnedFd,
    since: Instant,
    /// None while connecting; then the nonce that was sent, and what has come so far.
    greeted: Option<(Nonce, Vec<u8>)>,
}

enum Step {
    Wait,
    Proved(Greeting, Proof),
    Failed(Failure),
}

impl std::fmt::Debug for Dial<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Dial").field("whom", &self.whom).finish_non_exhaustive()
    }
}

impl<'a> Dial<'a> {
    pub(super) fn run(&self) -> Result<Found<'a>> {
        let begin = clock::now();
        let lanes = self.addresses.iter().zip(0..).map(|(address, number)| Lane {
            address: *address,
            next_try: begin + STAGGER * number,
            attempt: None,
            failures: 0,
            last: None,
            from: None,
        });
        let mut lanes: Vec<_> = lanes.collect();
        loop {
            (self.give_up)()?;
            let now = clock::now();
            if lanes.is_empty() || now >= self.deadline || self.is_hopeless(&lanes) {
                return Err(self.explain(&lanes));
            }
            for at in 0..lanes.len() {
                let lane = &mut lanes[at];
                let overdue =
                    lane.attempt.as_ref().is_some_and(|attempt| now >= attempt.since + ATTEMPT_PATIENCE);
                if overdue {
                    self.fail(&mut lanes, at, Failure::Silence, now);
                } else if lane.attempt.is_none()
                    && now >= lane.next_try
                    && let Err(failure) = lane.start(now, self.by.as_ref())
                {
                    self.fail(&mut lanes, at, failure, now);
                }
            }
            for at in wait(&lanes, now, self.deadline)? {
                let Some(attempt) = &mut lanes[at].attempt else { continue };
                match attempt.advance(self.secret)? {
                    Step::Wait => {}
                    Step::Failed(failure) => self.fail(&mut lanes, at, failure, clock::now()),
                    Step::Proved(greeting, proof) => {
                        let address = lanes[at].address;
                        let Some(attempt) = lanes[at].attempt.take() else { continue };
                        let (socket, inbox) = attempt.into_parts();
                        let connection = Trusted::new(socket, inbox, self.give_up);
                        let connection = connection.prove(&greeting, &proof, &self.whom, self.deadline)?;
                        return Ok(Found { connection, address });
                    }
                }
            }
        }
    }

    /// True if every address has answered with "no", several times, or was tried as often as the settings say. Where there is no way
    /// at all (to IPv6 addresses, say, on a host without) there is nobody to ask, unless that is so for all.
    fn is_hopeless(&self, lanes: &[Lane]) -> bool {
        let tried_out = |lane: &Lane| match &lane.last {
            Some(Failure::Refused | Failure::Silence | Failure::NoWay(_)) => {
                self.retries.count.is_some_and(|count| lane.failures > count)
            }
            _ => false,
        };
        if lanes.iter().all(tried_out) {
            return true;
        }
        let definite = |failure: &Failure| {
            matches!(failure, Failure::Refused | Failure::HungUp | Failure::Said(..) | Failure::Stranger)
        };
        if self.may_come_late || !all_that_can_be_asked(lanes, definite) {
            return false;
        }
        let silent = all_that_can_be_asked(lanes, |failure| *failure == Failure::Refused);
        let enough = match self.retries.count {
            Some(count) if silent => count.saturating_add(1),
            None if silent => SILENT_REFUSALS,
            _ => REFUSALS,
        };
        lanes.iter().all(|lane| lane.failures >= enough)
    }

    /// Ends an attempt; the next address that was not tried yet need not wait for its time.
    fn fail(&self, lanes: &mut [Lane], at: usize, failure: Failure, now: Instant) {
        let lane = &mut lanes[at];
        lane.attempt = None;
        lane.last = Some(failure);
        lane.next_try = now + self.pause(lane.failures);
        lane.failures += 1;
        let untried = |lane: &&mut Lane| lane.failures == 0 && lane.attempt.is_none();
        if let Some(next) = lanes.iter_mut().find(untried) {
            next.next_try = next.next_try.min(now);
        }
    }

    /// How long an address that has failed so often before is left alone.
    fn pause(&self, failures: u32) -> Duration {
        let (first, most) = PAUSES;
        match self.retries.first_pause {
            Some(first) => first.saturating_mul(failures + 1),
            None => (first * 2u32.pow(failures.min(10))).min(most),
        }
    }

    /// Both ends, what was tried, and what can be done.
    fn explain(&self, lanes: &[Lane]) -> Error {
        let said = lanes.iter().find_map(|lane| match &lane.last {
            Some(Failure::Said(kind, text)) => Some(Error::new(*kind, text.clone())),
            _ => None,
        });
        if let Some(error) = said {
            return error;
        }
        let interfaces = network::interfaces().unwrap_or_default();
        let mut tried = Vec::new();
        for lane in lanes {
            let reason = match &lane.last {
                None | Some(Failure::Silence) => "no answer",
                Some(Failure::Refused) => "nobody listens there",
                Some(Failure::NoWay(text)) => text,
                Some(Failure::HungUp) => self.hung_up.1,
                Some(Failure::Stranger | Failure::Said(..)) => "something else listens there",
            };
            let from = lane.from.map(|ip| match interface_of(&interfaces, ip) {
                Some(name) => format!(" over {name} ({ip})"),
                None => format!(" from {ip}"),
            });
            tried.push(format!("{}{}: {reason}", lane.address, from.unwrap_or_default()));
        }
        let (kind, end) = self.verdict(lanes);
        let tried = if tried.is_empty() {
            let list = |ips: &mut dyn Iterator<Item = IpAddr>| match ips
                .map(|ip| ip.to_string())
                .collect::<Vec<_>>()
            {
                none if none.is_empty() => "no address".to_string(),
                some => some.join(", "),
            };
            let own = interfaces.iter().filter(|one| one.up && !one.loopback).flat_map(|one| &one.addresses);
            format!(
                "it told no address that could be tried: it told {}, and this host has {}; both need addresses of one family \
                 (NCCL_SOCKET_FAMILY)",
                list(&mut self.told.iter().copied()),
                list(&mut own.map(|address| address.ip))
            )
        } else {
            tried.join("; ")
        };
        Error::new(
            kind,
            format!("host {} cannot reach {} over TCP: {tried}; {end}", network::host_name(), self.whom),
        )
    }

    fn verdict(&self, lanes: &[Lane]) -> (ErrorKind, &'static str) {
        if all_that_can_be_asked(lanes, |failure| *failure == Failure::HungUp) {
            return (self.hung_up.0, "it is there, and does not know what it is asked for");
        }
        let refused = all_that_can_be_asked(lanes, |failure| *failure == Failure::Refused);
        if refused && !self.may_come_late {
            return (ErrorKind::Remote, "it has ended, or something in between refuses connections");
        }
        let kind = if clock::now() >= self.deadline { ErrorKind::Timeout } else { ErrorKind::Remote };
        let remedy = "see whether a firewall lets that TCP port through (ACCL_PORT_RANGE=first-last keeps to some \
                      ports), and whether both hosts are on that network (NCCL_SOCKET_IFNAME chooses interfaces)";
        (kind, remedy)
    }
}

/// True if all addresses have failed like `this`, except those to which there is no way.
fn all_that_can_be_asked(lanes: &[Lane], this: impl Fn(&Failure) -> bool) -> bool {
    let mut some = false;
    let all = lanes.iter().all(|lane| match &lane.last {
        Some(Failure::NoWay(_)) => true,
        Some(failure) => {
            some = true;
            this(failure)
        }
        None => false,
    });
    all && some
}

impl Lane {
    fn start(&mut self, now: Instant, by: Option<&(String, IpAddr)>) -> std::result::Result<(), Failure> {
        let socket = match by {
            Some((name, from)) => network::start_connect_by((name, *from), self.address),
            None => network::start_connect(self.address),
        };
        let socket = socket.map_err(|error| failure_of(&error))?;
        self.from = network::local_ip(socket.as_fd());
        self.attempt = Some(Attempt { socket, since: now, greeted: None });
        Ok(())
    }
}

/// Waits for one of the attempts, or for the time of another one; which ones have something to say.
fn wait(lanes: &[Lane], now: Instant, deadline: Instant) -> Result<Vec<usize>> {
    let mut timeout = STEP.min(deadline.saturating_duration_since(now));
    let (mut places, mut sockets) = (Vec::new(), Vec::new());
    for (at, lane) in lanes.iter().enumerate() {
        match &lane.attempt {
            Some(attempt) => {
                places.push(at);
                sockets.push((attempt.socket.as_fd(), attempt.greeted.is_none()));
            }
            None => timeout = timeout.min(lane.next_try.saturating_duration_since(now)),
        }
    }
    // Rounded up to what poll counts in: less would spin.
    let ready = network::wait_any(&sockets, timeout.max(Duration::from_millis(1)))?;
    Ok(places.into_iter().zip(ready).filter(|(_, ready)| *ready).map(|(at, _)| at).collect())
}

impl Attempt {
    fn into_parts(self) -> (OwnedFd, Vec<u8>) {
        (self.socket, self.greeted.map(|(_, inbox)| inbox).unwrap_or_default())
    }

    /// Does what can be done without waiting.
    fn advance(&mut self, secret: Secret) -> Result<Step> {
        let socket = self.socket.as_fd();
        let Some((client, inbox)) = &mut self.greeted else {
            if let Err(error) = network::connected(socket) {
                return Ok(Step::Failed(failure_of(&error)));
            }
            network::prepare_stream(socket);
            let nonce = random::bytes()?;
            let hello = Message::Hello { protocol: super::PROTOCOL, token: secret.token(), nonce };
            let hello = hello.encode();
            // A new connection has room for so little.
            return Ok(match socket::send_some(socket, &hello, None) {
                Ok(count) if count == hello.len() => {
                    self.greeted = Some((nonce, Vec::new()));
                    Step::Wait
                }
                Ok(_) => Step::Failed(Failure::Silence),
                Err(error) => Step::Failed(failure_of(&error)),
            });
        };
        let mut buffer = [0u8; STRANGER_BYTES];
        match socket::read_some(socket, &mut buffer) {
            Ok(None) => return Ok(Step::Wait),
            Ok(Some(0)) => return Ok(Step::Failed(Failure::HungUp)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return Ok(Step::Failed(Failure::HungUp));
            }
            Err(error) => return Ok(Step::Failed(failure_of(&error))),
            Ok(Some(count)) => inbox.extend_from_slice(&buffer[..count]),
        }
        Ok(match Message::decode(inbox, STRANGER_BYTES) {
            Ok(None) => Step::Wait,
            Ok(Some(Message::Challenge { nonce, proof })) => {
                let greeting = Greeting { secret, client: *client, server: nonce };
                if greeting.accepts(&proof, Role::Server) {
                    Step::Proved(greeting, proof)
                } else {
                    Step::Failed(Failure::Stranger)
                }
            }
            Ok(Some(Message::Failure(kind, text))) => Step::Failed(Failure::Said(kind, text)),
            Ok(Some(_)) | Err(_) => Step::Failed(Failure::Stranger),
        })
    }
}

fn failure_of(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Failure::Refused,
        std::io::ErrorKind::TimedOut => Failure::Silence,
        _ => Failure::NoWay(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{Meeting, UniqueId};
    use super::*;
    use std::io::Write;
    use std::net::Ipv4Addr;

    fn home(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    fn dial(addresses: Vec<SocketAddr>, secret: Secret, patience: Duration) -> Dial<'static> {
        Dial {
            whom: "the one".to_string(),
            addresses,
            by: None,
            secret,
            deadline: clock::now() + patience,
            hung_up: (ErrorKind::InvalidUsage, "it hangs up"),
            may_come_late: false,
            retries: Retries::default(),
            told: Vec::new(),
            give_up: &|| Ok(()),
        }
    }

    /// A port where nobody listens, unless somebody is given it meanwhile.
    fn refused() -> SocketAddr {
        home(network::listen_any(None, None, 0).unwrap().1)
    }

    #[test]
    fn silence_refusals_and_strangers_do_not_keep_it_from_the_one_that_is_meant() {
        let invitation = UniqueId::create().unwrap().decode().unwrap();
        let Meeting::Created(creator) = invitation.meeting else { panic!() };
        let (_silent, silent) = network::listen_any(None, None, 0).unwrap();
        let (stranger, strange) = network::listen_any(None, None, 0).unwrap();
        stranger.set_nonblocking(false).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut visitor, _) = stranger.accept().unwrap();
            visitor.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            visitor
        });
        let right = home(creator.port);
        let addresses = vec![home(silent), refused(), home(strange), right];
        let found = dial(addresses, invitation.secret, Duration::from_secs(60)).run().unwrap();
        assert_eq!(found.address, right);
        answering.join().unwrap();
    }

    #[test]
    fn each_address_is_named_with_its_own_reason() {
        let secret = Secret::random().unwrap();
        let (_silent, silent) = network::listen_any(None, None, 0).unwrap();
        let (silent, refused) = (home(silent), refused());
        let error = dial(vec![silent, refused], secret, Duration::from_millis(600)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.text();
        assert!(text.contains("cannot reach the one over TCP"), "{text}");
        assert!(text.contains(&format!("{silent} over lo (127.0.0.1): no answer")), "{text}");
        assert!(text.contains(&format!("{refused} over lo (127.0.0.1): nobody listens there")), "{text}");
        let nowhere = dial(Vec::new(), secret, Duration::from_secs(60)).run().unwrap_err();
        assert!(nowhere.text().contains("it told no address that could be tried"), "{nowhere}");
    }

    #[test]
    fn settings_say_how_often_and_how_soon_an_address_is_tried_again() {
        let secret = Secret::random().unwrap();
        let retries = Retries { count: Some(3), first_pause: Some(Duration::from_millis(20)) };
        let patient = dial(vec![refused()], secret, Duration::from_secs(600));
        let begin = clock::now();
        let error = Dial { retries, may_come_late: true, ..patient }.run().unwrap_err();
        // Before the second, third and fourth time.
        assert!(clock::now() - begin >= Duration::from_millis(20 + 40 + 60));
        assert_eq!(error.kind(), ErrorKind::Remote);
        assert!(error.text().contains("nobody listens there"), "{error}");
        // More often than it would be tried otherwise, and it comes in the end.
        let invitation = UniqueId::create().unwrap().decode().unwrap();
        let Meeting::Created(creator) = invitation.meeting else { panic!() };
        let retries = Retries { count: Some(100_000), first_pause: Some(Duration::ZERO) };
        let begin = clock::now();
        let error =
            Dial { retries, ..dial(vec![refused()], invitation.secret, Duration::from_millis(300)) }.run();
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Remote);
        assert!(clock::now() - begin >= Duration::from_millis(300));
        let found =
            Dial { retries, ..dial(vec![home(creator.port)], invitation.secret, Duration::from_secs(60)) };
        assert_eq!(found.run().unwrap().address, home(creator.port));
    }

    #[test]
    fn one_that_hangs_up_again_and_again_is_believed() {
        let invitation = UniqueId::create().unwrap().decode().unwrap();
        let Meeting::Created(creator) = invitation.meeting else { panic!() };
        let other = Secret::random().unwrap();
        // There is no way to a link-local address without its link.
        let nowhere = "[fe80::1]:9".parse().unwrap();
        let addresses = vec![nowhere, home(creator.port)];
        let error = dial(addresses, other, Duration::from_secs(600)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.text().contains("it hangs up"), "{error}");
        assert!(super::super::strays() >= u64::from(REFUSALS));
    }
}
