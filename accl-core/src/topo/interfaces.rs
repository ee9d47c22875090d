//! Which addresses of this host others are told, and in which order a peer's addresses are tried. Pure.
//!
//! NCCL picks one interface, by name. Here the same order of names makes a list: every address that could be of use
//! is told, and a peer tries them until one proves that it is ours. So bridges, interfaces that lead nowhere and
//! networks that the peer has no part in cost time, and break nothing.

use crate::config::InterfaceRule;
use crate::os::network::{Family, Interface};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// An address that others may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Whose it is.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// The number of the interface: what a link-local address means depends on it.
    pub index: u32,
}

impl Candidate {
    /// Where to listen if nothing else may be listened on; port 0 for any.
    pub fn at(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V6(ip) if is_link_local(self.ip) => SocketAddrV6::new(ip, 0, 0, self.index).into(),
            ip => SocketAddr::new(ip, 0),
        }
    }
}

/// How an interface is chosen by its name where nobody chooses, best first (`abi/nccl.md` §5.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    InfiniBand,
    NearRoot,
    Ordinary,
    Docker,
    Loopback,
    Virtual,
}

/// The addresses of this host that others are told, best first; `near` is an address that the job has in common
/// (`COMM_ID`). Loopback addresses are among them only where they were asked for, or where there is nothing else.
pub fn candidates(
    interfaces: &[Interface],
    rule: Option<&InterfaceRule>,
    family: Option<Family>,
    near: Option<IpAddr>,
) -> Vec<Candidate> {
    let usable = |interface: &&Interface| {
        interface.up && interface.running && rule.is_none_or(|rule| rule.allows(&interface.name))
    };
    let mut chosen: Vec<_> = interfaces.iter().filter(usable).collect();
    if rule.is_none() {
        chosen.sort_by_key(|interface| class(interface, near));
    }
    let mut all: Vec<_> = chosen
        .iter()
        .flat_map(|interface| interface.addresses.iter().map(|address| (*interface, address.ip)))
        .filter(|(_, ip)| family.is_none_or(|family| Family::of(*ip) == family))
        .filter(|(_, ip)| is_told(*ip))
        .collect();
    if rule.is_none() && all.iter().any(|(interface, _)| !interface.loopback) {
        all.retain(|(interface, _)| !interface.loopback);
    }
    all.sort_by_key(|(_, ip)| is_link_local(*ip));
    let told = |(interface, ip): (&Interface, _)| Candidate {
        interface: interface.name.clone(),
        ip,
        index: interface.index,
    };
    all.into_iter().map(told).collect()
}

/// Where to try to reach somebody who is told to have these addresses, best first. What shares a subnet with this host
/// comes first; what this host itself has comes last, since it can lead back here; a link-local address is tried
/// by every interface, since only the peer knows its own.
pub fn targets(
    addresses: &[IpAddr],
    port: u16,
    interfaces: &[Interface],
    family: Option<Family>,
) -> Vec<SocketAddr> {
    let own = |ip: IpAddr| interfaces.iter().any(|one| one.addresses.iter().any(|mine| mine.ip == ip));
    let near = |ip: IpAddr| interfaces.iter().any(|one| one.up && is_on(one, ip));
    let mut ordered: Vec<_> =
        addresses.iter().filter(|ip| family.is_none_or(|family| Family::of(**ip) == family)).collect();
    ordered.sort_by_key(|ip| (own(**ip), is_link_local(**ip), !near(**ip)));
    let scopes = |ip: &IpAddr| -> Vec<SocketAddr> {
        let IpAddr::V6(v6) = ip else { return vec![SocketAddr::new(*ip, port)] };
        if !is_link_local(*ip) {
            return vec![SocketAddr::new(*ip, port)];
        }
        let links = interfaces.iter().filter(|one| one.up && one.running && !one.loopback);
        let links = links.filter(|one| one.addresses.iter().any(|mine| mine.ip.is_ipv6()));
        links.map(|one| SocketAddrV6::new(*v6, port, 0, one.index).into()).collect()
    };
    ordered.into_iter().flat_map(scopes).collect()
}

/// A way to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Its address.
    pub to: IpAddr,
    /// The number of the interface, if the address means something only there.
    pub scope: u32,
    /// The interface of this host by which the way must lead, and its address; none leaves that to the system.
    pub by: Option<(String, IpAddr)>,
}

impl Route {
    /// Where to connect to.
    pub fn target(&self, port: u16) -> SocketAddr {
        match self.to {
            IpAddr::V6(ip) if is_link_local(self.to) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// Ways to somebody who is told to have these addresses, besides the one from `first.0` to `first.1` that is known to lead there:
/// by each other interface that has a subnet in common with him, to an address of its own.
pub fn routes(
    addresses: &[IpAddr],
    first: (IpAddr, IpAddr),
    interfaces: &[Interface],
    rule: Option<&InterfaceRule>,
    family: Option<Family>,
) -> Vec<Route> {
    let own = |ip: IpAddr| interfaces.iter().any(|one| one.addresses.iter().any(|mine| mine.ip == ip));
    let mut used: Vec<_> = interface_of(interfaces, first.0).map(str::to_string).into_iter().collect();
    let mut routes: Vec<Route> = Vec::new();
    for mine in candidates(interfaces, rule, family, None) {
        let Some(interface) = interfaces.iter().find(|one| one.name == mine.interface) else { continue };
        let bits = interface.addresses.iter().find(|one| one.ip == mine.ip).map_or(0, |one| one.prefix_bits);
        let free = |ip: &&IpAddr| {
            let taken = **ip == first.1 || routes.iter().any(|route| route.to == **ip);
            shares_prefix(mine.ip, **ip, bits) && !taken && !own(**ip) && !is_link_local(**ip)
        };
        if used.contains(&mine.interface) {
            continue;
        }
        if let Some(to) = addresses.iter().find(free) {
            used.push(mine.interface.clone());
            routes.push(Route { to: *to, scope: interface.index, by: Some((mine.interface, mine.ip)) });
        }
    }
    routes
}

/// The interface that has this address.
pub fn interface_of(interfaces: &[Interface], ip: IpAddr) -> Option<&str> {
    let has = |interface: &&Interface| interface.addresses.iter().any(|address| address.ip == ip);
    interfaces.iter().find(has).map(|interface| interface.name.as_str())
}

/// The interface whose subnet has this address of somebody else.
pub fn interface_towards(interfaces: &[Interface], ip: IpAddr) -> Option<&str> {
    interfaces.iter().find(|one| one.up && is_on(one, ip)).map(|interface| interface.name.as_str())
}

/// True if the address means something only to those on its own link.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_told(ip: IpAddr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_ipv6() && ip.is_loopback())
}

fn class(interface: &Interface, near: Option<IpAddr>) -> Class {
    let name = interface.name.as_str();
    if name.starts_with("ib") {
        Class::InfiniBand
    } else if near.is_some_and(|ip| is_on(interface, ip)) {
        Class::NearRoot
    } else if name.starts_with("docker") {
        Class::Docker
    } else if interface.loopback || name == "lo" {
        Class::Loopback
    } else if name.starts_with("virbr") {
        Class::Virtual
    } else {
        Class::Ordinary
    }
}

/// True if `ip` is in a subnet of the interface.
fn is_on(interface: &Interface, ip: IpAddr) -> bool {
    interface.addresses.iter().any(|mine| shares_prefix(mine.ip, ip, mine.prefix_bits))
}

fn shares_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let bits = u32::from(bits);
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            bits > 0 && (one.to_bits() ^ other.to_bits()).leading_zeros() >= bits.min(32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            bits > 0 && (one.to_bits() ^ other.to_bits()).leading_zeros() >= bits.min(128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::network::InterfaceAddress;
    use proptest::prelude::*;

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|text| {
            let (ip, bits) = text.split_once('/').unwrap();
            InterfaceAddress { ip: ip.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
        });
        let loopback = name == "lo";
        Interface {
            name: name.into(),
            index,
            up: true,
            running: true,
            loopback,
            addresses: addresses.collect(),
        }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface(1, "lo", &["127.0.0.1/8", "::1/128"]),
            interface(2, "virbr0", &["192.168.122.1/24"]),
            interface(3, "docker0", &["172.17.0.1/16"]),
            interface(4, "eth0", &["10.0.0.5/24", "fd00::5/64", "fe80::5/64"]),
            interface(5, "eth1", &["10.1.0.5/24", "169.254.3.4/16"]),
            Interface { running: false, ..interface(6, "eth2", &["10.2.0.5/24"]) },
            interface(7, "ib0", &["10.3.0.5/24"]),
        ]
    }

    fn told(rule: Option<&str>, family: Option<Family>, near: Option<&str>) -> String {
        let rule = rule.map(InterfaceRule::parse);
        let all = candidates(&host(), rule.as_ref(), family, near.map(|ip| ip.parse().unwrap()));
        all.iter().map(|one| one.ip.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_order_of_candidates_is_that_of_nccl() {
        assert_eq!(
            told(None, None, None),
            "10.3.0.5 10.0.0.5 fd00::5 10.1.0.5 172.17.0.1 192.168.122.1 fe80::5 169.254.3.4"
        );
        assert_eq!(
            told(None, Some(Family::V4), Some("10.1.0.77")),
            "10.3.0.5 10.1.0.5 10.0.0.5 172.17.0.1 192.168.122.1 169.254.3.4"
        );
        assert_eq!(told(None, Some(Family::V6), None), "fd00::5 fe80::5");
        assert_eq!(told(Some("lo,docker"), None, None), "127.0.0.1 172.17.0.1");
        assert_eq!(told(Some("^=eth1,ib0,lo"), Some(Family::V4), None), "192.168.122.1 172.17.0.1 10.0.0.5");
        assert_eq!(told(Some("eth2"), None, None), "", "an interface without carrier");
    }

    #[test]
    fn loopback_serves_where_there_is_nothing_else() {
        let all = candidates(&host()[..1], None, None, None);
        assert_eq!(all, [Candidate { interface: "lo".into(), ip: "127.0.0.1".parse().unwrap(), index: 1 }]);
        assert!(candidates(&[], None, None, None).is_empty());
    }

    #[test]
    fn near_addresses_are_tried_first_and_own_ones_last() {
        let peer = ["172.17.0.1", "192.168.1.9", "10.1.0.9", "fe80::9"].map(|ip| ip.parse().unwrap());
        let order: Vec<_> = targets(&peer, 7, &host(), None).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["10.1.0.9:7", "192.168.1.9:7", "[fe80::9%4]:7", "172.17.0.1:7"]);
        let only: Vec<_> = targets(&peer, 7, &host(), Some(Family::V6));
        assert_eq!(only, ["[fe80::9%4]:7".parse().unwrap()]);
        assert_eq!(interface_of(&host(), "10.1.0.5".parse().unwrap()), Some("eth1"));
        assert_eq!(interface_towards(&host(), "10.3.0.77".parse().unwrap()), Some("ib0"));
        assert_eq!(interface_towards(&host(), "10.99.0.1".parse().unwrap()), None);
    }

    #[test]
    fn each_interface_is_a_way_of_its_own_to_an_address_of_its_own() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let peer =
            ["10.0.0.9", "fd00::9", "172.17.0.1", "10.1.0.9", "10.3.0.9", "10.99.0.1", "fe80::9"].map(ip);
        let list = |first: (&str, &str), rule: Option<&str>| {
            let rule = rule.map(InterfaceRule::parse);
            let first = (ip(first.0), ip(first.1));
            let all = routes(&peer, first, &host(), rule.as_ref(), None);
            let text = |route: &Route| format!("{} by {}", route.to, route.by.as_ref().unwrap().0);
            all.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(list(("10.0.0.5", "10.0.0.9"), None), "10.3.0.9 by ib0, 10.1.0.9 by eth1");
        assert_eq!(list(("10.1.0.5", "10.1.0.9"), None), "10.3.0.9 by ib0, 10.0.0.9 by eth0");
        assert_eq!(list(("10.1.0.5", "10.1.0.9"), Some("eth")), "10.0.0.9 by eth0");
        assert_eq!(list(("10.1.0.5", "10.1.0.9"), Some("eth1")), "");
        // The peer's address that serves already is not taken for another way.
        assert_eq!(list(("172.17.0.1", "10.0.0.9"), Some("=eth0")), "fd00::9 by eth0");
        let route = Route { to: ip("fe80::9"), scope: 4, by: None };
        assert_eq!(route.target(7), "[fe80::9%4]:7".parse().unwrap());
    }

    fn any_interface() -> impl Strategy<Value = Interface> {
        let address = prop_oneof![
            any::<u32>().prop_map(|bits| (IpAddr::V4(bits.into()), 24)),
            any::<u128>().prop_map(|bits| (IpAddr::V6(bits.into()), 64)),
        ];
        let address = address.prop_map(|(ip, prefix_bits)| InterfaceAddress { ip, prefix_bits });
        (
            "(eth|lo|docker|virbr|ib)[0-9]?",
            1u32..9,
            any::<(bool, bool)>(),
            prop::collection::vec(address, 0..4),
        )
            .prop_map(|(name, index, (up, running), addresses)| {
                let loopback = name.starts_with("lo");
                Interface { name, index, up, running, loopback, addresses }
            })
    }

    proptest! {
        #[test]
        fn only_usable_addresses_are_told_and_each_once(all in prop::collection::vec(any_interface(), 0..6)) {
            let told = candidates(&all, None, None, None);
            for one in &told {
                let has = |interface: &&Interface| interface.addresses.iter().any(|mine| mine.ip == one.ip);
                prop_assert!(all.iter().filter(has).any(|interface| interface.up && interface.running));
            }
            let usable: usize = all.iter().filter(|one| one.up && one.running).map(|one| one.addresses.len()).sum();
            prop_assert!(told.len() <= usable);
            let addresses: Vec<_> = told.iter().map(|one| one.ip).collect();
            let tried = targets(&addresses, 9, &all, None);
            prop_assert!(addresses.iter().all(|ip| is_link_local(*ip) || tried.iter().any(|one| one.ip() == *ip)));
        }
    }
}
