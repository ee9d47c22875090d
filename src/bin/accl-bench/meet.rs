//! How ranks that a launcher started find each other: rank 0's process listens, all connect and say who they are.

use std::io::{BufRead as _, Read as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::failure::{Exit, Failure, Outcome};
use crate::launch::Meeting;
use crate::link::{Reader, Socket, Writer};
use crate::message::{Hello, ToHub};

/// Ranks start one after the other; a rank that is not there after this is not coming.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// A connection that does not introduce itself by then is not one of ours.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// The longest introduction.
const HELLO_BYTES: u64 = 4096;

/// All ranks that came, in their order, and the ways to them.
pub(crate) type Guests = (Vec<Hello>, Vec<(Reader, Writer)>);

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) fn open(meeting: &Meeting) -> Outcome<Self> {
        let opened = match meeting {
            Meeting::Tcp { host, port } => {
                // Other hosts may know this one by an address that it does not know itself; only a loopback
                // address is surely meant as it is.
                let local = host == "localhost" || host == "::1" || host.starts_with("127.");
                let place = if local { host.as_str() } else { "0.0.0.0" };
                TcpListener::bind((place, *port)).map(Self::Tcp)
            }
            Meeting::Local(name) => SocketAddr::from_abstract_name(name)
                .and_then(|address| UnixListener::bind_addr(&address))
                .map(Self::Unix),
        };
        let opened = opened.and_then(|listener| listener.set_nonblocking().map(|()| listener));
        opened.map_err(|error| {
            let text = format!(
                "rank 0 cannot listen at {meeting:?}: {error}; ACCL_BENCH_RENDEZVOUS=host:port names another place"
            );
            Failure::usage(text)
        })
    }

    fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> std::io::Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                socket.set_read_timeout(Some(INTRODUCTION))?;
                Socket::Tcp(socket)
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                socket.set_read_timeout(Some(INTRODUCTION))?;
                Socket::Unix(socket)
            }
        })
    }

    /// Waits until all ranks of the job are there. Strangers are turned away without a word.
    pub(crate) fn gather(&self, ranks: usize, job: &str) -> Outcome<Guests> {
        let mut places: Vec<Option<(Hello, (Reader, Writer))>> = (0..ranks).map(|_| None).collect();
        let deadline = Instant::now() + PATIENCE;
        while places.iter().any(Option::is_none) {
            match self.accept() {
                Ok(socket) => {
                    if let Some((hello, connection)) = introduced(socket, job)
                        && let Some(place) = places.get_mut(hello.rank).filter(|place| place.is_none())
                    {
                        *place = Some((hello, connection));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(RETRY_EVERY / 10)
                }
                Err(_) => std::thread::sleep(RETRY_EVERY),
            }
            if Instant::now() > deadline {
                let missing = (0..ranks).filter(|&rank| places[rank].is_none());
                let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
                let text = format!(
                    "after {} s ranks {} have not come; ACCL_BENCH_RENDEZVOUS=host:port, given to all, helps where \
                     they cannot tell that they are of one job",
                    PATIENCE.as_secs(),
                    missing.join(", ")
                );
                return Err(Failure::new(Exit::Timeout, text));
            }
        }
        Ok(places.into_iter().flatten().unzip())
    }
}

/// Reads the first line, within bounds of time and length; no limit holds from then on.
fn introduced(socket: Socket, job: &str) -> Option<(Hello, (Reader, Writer))> {
    let timeout_off: Box<dyn Fn() -> bool> = match &socket {
        Socket::Tcp(socket) => {
            let socket = socket.try_clone().ok()?;
            Box::new(move || socket.set_read_timeout(None).is_ok())
        }
        Socket::Unix(socket) => {
            let socket = socket.try_clone().ok()?;
            Box::new(move || socket.set_read_timeout(None).is_ok())
        }
    };
    let (mut reader, writer) = socket.halves().ok()?;
    let mut text = String::new();
    reader.by_ref().take(HELLO_BYTES).read_line(&mut text).ok()?;
    let ToHub::Hello(hello) = serde_json::from_str(&text).ok()? else { return None };
    (hello.job == job && timeout_off()).then_some((hello, (reader, writer)))
}

/// Connects to rank 0, which may not listen yet.
pub(crate) fn connect(meeting: &Meeting) -> Outcome<Socket> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let tried = match meeting {
            Meeting::Tcp { host, port } => (host.as_str(), *port)
                .to_socket_addrs()
                .and_then(|addresses| {
                    let addresses: Vec<_> = addresses.collect();
                    TcpStream::connect(addresses.as_slice())
                })
                .map(Socket::Tcp),
            Meeting::Local(name) => SocketAddr::from_abstract_name(name)
                .and_then(|address| UnixStream::connect_addr(&address))
                .map(Socket::Unix),
        };
        match tried {
            Ok(socket) => return Ok(socket),
            Err(error) if Instant::now() > deadline => {
                let text = format!("rank 0 is not to be found at {meeting:?}: {error}");
                return Err(Failure::new(Exit::Timeout, text));
            }
            Err(_) => std::thread::sleep(RETRY_EVERY),
        }
    }
}

/// Whether this is the first of several copies that cannot join: it holds a name as long as it lives.
pub(crate) fn first_of_copies(parent: u32) -> Option<UnixListener> {
    // SAFETY: Always succeeds.
    let user = unsafe { libc::getuid() };
    let address = SocketAddr::from_abstract_name(format!("accl-bench-alone-{user}-{parent}")).ok()?;
    UnixListener::bind_addr(&address).ok()
}
