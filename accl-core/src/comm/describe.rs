//! What a rank knows of the others, and a process of itself, as JSON text for tools.
//!
//! The text is put together by hand: there is little of it, and it is the only JSON that the library writes.

use super::Communicator;
use crate::bootstrap::{PeerRecord, Presence, reached};
use crate::config::{Network, Settings};
use crate::error::Result;
use crate::os::network::{self, Interface};
use crate::topo::{candidates, fnv1a, interface_towards, targets};
use crate::transport::rdma::{LocalPort, local_ports, survey};
use crate::transport::shm::Reach;
use crate::tune;
use crate::types::Rank;
use std::fmt::Write;

/// How data gets from one rank to another, and why so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Itself,
    SameProcess,
    Kernel,
    Rings(&'static str),
    Network(&'static str),
    /// RDMA, as far as paths are up.
    Rdma(&'static str),
    /// A network plugin, if both ends come to terms.
    Plugin(&'static str),
}

impl Way {
    pub(super) fn of(reach: Reach, peer: &PeerRecord, own: &PeerRecord, settings: &Settings) -> Self {
        let way = match reach {
            Reach::SameProcess => Self::SameProcess,
            Reach::CrossProcess(_) => Self::Kernel,
            Reach::None if peer.place.kernel != own.place.kernel => {
                Self::Network("another kernel: a machine of its own")
            }
            Reach::None if peer.place.network != own.place.network => Self::Network(
                "another network namespace: local sockets, by which memory is handed over, do not reach it",
            ),
            Reach::None if !peer.shares_host(own) => {
                Self::Network("told to be different hosts (NCCL_HOSTID or NCCL_SHM_DISABLE)")
            }
            Reach::None if !settings.cross_memory => Self::Rings("ACCL_CROSS_MEMORY=0"),
            Reach::None if !peer.place.shares_pids(&own.place) => {
                Self::Rings("another PID namespace: its process number means nothing here")
            }
            Reach::None => Self::Rings("the kernel does not permit process_vm_readv there"),
        };
        match way {
            Self::Network(why) if own.plugin != 0 && own.plugin == peer.plugin => Self::Plugin(why),
            Self::Network(why) if own.has_verbs && peer.has_verbs => Self::Rdma(why),
            way => way,
        }
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Itself => ("none", "the rank itself"),
            Self::SameProcess => ("threads", "same process: memory is read in place"),
            Self::Kernel => ("shared-memory", "same host: the kernel reads the other process's memory"),
            Self::Rings(why) => ("shared-memory-rings", why),
            Self::Network(why) => ("tcp", why),
            Self::Rdma(why) => ("rdma", why),
            Self::Plugin(why) => ("plugin", why),
        }
    }
}

impl Communicator {
    /// This rank's view, as a JSON object: who and where it is, and for each peer the transport and its reason.
    pub fn describe(&self) -> Result<String> {
        self.check_ready()?;
        let joined = self.joined()?;
        let own = &joined.peers[self.rank()];
        let (interfaces, settings) = (network::interfaces()?, Network::load()?);
        let mut text = format!(
            "{{\"rank\":{},\"ranks\":{},\"host\":{},\"host_key\":\"{:016x}\",\"pid\":{},\"port\":{},\"interfaces\":[",
            self.rank(),
            self.ranks(),
            quoted(&own.host),
            host_key(own),
            own.place.pid,
            own.port
        );
        let told = own.addresses.iter().map(|ip| {
            let interface = crate::topo::interface_of(&interfaces, *ip).unwrap_or("?");
            format!("{{\"interface\":{},\"address\":\"{ip}\"}}", quoted(interface))
        });
        text += &told.collect::<Vec<_>>().join(",");
        text += "],\"rdma\":[";
        let ports = if own.has_verbs { local_ports(&settings.verbs).unwrap_or_default() } else { Vec::new() };
        text += &list(ports.iter().map(LocalPort::describe));
        text += "],\"peers\":[";
        let peers = joined.ways.iter().zip(&joined.peers).enumerate();
        let peers = peers.filter(|(_, (way, _))| **way != Way::Itself);
        let peers = peers.map(|(rank, (way, peer))| peer_text(rank, *way, peer, &interfaces, &settings));
        text += &peers.collect::<Vec<_>>().join(",");
        text += "]}";
        Ok(text)
    }
}

fn peer_text(
    rank: Rank,
    way: Way,
    peer: &PeerRecord,
    interfaces: &[Interface],
    settings: &Network,
) -> String {
    let (transport, reason) = way.names();
    let mut text = format!("{{\"rank\":{rank},\"transport\":\"{transport}\",\"reason\":{}", quoted(reason));
    if matches!(way, Way::Network(_) | Way::Rdma(_) | Way::Plugin(_)) {
        let known = reached(peer);
        let first =
            || targets(&peer.addresses, peer.port, interfaces, settings.family).first().map(|to| to.ip());
        if let Some(ip) = known.or_else(first) {
            let interface = interface_towards(interfaces, ip).unwrap_or("by the routing table");
            let connected = known.is_some();
            let _ = write!(
                text,
                ",\"address\":\"{ip}\",\"interface\":{},\"proved\":{connected}",
                quoted(interface)
            );
        }
    }
    text + "}"
}

/// What this process would tell others of itself, as a JSON object: its interfaces, in the order in which they would be
/// told, and why others are not; its TCP port, or why there is none; and where the figures of the machine are looked for.
pub fn describe_process() -> Result<String> {
    let settings = Settings::load()?.network;
    let interfaces = network::interfaces()?;
    let near = settings.comm_id.as_ref().and_then(|address| address.host.parse().ok());
    let told = candidates(&interfaces, settings.interfaces.as_ref(), settings.family, near);
    let told_text = told
        .iter()
        .map(|one| format!("{{\"interface\":{},\"address\":\"{}\"}}", quoted(&one.interface), one.ip));
    let others = interfaces.iter().filter(|one| !told.iter().any(|told| told.interface == one.name));
    let others = others.map(|one| {
        let why = quoted(&why_not(one, &settings));
        format!("{{\"interface\":{},\"reason\":{why}}}", quoted(&one.name))
    });
    let presence = Presence::of(&settings)?;
    let port = match (presence.port(), presence.check()) {
        (0, Err(error)) => format!("\"port\":null,\"port_error\":{}", quoted(error.text())),
        (port, _) => format!("\"port\":{port}"),
    };
    let cache = tune::cache_file().ok().filter(|file| file.exists());
    let cache = cache.map_or_else(|| "null".to_string(), |file| quoted(&file.display().to_string()));
    let rdma = survey(&settings.verbs);
    Ok(format!(
        "{{\"host\":{},\"told\":[{}],\"not_told\":[{}],{port},\"tune_cache\":{cache},\"rdma\":{{\"used\":[{}],\"not_used\":[{}],\
         \"locked_bytes\":{}}}}}",
        quoted(&network::host_name()),
        told_text.collect::<Vec<_>>().join(","),
        others.collect::<Vec<_>>().join(","),
        list(rdma.used),
        list(rdma.not_used),
        rdma.locked_bytes,
    ))
}

fn list(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().map(|text| quoted(&text)).collect::<Vec<_>>().join(",")
}

fn why_not(interface: &Interface, settings: &Network) -> String {
    if !interface.up {
        return "it is down".to_string();
    }
    if !interface.running {
        return "it has no carrier".to_string();
    }
    if let Some(rule) = settings.interfaces.as_ref().filter(|rule| !rule.allows(&interface.name)) {
        return format!("NCCL_SOCKET_IFNAME={rule} excludes it");
    }
    if interface.addresses.is_empty() {
        return "it has no address".to_string();
    }
    if interface.loopback {
        return "loopback leads to this host only, and there are others".to_string();
    }
    "it has no address of the family that NCCL_SOCKET_FAMILY asks for".to_string()
}

/// Equal for ranks that share memory.
fn host_key(record: &PeerRecord) -> u64 {
    let parts = [record.place.kernel, record.place.network, record.host_id.unwrap_or(0)];
    fnv1a(&parts.map(u64::to_le_bytes).concat())
}

/// A JSON text.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::CommConfig;

    #[test]
    fn ranks_of_a_process_read_in_place() {
        let ranks = Communicator::init_all(3, None, &CommConfig::default()).unwrap();
        let text = ranks[1].describe().unwrap();
        assert!(text.starts_with("{\"rank\":1,\"ranks\":3,\"host\":\""), "{text}");
        assert_eq!(text.matches("\"transport\":\"threads\"").count(), 2, "{text}");
        assert!(
            text.contains("{\"rank\":0,") && text.contains("{\"rank\":2,") && text.ends_with("}]}"),
            "{text}"
        );
    }

    #[test]
    fn what_keeps_an_interface_from_being_told_is_said() {
        let rule = Some(crate::config::InterfaceRule::parse("eth"));
        let settings = Network { interfaces: rule, ..Network::default() };
        let interface = Interface { name: "lo".into(), up: true, running: true, ..Interface::default() };
        assert_eq!(why_not(&interface, &settings), "NCCL_SOCKET_IFNAME=eth excludes it");
        assert_eq!(why_not(&interface, &Network::default()), "it has no address");
        assert_eq!(why_not(&Interface { up: false, ..interface }, &settings), "it is down");
    }

    #[test]
    fn texts_are_json() {
        assert_eq!(quoted("a\"b\\c\nä"), "\"a\\\"b\\\\c\\u000aä\"");
    }
}
