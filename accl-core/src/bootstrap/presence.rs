//! Where this process can be reached from other hosts: its TCP port, and the addresses that others are told.

use super::service::Service;
use super::wire::{HOST_BYTES, MOST_ADDRESSES, PeerRecord};
use crate::config::Network;
use crate::config::subsystem::BOOTSTRAP;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{network, process};
use crate::telemetry::log;
use crate::topo::{Candidate, Place, Uplink, candidates, fnv1a};
use std::net::IpAddr;
use std::sync::Arc;

/// The TCP port of this process, open until this is dropped (and as long as others need it).
#[derive(Debug)]
pub struct Presence {
    service: Arc<Service>,
    port: u16,
    addresses: Vec<IpAddr>,
    host_id: Option<u64>,
    /// The service keeps the port open for this.
    holds: bool,
    /// Why no other host can reach this process, and whether that is for lack of something or by somebody's choice.
    problem: Option<(Error, bool)>,
}

impl Presence {
    /// Opens the port, if it is not open. That it cannot be opened, or that there are no addresses, is no error yet: ranks
    /// of one host need neither. See [`Presence::check`].
    pub fn of(settings: &Network) -> Result<Self> {
        let service = Service::of_process()?;
        let host_id = host_id(settings)?;
        let (told, no_address) = match addresses(settings) {
            Ok(told) => (told, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        // Who says which interfaces are used wants no door anywhere else.
        let restricted = settings.interfaces.is_some();
        let only: Vec<_> = told.iter().filter(|_| restricted).map(Candidate::at).collect();
        let holds = !restricted || !only.is_empty();
        let (port, no_port) = match if holds { service.hold_port(settings, &only)? } else { Ok(0) } {
            Ok(port) => (port, None),
            Err(error) => (0, Some(why_no_port(settings, &error))),
        };
        let chosen = restricted || settings.family.is_some();
        if let Some(best) = told.first().filter(|_| port > 0) {
            log::info_once(BOOTSTRAP, &format!("Bootstrap: Using {}:{}<{port}>", best.interface, best.ip));
        }
        let problem = no_port.or_else(|| no_address.map(|error| (error, chosen)));
        let addresses = told.into_iter().map(|one| one.ip).collect();
        Ok(Self { service, port, addresses, host_id, holds, problem })
    }

    /// That of a process that no other host will want to reach: there is no port.
    pub(super) fn at_home(settings: &Network) -> Result<Self> {
        let service = Service::of_process()?;
        let host_id = host_id(settings)?;
        Ok(Self { service, port: 0, addresses: Vec::new(), host_id, holds: false, problem: None })
    }

    /// The port; 0 if there is none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What others are told, best first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// What others are told of a rank of this process.
    pub fn record(&self) -> Result<PeerRecord> {
        let mut host = network::host_name();
        host.truncate(host.floor_char_boundary(HOST_BYTES));
        let addresses = self.addresses.iter().take(MOST_ADDRESSES).copied().collect();
        let (place, uplink) = (Place::here()?, Uplink::default());
        Ok(PeerRecord {
            place,
            host_id: self.host_id,
            port: self.port,
            addresses,
            host,
            uplink,
            on_device: false,
            has_verbs: false,
            plugin: 0,
        })
    }

    /// An error if other hosts cannot reach this process, with the reason.
    pub fn check(&self) -> Result<()> {
        self.problem.as_ref().map_or(Ok(()), |(error, _)| Err(error.clone()))
    }

    /// The same, but only if that is for lack of something that may come back, or for what the settings ask for.
    pub(super) fn check_resources(&self) -> Result<()> {
        if self.problem.as_ref().is_some_and(|(_, lack)| *lack) { self.check() } else { Ok(()) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.holds {
            self.service.release_port();
        }
    }
}

fn host_id(settings: &Network) -> Result<Option<u64>> {
    if settings.apart {
        return Ok(Some(Place::here()?.process));
    }
    Ok(settings.host_id.as_ref().map(|text| fnv1a(text.as_bytes())))
}

fn addresses(settings: &Network) -> Result<Vec<Candidate>> {
    let interfaces = network::interfaces()?;
    let near = settings.comm_id.as_ref().and_then(|address| address.host.parse().ok());
    let told = candidates(&interfaces, settings.interfaces.as_ref(), settings.family, near);
    if told.is_empty() {
        let names = interfaces
            .iter()
            .map(|one| format!("{}{}", one.name, if one.up && one.running { "" } else { " (down)" }));
        let rule = settings.interfaces.as_ref().map(|rule| format!(" that NCCL_SOCKET_IFNAME={rule} allows"));
        let family = settings.family.map(|family| {
            format!(" of NCCL_SOCKET_FAMILY=AF_INET{}", if family == network::Family::V6 { "6" } else { "" })
        });
        return Err(Error::new(
            ErrorKind::System,
            format!(
                "host {} has no usable network interface{} with an address{}: there are {}; bring one up, or choose it \
                 with NCCL_SOCKET_IFNAME{}",
                network::host_name(),
                rule.unwrap_or_default(),
                family.unwrap_or_default(),
                names.collect::<Vec<_>>().join(", "),
                if settings.apart { "; without ACCL_SHM_DISABLE=1, ranks of one host need none" } else { "" },
            ),
        ));
    }
    Ok(told)
}

fn why_no_port(settings: &Network, error: &std::io::Error) -> (Error, bool) {
    let host = network::host_name();
    match &settings.ports {
        Some(range) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let (first, last) = (range.start(), range.end());
            let text = format!(
                "every TCP port of ACCL_PORT_RANGE={first}-{last} is in use on host {host}; each process needs one: widen \
                 the range"
            );
            (Error::new(ErrorKind::System, text), true)
        }
        _ => (
            Error::system(format!("cannot listen on a TCP port on host {host}"), error),
            process::lacks_resources(error),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::InterfaceRule;

    #[test]
    fn what_keeps_others_away_is_said_and_no_error_before_it_matters() {
        let settings = Network { interfaces: Some(InterfaceRule::parse("=none")), ..Network::default() };
        let presence = Presence::of(&settings).unwrap();
        let record = presence.record().unwrap();
        assert_eq!((record.port, record.addresses), (presence.port(), Vec::new()));
        for check in [presence.check(), presence.check_resources()] {
            let error = check.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System);
            assert!(error.text().contains("NCCL_SOCKET_IFNAME==none allows"), "{error}");
        }
    }

    #[test]
    fn the_port_stays_as_long_as_somebody_holds_it() {
        let settings = Network { host_id: Some("a".into()), ..Network::default() };
        let (one, other) = (Presence::of(&settings).unwrap(), Presence::of(&settings).unwrap());
        assert_eq!(one.port(), other.port());
        drop(one);
        assert_eq!(Presence::of(&settings).unwrap().port(), other.port());
        assert_eq!(other.record().unwrap().host_id, Some(fnv1a(b"a")));
    }
}
