//! What the log tells of a communicator, in the words that other programs look for (`abi/clients.md` §4).

use super::Communicator;
use super::describe::Way;
use crate::bootstrap::{self, PeerRecord};
use crate::config::subsystem::{COLL, INIT, NET, P2P, PROFILE, SHM};
use crate::driver::verbs;
use crate::os::{clock, network};
use crate::telemetry::log;
use crate::topo::interface_of;
use crate::transport::rdma::LocalPort;
use std::fmt::{self, Write};
use std::time::{Duration, Instant};

/// How a communicator comes to be: the function that makes it, without its prefix, and what of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Maker {
    /// Ranks hold the same id, which has this number.
    Id(&'static str, u64),
    /// It is made of another one: that one's key, how many were made of it so, colour and key.
    Parent(&'static str, usize, u64, i64, i32),
}

impl Maker {
    fn function(&self) -> &'static str {
        match self {
            Self::Id(function, _) | Self::Parent(function, ..) => function,
        }
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(_, number) => write!(formatter, "commId {number:#x}"),
            Self::Parent(_, parent, count, color, key) => {
                write!(formatter, "parent {parent:#x} childCount {count} color {color} key {key}")
            }
        }
    }
}

/// A communicator that is being made, and how long each part of that has taken.
#[derive(Debug)]
pub(super) struct Making {
    maker: Maker,
    begin: Instant,
    /// When the last part ended.
    last: Instant,
    parts: [Duration; 4],
}

/// The parts that are timed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The ranks find each other.
    Bootstrap,
    /// What they share is made.
    Alloc,
    /// All hear that all are ready.
    Allgathers,
    /// The rank takes its seat.
    Connections,
}

impl Making {
    /// Ends a part, which began when the last one ended.
    pub(super) fn ends(&mut self, part: Part) {
        let now = clock::now();
        self.parts[part as usize] += now - self.last;
        self.last = now;
    }
}

/// A data call with the arguments that the program gave, for the log alone.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The call's name without a prefix.
    pub name: &'static str,
    /// The address of the input; 0 where there is none.
    pub send: usize,
    /// The address of the result; also that of what is sent or received by [`Communicator::send`] and `recv`, as NCCL has it.
    pub recv: usize,
    /// Of elements.
    pub count: usize,
    /// The number of the type.
    pub dtype: i32,
    /// The number of the operator; 0 where there is none.
    pub op: i32,
    /// The root, or the peer.
    pub root: i32,
    /// The stream's handle, or 0.
    pub stream: usize,
}

impl Communicator {
    /// Says that it is being made.
    pub(super) fn say_start(&self, maker: Maker) -> Making {
        let now = clock::now();
        self.say_init(&maker, "START");
        Making { maker, begin: now, last: now, parts: [Duration::ZERO; 4] }
    }

    /// Says that it is made, how long that took, and by what this rank reaches the others.
    pub(super) fn say_complete(&self, making: &Making) {
        if !log::shows(INIT | PROFILE | P2P | SHM | NET) {
            return;
        }
        self.say_channels();
        let seconds = |part: Part| making.parts[part as usize].as_secs_f64();
        let total = (clock::now() - making.begin).as_secs_f64();
        let rest = total - making.parts.iter().sum::<Duration>().as_secs_f64();
        log::info(
            INIT | PROFILE,
            format_args!(
                "Init timings - {}{}: rank {} nranks {} total {total:.2} (kernels 0.00, alloc {:.2}, bootstrap {:.2}, allgathers {:.2}, topo \
                 0.00, graphs 0.00, connections {:.2}, rest {:.2})",
                self.face().prefix(),
                making.maker.function(),
                self.rank(),
                self.ranks(),
                seconds(Part::Alloc),
                seconds(Part::Bootstrap),
                seconds(Part::Allgathers),
                seconds(Part::Connections),
                rest.max(0.0),
            ),
        );
        self.say_init(&making.maker, "COMPLETE");
    }

    fn say_init(&self, maker: &Maker, what: &str) {
        let (comm, rank, ranks) = (self.key(), self.rank(), self.ranks());
        let head = if what == "START" { format!("[Rank {rank}] ") } else { String::new() };
        log::info(
            INIT,
            format_args!(
                "{head}{1}{2} comm {comm:#x} rank {rank} nranks {ranks} cudaDev {0} nvmlDev {0} busId 0 {maker} - Init {what}",
                self.device(),
                self.face().prefix(),
                maker.function()
            ),
        );
    }

    /// By what this rank reaches those of its host. Connections to other hosts are made when they are needed, and told of then.
    fn say_channels(&self) {
        let Some(joined) = self.shared.joined.get() else { return };
        let own = self.rank();
        for (peer, way) in joined.ways.iter().enumerate() {
            let (subsystem, via) = match way {
                Way::SameProcess => (P2P, "P2P/direct pointer"),
                Way::Kernel => (P2P, "P2P/CMA"),
                Way::Rings(_) => (SHM, "SHM/direct/direct"),
                Way::Itself | Way::Network(_) | Way::Rdma(_) | Way::Plugin(_) => continue,
            };
            log::info(INIT | subsystem, format_args!("Channel 00/0 : {own}[0] -> {peer}[0] via {via}"));
        }
        let on_one_host =
            !joined.ways.iter().any(|way| matches!(way, Way::Network(_) | Way::Rdma(_) | Way::Plugin(_)));
        if on_one_host && self.ranks() > 1 {
            // Each rank reaches each other one, so along rings and trees as well.
            log::info(INIT, format_args!("Connected all rings"));
            log::info(INIT, format_args!("Connected all trees"));
        }
    }

    /// Says what is asked of it, if the log follows calls.
    #[cold]
    pub fn say_call(&self, call: &Arguments) {
        let Arguments { name, send, recv, count, dtype, op, root, stream } = *call;
        let (comm, ranks) = (self.key(), self.ranks());
        let number = self.shared.joined.get().map_or(0, |joined| joined.seat.recorder.operations());
        let subsystems = if matches!(name, "Send" | "Recv") { COLL | P2P } else { COLL };
        log::info(
            subsystems,
            format_args!(
                "{name}: opCount {number:x} sendbuff {send:#x} recvbuff {recv:#x} count {count} datatype {dtype} op {op} root {root} comm \
                 {comm:#x} [nranks={ranks}] stream {stream:#x}"
            ),
        );
        let prefix = self.face().prefix();
        log::call(format_args!(
            "{prefix}{name}({send:#x},{recv:#x},{count},{dtype},{op},{root},{comm:#x},{stream:#x})"
        ));
    }
}

/// Says by which ports RDMA goes, if there are some.
pub(super) fn say_ports(ports: &[LocalPort]) {
    if !log::shows(INIT | NET) || ports.is_empty() {
        return;
    }
    let mut line = String::from("NET/IB : Using");
    for (index, port) in ports.iter().enumerate() {
        let _ = write!(line, " [{index}]{}", port.describe());
    }
    log::info_once(INIT | NET, &line);
    if let Ok(Ok(verbs)) = verbs::of_process()
        && let Some(caution) = verbs.caution()
    {
        log::info_once(INIT | NET, &format!("NET/IB : {caution}"));
    }
    log::info(INIT | NET, format_args!("Using network IB"));
}

/// Says which network a rank uses, as the ranks are of several hosts; `own` is what others are told of it.
pub(super) fn say_network(own: &PeerRecord) {
    if !log::shows(INIT | NET) {
        return;
    }
    // What cannot be found out now is not said.
    let interfaces = network::interfaces().unwrap_or_default();
    let mut line = String::from("NET/Socket : Using");
    for (index, ip) in own.addresses.iter().enumerate() {
        let name = interface_of(&interfaces, *ip).unwrap_or("?");
        let _ = write!(line, " [{index}]{name}:{ip}<{}>", own.port);
    }
    log::info_once(INIT | NET, &line);
    if bootstrap::is_encrypted() {
        log::info_once(
            INIT | NET,
            "NET/Socket : Encrypted with AES-256-GCM by the pre-shared key; RDMA is not used",
        );
    }
    log::info(INIT | NET, format_args!("Using network Socket"));
}
