//! What the kernel knows of a TCP connection, and how that sends.
//!
//! # Safety
//! The kernel writes into an array of numbers, which is as long as it is told.
#![allow(unsafe_code)]

use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// What the kernel knows of the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hearing {
    /// How long ago anything came from there, be it the acknowledgement of its kernel.
    pub silence: Duration,
    /// True if there is something that it should have acknowledged.
    pub is_due: bool,
}

/// What became of what was sent on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Bytes that the other end has acknowledged.
    pub acknowledged_bytes: u64,
    /// Packets that it has not, and how large they are at most.
    pub missing_packets: u32,
    /// The most that a packet carries.
    pub packet_bytes: u32,
    /// How often the oldest of them has been sent again without an answer.
    pub attempts: u8,
}

/// `struct tcp_info` of the kernel as words, of which older ones fill less. The C library knows a shorter form.
#[derive(Clone, Copy)]
struct Info {
    words: [u32; Self::WORDS],
    known: usize,
}

impl Info {
    const PACKET_BYTES: usize = 4;
    const UNACKNOWLEDGED: usize = 6;
    const LAST_DATA_RECEIVED: usize = 13;
    const LAST_ACK_RECEIVED: usize = 14;
    const ROUND_TRIP: usize = 17;
    const BYTES_ACKNOWLEDGED: usize = 30;
    const LEAST_ROUND_TRIP: usize = 37;
    const WORDS: usize = 38;

    /// None if this is no TCP connection.
    fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut words = [0u32; Self::WORDS];
        let mut bytes = size_of_val(&words) as libc::socklen_t;
        // SAFETY: the call writes at most `bytes` bytes, all numbers, and says how many it wrote.
        let code = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                words.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        (code == 0).then_some(Self { words, known: bytes as usize / size_of::<u32>() })
    }

    fn word(&self, index: usize) -> Option<u32> {
        self.words.get(index).copied().filter(|_| index < self.known)
    }

    /// The number of timeouts that have passed on the oldest packet, and that of probes of a closed window.
    fn attempts_and_probes(&self) -> (u8, u8) {
        let [_, _, attempts, probes] = self.words[0].to_ne_bytes();
        (attempts, probes)
    }
}

/// What the kernel knows of the other end; none if this is no TCP connection.
pub fn hearing(socket: BorrowedFd<'_>) -> Option<Hearing> {
    let info = Info::of(socket)?;
    let since = info.word(Info::LAST_ACK_RECEIVED)?.min(info.word(Info::LAST_DATA_RECEIVED)?);
    let (_, probes) = info.attempts_and_probes();
    let is_due = info.word(Info::UNACKNOWLEDGED)? > 0 || probes > 0;
    Some(Hearing { silence: Duration::from_millis(since.into()), is_due })
}

/// What became of what was sent; none if the kernel does not say.
pub fn delivery(socket: BorrowedFd<'_>) -> Option<Delivery> {
    let info = Info::of(socket)?;
    let [low, high] = [info.word(Info::BYTES_ACKNOWLEDGED)?, info.word(Info::BYTES_ACKNOWLEDGED + 1)?];
    let (low, high) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
    Some(Delivery {
        acknowledged_bytes: u64::from(low) | u64::from(high) << 32,
        missing_packets: info.word(Info::UNACKNOWLEDGED)?,
        packet_bytes: info.word(Info::PACKET_BYTES)?,
        attempts: info.attempts_and_probes().0,
    })
}

/// Lets routers cut what is sent on the connection, where they can (IPv4): for packets that are too large for a way that does not
/// say so.
pub fn allow_fragments(socket: BorrowedFd<'_>) {
    let never: libc::c_int = libc::IP_PMTUDISC_DONT;
    // SAFETY: the call reads one number. That it may fail, as with IPv6, is expected.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const never).cast(),
            size_of_val(&never) as libc::socklen_t,
        )
    };
}

/// The shortest time in which the kernel of the other end has acknowledged something; none if this is no TCP connection, or
/// the kernel does not say.
pub fn round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let known = Info::of(socket)?.word(Info::LEAST_ROUND_TRIP).filter(|time| *time != u32::MAX);
    known.map(|time| Duration::from_micros(time.into()))
}

/// Round trips below this are those of one site.
const NEAR: Duration = Duration::from_millis(5);
/// What Linux uses for connections where nobody has chosen anything else, and what it always has.
pub(super) const USUAL: [&str; 2] = ["cubic", "reno"];

/// Has a connection use the congestion control of this name. Where none is named, one that is far goes by what the system is set to;
/// near ones keep what they were opened with (`network::open`).
pub fn set_congestion_control(socket: BorrowedFd<'_>, named: Option<&str>) -> io::Result<()> {
    if let Some(name) = named {
        return Ok(sockopt::set_tcp_congestion(socket, name)?);
    }
    if smoothed_round_trip(socket).is_some_and(|time| time >= NEAR) {
        let of_system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
        // As it is is good enough, too.
        let _ = of_system.map(|name| sockopt::set_tcp_congestion(socket, name.trim()));
    }
    Ok(())
}

/// The time from a packet to its acknowledgement as it is of late: that of a moment ago, on a new connection.
fn smoothed_round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    Info::of(socket)?.word(Info::ROUND_TRIP).map(|time| Duration::from_micros(time.into()))
}

#[cfg(test)]
mod tests {
    use super::super::network::{listen_at, start_connect, wait_any};
    use super::*;
    use std::net::Ipv4Addr;
    use std::os::fd::{AsFd, OwnedFd};

    #[test]
    fn near_connections_do_not_pace_and_names_are_obeyed() {
        let listener = listen_at((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let near = start_connect(listener.local_addr().unwrap()).unwrap();
        wait_any(&[(listener.as_fd(), false)], Duration::from_secs(20)).unwrap();
        let taken = OwnedFd::from(listener.accept().unwrap().0);
        for end in [&near, &taken] {
            set_congestion_control(end.as_fd(), None).unwrap();
            let name = sockopt::tcp_congestion(end).unwrap();
            assert!(!name.starts_with("bbr"), "{name}");
            set_congestion_control(end.as_fd(), Some("reno")).unwrap();
            assert_eq!(sockopt::tcp_congestion(end).unwrap(), "reno");
            set_congestion_control(end.as_fd(), Some("nonesuch")).unwrap_err();
        }
        let time = round_trip(near.as_fd()).unwrap();
        assert!(time < Duration::from_secs(1), "{time:?}");
    }
}
