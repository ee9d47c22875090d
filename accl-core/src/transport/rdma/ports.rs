//! Which ports of this host a link may use, and by which of their addresses.

use super::record::PortAddress;
use crate::config;
use crate::driver::verbs::{self, Device, Gid, GidEntry, GidKind, Port, Verbs};
use crate::error::{Error, ErrorKind, Result};
use crate::os::network::Family;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// A port that links may use.
#[derive(Clone, Debug)]
pub struct LocalPort {
    pub(super) device: Arc<dyn Device>,
    /// Its number, from 1 on.
    pub(super) number: u8,
    pub(super) address: PortAddress,
    /// The place of its address in the port's table.
    pub(super) gid_index: u8,
}

impl LocalPort {
    /// Device and port, for people.
    pub fn name(&self) -> String {
        format!("{}:{}", self.device.name(), self.number)
    }

    /// The same with its address, for the log.
    pub fn describe(&self) -> String {
        let PortAddress { gid, lid, kind, .. } = self.address;
        match kind {
            GidKind::InfiniBand => format!("{}/IB<LID {lid}>", self.name()),
            GidKind::RoceV1 | GidKind::RoceV2 => {
                let address = gid.ipv4().map_or_else(|| gid.to_string(), |ip| ip.to_string());
                format!("{}/RoCE<{address}>", self.name())
            }
        }
    }
}

/// What there is for RDMA on this host, in words.
#[derive(Debug)]
pub struct Survey {
    /// The ports that links may use.
    pub used: Vec<String>,
    /// Why other ports may not be used; or why there is none.
    pub not_used: Vec<String>,
    /// What a link to one peer locks for one kind of messages by one port.
    pub locked_bytes: usize,
}

/// Looks what there is for RDMA on this host.
pub fn survey(settings: &config::Verbs) -> Survey {
    let found = if settings.is_disabled {
        Ok((Vec::new(), vec!["NCCL_IB_DISABLE=1".to_string()]))
    } else {
        ports_of_process(settings)
    };
    let (ports, not_used) = found.unwrap_or_else(|error| (Vec::new(), vec![error.text().to_string()]));
    let used = ports.iter().map(LocalPort::describe).collect();
    Survey { used, not_used, locked_bytes: 2 * super::RING_BYTES }
}

/// The ports that the settings allow, and that have a link and an address; none without RDMA. Where the settings require some, an error
/// says why there are none.
pub fn local_ports(settings: &config::Verbs) -> Result<Vec<LocalPort>> {
    if settings.is_disabled {
        return Ok(Vec::new());
    }
    let (ports, reasons) = ports_of_process(settings)?;
    if ports.is_empty() && settings.is_required {
        let why = reasons.join("; ");
        let text = format!("ACCL_REQUIRE_PATH=rdma, but {why}; unset it to go by TCP");
        return Err(Error::new(ErrorKind::System, text));
    }
    Ok(ports)
}

/// The ports that this process may use, and why not others; or why there is none.
fn ports_of_process(settings: &config::Verbs) -> Result<(Vec<LocalPort>, Vec<String>)> {
    let (ports, mut reasons) = match verbs::of_process() {
        Ok(Ok(verbs)) => ports_of(verbs, settings)?,
        Ok(Err(absent)) => (Vec::new(), vec![absent.to_string()]),
        Err(error) => (Vec::new(), vec![error.text().to_string()]),
    };
    if ports.is_empty() && reasons.is_empty() {
        reasons.push(verbs::Absent::NoDevice.to_string());
    }
    Ok((ports, reasons))
}

/// The ports of `verbs` that may be used, and for each other one why not.
pub(super) fn ports_of(verbs: &dyn Verbs, settings: &config::Verbs) -> Result<(Vec<LocalPort>, Vec<String>)> {
    let (mut ports, mut reasons) = (Vec::new(), Vec::new());
    let devices = match verbs.devices() {
        Ok(devices) => devices,
        Err(error) => return Ok((ports, vec![error.text().to_string()])),
    };
    for device in devices {
        for number in 1..=device.ports() {
            let name = format!("{}:{number}", device.name());
            if settings.devices.as_ref().is_some_and(|rule| !rule.allows(device.name(), number)) {
                reasons.push(format!("{name} is left out by NCCL_IB_HCA"));
                continue;
            }
            match device.port(number).and_then(|port| address_of(&port, settings, &name)) {
                Ok((address, gid_index)) => {
                    ports.push(LocalPort { device: device.clone(), number, address, gid_index });
                }
                Err(error) => reasons.push(error.text().to_string()),
            }
        }
    }
    ports.truncate(super::record::MOST_PORTS);
    Ok((ports, reasons))
}

/// By which address to use a port; an error (System) says why it cannot be used.
fn address_of(port: &Port, settings: &config::Verbs, name: &str) -> Result<(PortAddress, u8)> {
    let cannot = |why: String| Error::new(ErrorKind::System, format!("port {name} {why}"));
    if !port.is_active {
        let state = ["unknown", "down", "initialising", "armed", "active", "deferred"];
        let state = state.get(port.state as usize).unwrap_or(&"in another state");
        return Err(cannot(format!(
            "is {state}; see its cable and switch, and that its interface is up (ip link)"
        )));
    }
    let mtu = port.mtu.clamp(1, 5) as u8;
    let address = |gid: Gid, kind, index: u32| {
        (PortAddress { gid, lid: port.lid, mtu, kind }, u8::try_from(index).unwrap_or(0))
    };
    if let Some(index) = settings.gid_index {
        let found = port.gids.iter().find(|entry| entry.index == u32::from(index));
        let entry = found.ok_or_else(|| {
            cannot(format!("has no GID of index {index} (NCCL_IB_GID_INDEX); unset it, or see show_gids or ibv_devinfo -v"))
        })?;
        return Ok(address(entry.gid, entry.kind, entry.index));
    }
    if !port.is_ethernet {
        let gid = port.gids.first().map_or_else(Gid::default, |entry| entry.gid);
        return Ok(address(gid, GidKind::InfiniBand, 0));
    }
    let wanted = if settings.roce_version == 1 { GidKind::RoceV1 } else { GidKind::RoceV2 };
    let best = port.gids.iter().filter(|entry| entry.kind == wanted && may_use(entry, settings));
    // Of several, one that leads beyond the next router, in the family that is wanted; the first of those.
    let best = best.min_by_key(|entry| {
        let family = entry.gid.ipv4().is_some() == (settings.family == Family::V4);
        (entry.gid.is_link_local(), !family, entry.index)
    });
    let entry = best.ok_or_else(|| {
        cannot(format!(
            "has no GID for RoCE v{} that the settings allow (NCCL_IB_ADDR_RANGE); give its interface an address, or set NCCL_IB_ROCE_VERSION_NUM",
            settings.roce_version
        ))
    })?;
    Ok(address(entry.gid, entry.kind, entry.index))
}

fn may_use(entry: &GidEntry, settings: &config::Verbs) -> bool {
    let ip = || entry.gid.ipv4().map_or_else(|| IpAddr::from(Ipv6Addr::from(entry.gid.0)), IpAddr::from);
    !entry.gid.is_empty() && entry.index <= 255 && settings.range.is_none_or(|range| range.contains(ip()))
        || entry.gid.is_link_local() && settings.range.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::fake::Fake;

    fn port(gids: Vec<GidEntry>) -> Port {
        Port { is_active: true, state: 4, is_ethernet: true, mtu: 5, message_bytes: 1 << 30, lid: 0, gids }
    }

    fn entry(index: u32, kind: GidKind, address: &str) -> GidEntry {
        let gid = match address.parse().unwrap() {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        };
        GidEntry { index, kind, gid }
    }

    #[test]
    fn the_address_is_chosen_by_kind_and_not_by_place() {
        let table = vec![
            entry(0, GidKind::RoceV1, "fe80::1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV1, "10.0.0.1"),
            entry(3, GidKind::RoceV2, "fd00::1"),
            entry(4, GidKind::RoceV2, "10.0.0.1"),
            entry(5, GidKind::RoceV2, "10.1.0.1"),
        ];
        let chosen = |pairs: &[(&str, &str)]| {
            let settings = config::Network::from_source_for_tests(pairs).verbs;
            address_of(&port(table.clone()), &settings, "x:1").map(|(_, index)| index)
        };
        assert_eq!(chosen(&[]).unwrap(), 4);
        assert_eq!(chosen(&[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]).unwrap(), 3);
        assert_eq!(chosen(&[("NCCL_IB_ROCE_VERSION_NUM", "1")]).unwrap(), 2);
        assert_eq!(chosen(&[("NCCL_IB_ADDR_RANGE", "10.1.0.0/16")]).unwrap(), 5);
        assert_eq!(chosen(&[("NCCL_IB_GID_INDEX", "0")]).unwrap(), 0);
        let missing = chosen(&[("NCCL_IB_GID_INDEX", "9")]).unwrap_err();
        assert!(missing.text().contains("port x:1 has no GID of index 9"), "{missing}");
        let none = chosen(&[("NCCL_IB_ADDR_RANGE", "11.0.0.0/8")]).unwrap_err();
        assert!(none.text().contains("give its interface an address"), "{none}");
        let only_local = port(vec![entry(0, GidKind::RoceV2, "fe80::2")]);
        assert_eq!(address_of(&only_local, &config::Verbs::default(), "x:1").unwrap().1, 0);
    }

    #[test]
    fn ports_that_are_down_or_left_out_are_named_with_the_reason() {
        let fake = Fake::new(3, 1);
        fake.set_down(1, true);
        let settings = config::Network::from_source_for_tests(&[("NCCL_IB_HCA", "^fake2")]).verbs;
        let (ports, reasons) = ports_of(&fake, &settings).unwrap();
        assert_eq!(ports.iter().map(LocalPort::name).collect::<Vec<_>>(), ["fake0:1"]);
        assert_eq!(ports[0].describe(), "fake0:1/RoCE<10.0.0.1>");
        assert!(
            reasons[0].contains("port fake1:1 is down") && reasons[1].contains("NCCL_IB_HCA"),
            "{reasons:?}"
        );
    }

    #[test]
    fn what_is_required_and_not_there_is_an_error_that_says_so() {
        let settings = config::Verbs {
            is_disabled: false,
            is_required: true,
            devices: Some(config::DeviceRule::parse("=no such device")),
            ..config::Verbs::default()
        };
        let error = local_ports(&settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.text().starts_with("ACCL_REQUIRE_PATH=rdma, but "), "{error}");
        assert!(local_ports(&config::Verbs { is_disabled: true, ..settings }).unwrap().is_empty());
    }
}
