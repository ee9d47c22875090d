//! RDMA verbs: what the library needs of them, and libibverbs, which is opened at run time.
//!
//! Where there is no libibverbs, or it knows no device, there is no RDMA, and nothing else is different. Objects give themselves
//! back when they are dropped, and keep alive what they were made of. Memory is named by addresses, as in [`super::Driver`]: who registers some keeps it
//! until its registration is dropped, and who writes to a peer's has the peer's word for where that may be.

mod abi;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod layout_tests;
mod library;
mod provider;

use crate::error::{Error, Result};
use std::fmt::Debug;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// Verbs, of libibverbs or of a fake.
pub trait Verbs: Send + Sync + Debug {
    /// All devices, opened when they are first asked for. None of them is no error.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>>;

    /// What this process had better not do, if there is such a thing.
    fn caution(&self) -> Option<&str> {
        None
    }
}

/// A device that is open.
pub trait Device: Send + Sync + Debug {
    /// What the system calls it.
    fn name(&self) -> &str;

    /// How many ports it has; they are counted from 1.
    fn ports(&self) -> u8;

    /// How much it can do.
    fn limits(&self) -> Limits;

    /// What a port is like now.
    fn port(&self, port: u8) -> Result<Port>;

    /// True if a port has a link: asked again and again while nothing moves.
    fn is_active(&self, port: u8) -> Result<bool>;

    /// Takes what the device has told of itself since it was asked last, in words. One that is gone has no active port.
    fn news(&self) -> Vec<String>;

    /// Has peers and this process's queue pairs reach memory, which must stay until the registration is dropped. `relaxed`: what is
    /// written need not come in order, if the device can do that.
    fn register(&self, start: usize, bytes: usize, relaxed: bool) -> Result<Box<dyn Registration>>;

    /// Where completions come, at most so many that are not looked at.
    fn completions(&self, entries: u32) -> Result<Box<dyn Completions>>;
}

/// How much a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub pairs: u32,
    /// Work requests of a queue.
    pub requests: u32,
    /// Completions of a completion queue.
    pub completions: u32,
    /// Bytes of one registration.
    pub registration_bytes: u64,
}

/// What a port is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// It has a link and may be used.
    pub is_active: bool,
    /// As the header numbers it: 1 (down) to 4 (active).
    pub state: u32,
    /// The network is Ethernet: peers are found by GIDs alone.
    pub is_ethernet: bool,
    /// The most bytes of one packet, as the header numbers it: 1 (256) to 5 (4096).
    pub mtu: u32,
    /// The most bytes of one message.
    pub message_bytes: u32,
    /// Its address within an InfiniBand subnet.
    pub lid: u16,
    /// Its addresses, in the order of the device's table.
    pub gids: Vec<GidEntry>,
}

impl Port {
    /// The most bytes of one packet.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu.clamp(1, 5)
    }
}

/// An address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// Its place in the device's table.
    pub index: u32,
    /// What kind of packets it is for.
    pub kind: GidKind,
    /// The address.
    pub gid: Gid,
}

/// What kind of packets an address is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand's.
    InfiniBand,
    /// Ethernet frames.
    RoceV1,
    /// UDP datagrams.
    RoceV2,
}

/// A global address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address that it stands for.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// True if it leads no further than the next router.
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// True if there is no address.
    pub fn is_empty(self) -> bool {
        // A port without an address has a prefix and nothing behind it.
        self.0[8..] == [0; 8]
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&Ipv6Addr::from(self.0), formatter)
    }
}

/// Memory that is registered.
pub trait Registration: Send + Debug {
    /// The key by which this process's queue pairs reach it.
    fn local_key(&self) -> u32;

    /// The key for peers.
    fn remote_key(&self) -> u32;
}

/// Where completions come.
pub trait Completions: Send + Debug {
    /// Takes what has come, at most as many as there is room for; how many.
    fn poll(&mut self, into: &mut [Completion]) -> Result<usize>;

    /// Has the descriptor become readable when the next completion comes; what has come before does not count, so look once more.
    fn arm(&mut self) -> Result<()>;

    /// Takes back what [`Self::arm`] has made readable.
    fn clear(&mut self) -> Result<()>;

    /// Readable when a completion has come that was waited for.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// A queue pair whose completions come here; it holds nothing and is connected with nobody.
    fn pair(&mut self, shape: PairShape) -> Result<Box<dyn QueuePair>>;
}

/// What a queue pair is to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairShape {
    /// Which port of the device it uses.
    pub port: u8,
    /// Writes under way.
    pub sends: u32,
    /// Room for what comes.
    pub receives: u32,
    /// How many bytes a write should be able to carry itself; fewer where the device cannot.
    pub inline_bytes: u32,
    /// The place of its partition key in the port's table.
    pub partition: u16,
}

/// With whom a queue pair is connected, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The peer's queue pair.
    pub pair: u32,
    /// The peer's port: its address, and its number in the subnet.
    pub gid: Gid,
    /// The same within an InfiniBand subnet.
    pub lid: u16,
    /// Packets carry global addresses; always on Ethernet.
    pub is_global: bool,
    /// The place of one's own address in the port's table.
    pub gid_index: u8,
    /// Bytes of a packet, as [`Port::mtu`].
    pub mtu: u32,
    /// The numbers of the first packets, here and there.
    pub own_packet: u32,
    /// The peer's.
    pub peer_packet: u32,
    /// How often, and after what time (4.096 µs · 2^timeout), a packet is sent again.
    pub retries: u8,
    /// See [`Self::retries`].
    pub timeout: u8,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// What routers know a packet's class by.
    pub traffic_class: u8,
}

/// One end of a reliable connection.
pub trait QueuePair: Send + Debug {
    /// Its number, by which the peer finds it.
    fn number(&self) -> u32;

    /// How many bytes a write can carry itself.
    fn inline_bytes(&self) -> u32;

    /// Connects it, which takes no answer from the peer.
    fn connect(&mut self, with: &Connection) -> Result<()>;

    /// Begins a write.
    fn write(&mut self, write: &Write) -> Result<()>;

    /// Makes room for so many writes of the peer that carry a word.
    fn expect(&mut self, count: u32) -> Result<()>;

    /// Ends it: whatever is under way comes back with an error, and nothing that the peer sends has an effect any more.
    fn fail(&mut self) -> Result<()>;
}

/// A write to a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// What comes back with its completion.
    pub number: u64,
    /// Where the bytes lie.
    pub source: usize,
    /// How many there are; at most what the port takes for one message.
    pub bytes: u32,
    /// The key of that memory.
    pub local_key: u32,
    /// Where they go.
    pub target: u64,
    /// The peer's key.
    pub remote_key: u32,
    /// A word that the peer gets when the bytes are there.
    pub word: Option<u32>,
    /// A completion is wanted.
    pub is_signalled: bool,
    /// The bytes are copied in the call.
    pub is_inline: bool,
}

/// What has become of a write, or of room for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The write's.
    pub number: u64,
    /// 0 for success; else see [`status_text`].
    pub status: u32,
    /// The device's own word on a failure.
    pub vendor_status: u32,
    /// The queue pair.
    pub pair: u32,
    /// The word that a peer's write has brought; none for a write of one's own. Not known of failures.
    pub word: Option<u32>,
    /// The bytes of that write.
    pub bytes: u32,
}

/// [`Completion::status`] of requests that came back because their queue pair had ended.
pub const FLUSHED: u32 = abi::WC_WR_FLUSH_ERR;

/// A completion's failure, for people: what libibverbs says, and what is usually behind it.
pub fn status_text(status: u32) -> &'static str {
    match status {
        0 => "success",
        1 => "local length error: a message is longer than the port takes",
        4 => "local protection error: memory was given back while it was used",
        FLUSHED => "flushed: the queue pair had ended before",
        9 => "remote invalid request: the peer's queue pair is of another kind",
        10 => "remote access error: the peer's memory is not registered, or not any more",
        11 => "remote operation error: the peer's device has failed",
        12 => {
            "transport retry counter exceeded: nothing came back. The peer's port is down, its queue pair has ended, or the way loses packets (see \
             the switch's flow control, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; also partition key and service level)"
        }
        13 => "receiver not ready: the peer had no room",
        _ => "see ibv_wc_status in the header of libibverbs",
    }
}

/// Why there are no verbs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absent {
    /// The library cannot be loaded; why.
    NoLibrary(String),
    /// The kernel has no RDMA, or no device.
    NoDevice,
}

impl std::fmt::Display for Absent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoLibrary(why) => {
                write!(
                    formatter,
                    "libibverbs.so.1 cannot be loaded ({why}); install the package libibverbs1, and ibverbs-providers"
                )
            }
            Self::NoDevice => formatter.write_str(
                "libibverbs knows no RDMA device; see whether ibv_devinfo lists one, and whether a container passes /dev/infiniband on",
            ),
        }
    }
}

/// libibverbs, opened once for the process. An error if it is there, but not as it is needed.
pub fn of_process() -> Result<std::result::Result<&'static dyn Verbs, Absent>> {
    static LIBRARY: OnceLock<Result<std::result::Result<provider::Library, Absent>>> = OnceLock::new();
    match LIBRARY.get_or_init(provider::Library::open) {
        Ok(Ok(library)) => Ok(Ok(library)),
        Ok(Err(absent)) => Ok(Err(absent.clone())),
        Err(error) => Err(error.clone()),
    }
}

/// A call of libibverbs that failed.
#[track_caller]
fn refused(function: &str, device: &str, number: i32) -> Error {
    let why = std::io::Error::from_raw_os_error(number);
    let advice = match (function, number) {
        ("ibv_reg_mr" | "ibv_reg_mr_iova2", libc::ENOMEM | libc::EAGAIN | libc::EPERM) => locked_memory(),
        (_, libc::ENOMEM | libc::EAGAIN) => {
            format!("; the device may have no more of these objects{}", locked_memory())
        }
        (_, libc::EACCES | libc::EPERM) => "; this user must be allowed to open /dev/infiniband/uverbs*".to_string(),
        ("ibv_modify_qp", libc::EINVAL | libc::ENETUNREACH | libc::ETIMEDOUT) => {
            "; the peer's address, the index of one's own (NCCL_IB_GID_INDEX), packet size and partition must fit the port".to_string()
        }
        _ => "; see the kernel's log, and ibv_devinfo".to_string(),
    };
    Error::new(
        crate::ErrorKind::System,
        format!("{function} of libibverbs failed on {device}: {why}{advice}"),
    )
}

/// How much memory may be locked, for people.
fn locked_memory() -> String {
    let most = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let most = most.map_or_else(|| "any amount of".to_string(), |bytes| format!("{} KiB of", bytes / 1024));
    format!(
        "; this process may lock {most} memory (ulimit -l), and registered memory is locked: set it to unlimited"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_function_device_and_remedy() {
        let error = refused("ibv_reg_mr", "rxe0", libc::ENOMEM);
        assert_eq!(error.kind(), crate::ErrorKind::System);
        for words in ["ibv_reg_mr of libibverbs failed on rxe0", "ulimit -l", "KiB of memory"] {
            let any = words == "KiB of memory" && error.text().contains("any amount of memory");
            assert!(error.text().contains(words) || any, "{error}");
        }
        assert!(refused("ibv_open_device", "x", libc::EACCES).text().contains("/dev/infiniband"));
        assert!(refused("ibv_modify_qp", "x", libc::EINVAL).text().contains("NCCL_IB_GID_INDEX"));
    }

    #[test]
    fn addresses_are_told_apart() {
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert!(!mapped.is_link_local() && !mapped.is_empty());
        let mut local = Gid::default();
        local.0[..2].copy_from_slice(&[0xfe, 0x80]);
        assert!(local.is_link_local() && local.is_empty() && local.ipv4().is_none());
    }

    #[test]
    fn what_is_not_there_is_no_failure() {
        // On a machine with RDMA this finds devices, on others it says which part is missing.
        match of_process().unwrap() {
            Ok(verbs) => drop(verbs.devices().unwrap()),
            Err(Absent::NoDevice) => {}
            Err(Absent::NoLibrary(why)) => assert!(why.contains("libibverbs.so.1"), "{why}"),
        }
    }
}
