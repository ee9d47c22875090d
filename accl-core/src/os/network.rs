//! Networks: the interfaces of this host, and TCP sockets that never make anybody wait.
//!
//! # Safety
//! The list that `getifaddrs` hands out is ours until it is freed, once; the addresses in it are as long as their
//! families say.
#![allow(unsafe_code)]

use super::tcp;
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Connections that may wait to be accepted; the kernel cuts this down to its own limit.
const BACKLOG: i32 = 4096;
/// After how long without a word a peer is asked whether it is there, how often, and how many times.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 6);

/// One of the two families of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// As the system calls it.
    pub name: String,
    /// The system's number of it: the scope of its link-local addresses.
    pub index: u32,
    /// Switched on.
    pub up: bool,
    /// Has a carrier.
    pub running: bool,
    /// Leads to this host only.
    pub loopback: bool,
    /// Its addresses, in the system's order.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// How many bits of it name the subnet.
    pub prefix_bits: u8,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// All interfaces of this network namespace, in the system's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call writes one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(Error::system("cannot list the network interfaces", io::Error::last_os_error()));
    }
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: entries of the list are valid until it is freed below.
        let item = unsafe { &*entry };
        entry = item.ifa_next;
        // SAFETY: every entry has a name that ends with zero.
        let name = unsafe { CStr::from_ptr(item.ifa_name) }.to_string_lossy().into_owned();
        let known = interfaces.iter().position(|interface| interface.name == name);
        let at = known.unwrap_or_else(|| {
            let flag = |bit: i32| item.ifa_flags & bit.cast_unsigned() != 0;
            interfaces.push(Interface {
                name,
                // SAFETY: the same name.
                index: unsafe { libc::if_nametoindex(item.ifa_name) },
                up: flag(libc::IFF_UP),
                running: flag(libc::IFF_RUNNING),
                loopback: flag(libc::IFF_LOOPBACK),
                addresses: Vec::new(),
            });
            interfaces.len() - 1
        });
        // SAFETY: both are null or addresses of this entry.
        let address = unsafe { (ip_at(item.ifa_addr), ip_at(item.ifa_netmask)) };
        if let (Some(ip), mask) = address {
            let prefix_bits = match mask {
                Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
                None => {
                    if ip.is_ipv4() {
                        32
                    } else {
                        128
                    }
                }
            };
            interfaces[at].addresses.push(InterfaceAddress { ip, prefix_bits: prefix_bits as u8 });
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(interfaces)
}

/// # Safety
/// `address` must be null or a socket address that is as long as its family says.
unsafe fn ip_at(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the contract above; alignment is not relied upon.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// What this host calls itself.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The addresses that `host` stands for, with `port`.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // "fe80::1%eth0" is nothing that the library of names would take.
    if let Some((ip, zone)) = host.split_once('%')
        && let Ok(ip) = ip.parse::<Ipv6Addr>()
    {
        let index = zone.parse().ok().or_else(|| {
            interfaces().ok()?.into_iter().find(|interface| interface.name == zone).map(|found| found.index)
        });
        let scope = index.ok_or_else(|| io::Error::other(format!("no interface {zone}")))?;
        return Ok(vec![std::net::SocketAddrV6::new(ip, port, 0, scope).into()]);
    }
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Listens on every address of this host (of one family if `only` says so), on a port out of `ports`, or on any. With
/// IPv6 one socket takes both families. `start` says where in the range to begin: processes that begin at different
/// places do not all try the same ports.
pub fn listen_any(
    ports: Option<&RangeInclusive<u16>>,
    only: Option<Family>,
    start: u32,
) -> io::Result<(TcpListener, u16)> {
    let every = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    first_port(ports, start, |port| {
        let mut failure = io::Error::from(io::ErrorKind::AddrInUse);
        for ip in every.iter().filter(|ip| only.is_none_or(|family| Family::of(**ip) == family)) {
            match listen_at(SocketAddr::new(*ip, port)) {
                Ok(listener) => {
                    let port = listener.local_addr()?.port();
                    return Ok((listener, port));
                }
                Err(error) => failure = error,
            }
            // Somebody has the port, in whatever family: it is no use to take the rest of it.
            if failure.kind() == io::ErrorKind::AddrInUse {
                break;
            }
        }
        Err(failure)
    })
}

/// Listens on these addresses and no others, on one port for all of them, found as [`listen_any`] finds it.
pub fn listen_on(
    addresses: &[SocketAddr],
    ports: Option<&RangeInclusive<u16>>,
    start: u32,
) -> io::Result<(Vec<TcpListener>, u16)> {
    let on_port = |mut port: u16| {
        let mut listeners = Vec::new();
        for address in addresses {
            let listener = listen_at(with_port(*address, port))?;
            port = listener.local_addr()?.port();
            listeners.push(listener);
        }
        Ok((listeners, port))
    };
    first_port(ports, start, on_port)
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The first port out of a range on which `listen` succeeds; without a range any, which the kernel chooses.
fn first_port<T>(
    ports: Option<&RangeInclusive<u16>>,
    start: u32,
    mut listen: impl FnMut(u16) -> io::Result<T>,
) -> io::Result<T> {
    let taken = |outcome: &io::Result<T>| {
        outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let usual = ports.is_none().then(|| listen(0));
    if let Some(outcome) = usual.filter(|outcome| !taken(outcome)) {
        return outcome;
    }
    // The kernel chooses no port that any connection has at this end, which may be all of them; but lets us have it.
    let range = ports.cloned().or_else(ephemeral_ports).unwrap_or(0..=0);
    let count = u32::from(range.end() - range.start()) + 1;
    let mut outcome = Err(io::Error::from(io::ErrorKind::AddrInUse));
    for step in 0..count {
        outcome = listen(range.start() + ((start % count + step) % count) as u16);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// The ports that the kernel gives to who asks for any.
fn ephemeral_ports() -> Option<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_whitespace().map(str::parse);
    match (ends.next()?, ends.next()?) {
        (Ok(first), Ok(last)) if first <= last => Some(first..=last),
        _ => None,
    }
}

/// Listens on one address. Another process may come between the choice of a free port and listening there; then it is in use, and
/// whoever takes any port may try again.
pub fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = open(address)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Takes a socket off its port, whoever else still holds it.
pub fn stop_listening(listener: &TcpListener) {
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
}

/// Begins to connect; [`connected`] says what became of it once the socket can be written.
pub fn start_connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// The same, by one interface (its name, and its address, which becomes this side's).
pub fn start_connect_by((name, from): (&str, IpAddr), address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    // Where two interfaces are on one subnet the address alone does not say by which to leave. Old kernels do not let everybody
    // do this: then the address has to do.
    let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_bytes());
    // The port is chosen when the peer is known: one at this end serves for many peers.
    let _ = set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32.to_ne_bytes());
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

fn set_option(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the call reads as many bytes as it is told, of a value that outlives it.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What became of a connection attempt.
pub fn connected(socket: BorrowedFd<'_>) -> io::Result<()> {
    match sockopt::socket_error(socket)? {
        Ok(()) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The address on the other side, of a connection.
pub fn peer_ip(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    let address = rustix::net::getpeername(socket).ok()??;
    SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
}

/// The address on this side, once connecting has begun.
pub fn local_ip(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    let address = rustix::net::getsockname(socket).ok()?;
    SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
}

/// Makes a connection what all of ours are: small messages go at once, and a peer that vanished is noticed. Failures
/// do no harm.
pub fn prepare_stream(socket: BorrowedFd<'_>) {
    let (idle, interval, count) = KEEP_ALIVE;
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, idle);
    let _ = sockopt::set_tcp_keepintvl(socket, interval);
    let _ = sockopt::set_tcp_keepcnt(socket, count);
}

/// Has a silent peer asked whether it is there, so that one that has vanished is noticed after about `patience`.
pub fn keep_alive(socket: BorrowedFd<'_>, patience: Duration) {
    // No less than what connections have anyway: on a crowded link the question may have to wait.
    let step = (patience / 6).max(KEEP_ALIVE.1);
    let _ = sockopt::set_tcp_keepidle(socket, step * 3);
    let _ = sockopt::set_tcp_keepintvl(socket, step);
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
}

/// How fast an interface is, in Mbit/s; none where its driver does not say.
pub fn speed_mbps(interface: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    // Of an interface without a carrier it is -1.
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Waits until one of the sockets can be read (or written, where that is asked for), for at most `timeout`; which ones.
pub fn wait_any(sockets: &[(BorrowedFd<'_>, bool)], timeout: Duration) -> Result<Vec<bool>> {
    let flags = |write: bool| if write { PollFlags::OUT } else { PollFlags::IN };
    let mut polled: Vec<_> =
        sockets.iter().map(|(socket, write)| PollFd::from_borrowed_fd(*socket, flags(*write))).collect();
    let limit = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.iter().map(|entry| !entry.revents().is_empty()).collect()),
        Err(errno) => Err(Error::system("cannot wait for sockets", errno)),
    }
}

/// A socket that does not pace. Some systems use BBR for everything, which hands packets to the network when its clock says so. That
/// serves long ways; between neighbours the timer and what it reorders cost half of the bandwidth (docs/performance.md). A socket that
/// has begun to pace never stops, so it is too late when the distance is known; [`tcp::set_congestion_control`] goes the other way.
fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(rustix::net::ipproto::TCP))?;
    // Connections that linger on a port, or have it at this end, keep nobody from listening there: there may be few.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if sockopt::tcp_congestion(&socket).is_ok_and(|name| name.starts_with("bbr")) {
        // Where the kernel has none of them to give, it stays.
        let _ = tcp::USUAL.iter().any(|name| sockopt::set_tcp_congestion(&socket, name).is_ok());
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_loopback_interface_is_listed_with_its_address() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|interface| interface.loopback).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.index), ("lo", 1));
        if loopback.up {
            let home = InterfaceAddress { ip: Ipv4Addr::LOCALHOST.into(), prefix_bits: 8 };
            assert!(loopback.addresses.contains(&home), "{loopback:?}");
        }
    }

    #[test]
    fn ports_come_out_of_the_range_until_it_is_used_up() {
        let (kept, port) = listen_any(None, None, 0).unwrap();
        assert!(port > 0);
        let full = listen_any(Some(&(port..=port)), None, 7).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AddrInUse);
        drop(kept);
        assert_eq!(listen_any(Some(&(port..=port)), None, 7).unwrap().1, port);
    }

    #[test]
    fn connections_are_made_and_refused() {
        let (listener, port) = listen_any(None, None, 0).unwrap();
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let attempt = |address| {
            let socket = start_connect(address)?;
            wait_any(&[(socket.as_fd(), true)], Duration::from_secs(10)).unwrap();
            connected(socket.as_fd()).map(|()| socket)
        };
        let socket = attempt(address).unwrap();
        prepare_stream(socket.as_fd());
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        keep_alive(socket.as_fd(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(30));
        let heard = tcp::hearing(socket.as_fd()).unwrap();
        assert!(heard.silence < Duration::from_secs(60) && !heard.is_due, "{heard:?}");
        assert!(tcp::round_trip(socket.as_fd()).unwrap() < Duration::from_secs(60));
        assert!(tcp::round_trip(std::io::stdin().as_fd()).is_none() && speed_mbps("none").is_none());
        assert_eq!(local_ip(socket.as_fd()), Some(Ipv4Addr::LOCALHOST.into()));
        stop_listening(&listener);
        assert_eq!(attempt(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn names_and_addresses_are_resolved() {
        assert_eq!(resolve("10.1.2.3", 7).unwrap(), ["10.1.2.3:7".parse().unwrap()]);
        assert_eq!(resolve("::1", 7).unwrap(), ["[::1]:7".parse().unwrap()]);
        let scoped = resolve("fe80::1%1", 7).unwrap();
        assert!(matches!(scoped[..], [SocketAddr::V6(address)] if address.scope_id() == 1), "{scoped:?}");
        assert!(resolve("fe80::1%none", 7).is_err());
    }
}
