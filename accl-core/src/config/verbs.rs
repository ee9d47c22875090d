//! The settings about RDMA: `IB_DISABLE`, `IB_HCA`, `IB_GID_INDEX`, `IB_ADDR_FAMILY`, `IB_ADDR_RANGE`, `IB_ROCE_VERSION_NUM`,
//! `IB_TIMEOUT`, `IB_RETRY_CNT`, `IB_SL`, `IB_TC`, `IB_PKEY`, `IB_QPS_PER_CONNECTION`, `IB_PCI_RELAXED_ORDERING`, `IB_BREAK_EVERY`, `REQUIRE_PATH`,
//! `NET`.
//!
//! `IB_HCA` is as NCCL reads it (`abi/clients.md` §3): as `SOCKET_IFNAME`, but a name may have a port behind a colon.

use super::source::Source;
use crate::error::{Error, Result};
use crate::os::network::Family;
use std::net::IpAddr;

/// How many names of `IB_HCA` count.
const MOST_NAMES: usize = 32;

/// What the settings say of network plugins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PluginWish {
    /// One is used if there is one.
    #[default]
    Any,
    /// None is used, and why.
    Off(&'static str),
    /// Data between hosts goes by the one of this name, or not at all.
    Required(String),
}

/// What the settings say of RDMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verbs {
    /// `IB_DISABLE`: there is none.
    pub is_disabled: bool,
    /// `REQUIRE_PATH=rdma`: data between hosts goes by it, or not at all.
    pub is_required: bool,
    /// Which network plugin is used.
    pub plugin: PluginWish,
    /// Somebody has chosen by `IB_DISABLE`, `REQUIRE_PATH` or `NET`, so that a program cannot.
    pub is_settled: bool,
    /// `IB_HCA`: which devices and ports may be used; none leaves the choice to us.
    pub devices: Option<DeviceRule>,
    /// `IB_GID_INDEX`: the place of the address in each port's table; none for the choice by kind.
    pub gid_index: Option<u8>,
    /// `IB_ADDR_FAMILY`.
    pub family: Family,
    /// `IB_ADDR_RANGE`: only an address within this network.
    pub range: Option<Range>,
    /// `IB_ROCE_VERSION_NUM`: 1 or 2.
    pub roce_version: u8,
    /// `IB_TIMEOUT`: a packet is sent again after 4.096 µs · 2 to this power.
    pub timeout: u8,
    /// `IB_RETRY_CNT`: so often.
    pub retries: u8,
    /// `IB_SL`.
    pub service_level: u8,
    /// `IB_TC`.
    pub traffic_class: u8,
    /// `IB_PKEY`: the place of the partition key in each port's table.
    pub partition: u16,
    /// `IB_QPS_PER_CONNECTION`: queue pairs for each pair of ports.
    pub pairs: u8,
    /// `IB_PCI_RELAXED_ORDERING`: 0 no, 1 yes, 2 if the device can.
    pub is_relaxed: bool,
    /// `IB_BREAK_EVERY`: after about so many writes a queue pair is put into error; 0 for never.
    pub break_every: u32,
}

impl Default for Verbs {
    fn default() -> Self {
        Self {
            is_disabled: false,
            is_required: false,
            plugin: PluginWish::Any,
            is_settled: false,
            devices: None,
            gid_index: None,
            family: Family::V4,
            range: None,
            roce_version: 2,
            timeout: 20,
            retries: 6,
            service_level: 0,
            traffic_class: 0,
            partition: 0,
            pairs: 1,
            is_relaxed: true,
            break_every: 0,
        }
    }
}

/// Which devices and ports may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceRule {
    excludes: bool,
    exact: bool,
    names: Vec<(String, Option<u8>)>,
}

/// A network of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    address: IpAddr,
    prefix_bits: u8,
}

impl Verbs {
    /// Takes the network that a program has chosen by its name, unless the settings have chosen one.
    pub fn choose(&mut self, name: &str) {
        if !self.is_settled {
            match Named::of(name) {
                Named::Plugin(name) => self.plugin = PluginWish::Required(name),
                Named::Ib | Named::Socket => {
                    self.is_required = Named::of(name) == Named::Ib;
                    (self.is_disabled, self.plugin) = (!self.is_required, PluginWish::Off(CHOSEN));
                }
            }
        }
    }

    /// Gives RDMA and plugins up, since connections are encrypted, and what devices send by themselves cannot be. An error (InvalidUsage) where
    /// one of them is required.
    pub fn forgo_for_encryption(&mut self) -> Result<()> {
        let required = match &self.plugin {
            PluginWish::Required(name) => Some(format!(
                "the network plugin {name} is required (ACCL_REQUIRE_PATH, NCCL_NET or netName)"
            )),
            _ => self
                .is_required
                .then(|| "RDMA is required (ACCL_REQUIRE_PATH=rdma, NCCL_NET=IB or netName)".to_string()),
        };
        if let Some(required) = required {
            return Err(Error::usage(format!(
                "{required}, and so is encryption (ACCL_ENCRYPTION_KEY_FILE or ncclSetEncryption), which there is over TCP alone; give up one \
                 of the two"
            )));
        }
        self.is_disabled = true;
        self.plugin = PluginWish::Off(
            "connections are encrypted (ACCL_ENCRYPTION_KEY_FILE or ncclSetEncryption), which a plugin's are not",
        );
        Ok(())
    }

    pub(super) fn from_source(source: &Source) -> Result<Self> {
        let standard = Self::default();
        let number = |name: &str, most: u32, standard: u32| -> Result<u32> {
            let text = source.text(name);
            let text = text.trim();
            if text.is_empty() {
                return Ok(standard);
            }
            let read = text.parse().ok().filter(|number| *number <= most);
            let wrong = || source.explain(name, &Error::argument(format!("need a number from 0 to {most}")));
            read.ok_or_else(wrong)
        };
        let small =
            |name, most: u8, standard: u8| number(name, most.into(), standard.into()).map(|read| read as u8);
        let text = |name: &str| Some(source.text(name)).filter(|text| !text.trim().is_empty());
        let index = text("IB_GID_INDEX").filter(|index| index.trim() != "-1");
        let family = match source.text("IB_ADDR_FAMILY").as_str() {
            "" | "AF_INET" => Family::V4,
            "AF_INET6" => Family::V6,
            _ => {
                let need = Error::argument("need AF_INET or AF_INET6");
                return Err(source.explain("IB_ADDR_FAMILY", &need));
            }
        };
        let range =
            |text: String| Range::parse(&text).map_err(|error| source.explain("IB_ADDR_RANGE", &error));
        let Wanted { is_disabled, is_required, plugin, is_settled } = wanted(source)?;
        Ok(Self {
            is_disabled,
            is_required,
            plugin,
            is_settled,
            devices: text("IB_HCA").map(|text| DeviceRule::parse(&text)),
            gid_index: if index.is_some() { Some(small("IB_GID_INDEX", 255, 0)?) } else { None },
            family,
            range: text("IB_ADDR_RANGE").map(range).transpose()?,
            roce_version: small("IB_ROCE_VERSION_NUM", 2, standard.roce_version)?.max(1),
            timeout: small("IB_TIMEOUT", 31, standard.timeout)?,
            retries: small("IB_RETRY_CNT", 7, standard.retries)?,
            service_level: small("IB_SL", 15, standard.service_level)?,
            traffic_class: small("IB_TC", 255, standard.traffic_class)?,
            partition: number("IB_PKEY", 0x7fff, 0)? as u16,
            pairs: small("IB_QPS_PER_CONNECTION", 16, standard.pairs)?.max(1),
            is_relaxed: number("IB_PCI_RELAXED_ORDERING", 2, 2)? != 0,
            break_every: number("IB_BREAK_EVERY", 1 << 30, 0)?,
        })
    }
}

/// Which networks are forbidden, which are required, and whether anybody says so.
struct Wanted {
    is_disabled: bool,
    is_required: bool,
    plugin: PluginWish,
    is_settled: bool,
}

/// Why no plugin is used where another network is chosen.
const CHOSEN: &str = "another network is chosen (NCCL_NET, ACCL_REQUIRE_PATH or netName)";

fn wanted(source: &Source) -> Result<Wanted> {
    let wrong = |name: &str, need: &str| source.explain(name, &Error::argument(need.to_string()));
    let path = source.text("REQUIRE_PATH");
    let by_path = match path.as_str() {
        "" => None,
        "rdma" => Some(Named::Ib),
        // No name of a plugin, but of what needs no requiring.
        "tcp" | "shm" | "socket" => {
            return Err(wrong("REQUIRE_PATH", "need rdma, the name of a network plugin, or nothing"));
        }
        name => Some(Named::of(name)),
    };
    let net = source.text("NET");
    let named = (!net.is_empty()).then(|| Named::of(&net));
    let disabled = source.optional_switch("IB_DISABLE")?;
    let chosen = by_path.as_ref().or(named.as_ref());
    let required = chosen == Some(&Named::Ib);
    if required && (disabled == Some(true) || named == Some(Named::Socket)) {
        let name = if by_path.is_some() { "REQUIRE_PATH" } else { "NET" };
        let both =
            "need one of them: NCCL_IB_DISABLE=1 or NCCL_NET=Socket forbids what this requires; unset one";
        return Err(wrong(name, both));
    }
    if let (Some(path), Some(named)) = (&by_path, &named)
        && path != named
    {
        return Err(wrong("REQUIRE_PATH", "need one network: NCCL_NET names another one; unset one of them"));
    }
    let plugin = match chosen {
        None => PluginWish::Any,
        Some(Named::Plugin(name)) => PluginWish::Required(name.clone()),
        Some(Named::Ib | Named::Socket) => PluginWish::Off(CHOSEN),
    };
    Ok(Wanted {
        is_disabled: chosen == Some(&Named::Socket) || disabled.unwrap_or(false),
        is_required: required,
        plugin,
        is_settled: chosen.is_some() || disabled.is_some(),
    })
}

/// A network by its name, in any case: one of the library's own, or a plugin.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Named {
    Ib,
    Socket,
    /// Its name in small letters.
    Plugin(String),
}

impl Named {
    fn of(name: &str) -> Self {
        match name.to_lowercase().as_str() {
            "ib" => Self::Ib,
            "socket" => Self::Socket,
            name => Self::Plugin(name.to_string()),
        }
    }
}

impl DeviceRule {
    /// Any text is a rule.
    pub fn parse(text: &str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let name = |item: &str| {
            let mut parts = item.split(':');
            let name = parts.next().unwrap_or_default().to_string();
            (name, parts.next().and_then(|port| port.parse().ok()))
        };
        let names = text.split(',').map(name).filter(|(name, _)| !name.is_empty()).take(MOST_NAMES).collect();
        Self { excludes, exact, names }
    }

    /// True if this port of the device may be used.
    pub fn allows(&self, device: &str, port: u8) -> bool {
        let matches = |(name, of): &(String, Option<u8>)| {
            (if self.exact { device == name } else { device.starts_with(name.as_str()) })
                && of.is_none_or(|of| of == port)
        };
        (self.names.is_empty() || self.names.iter().any(matches)) != self.excludes
    }
}

impl std::fmt::Display for DeviceRule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (excludes, exact) = (if self.excludes { "^" } else { "" }, if self.exact { "=" } else { "" });
        let name = |(name, port): &(String, Option<u8>)| {
            port.map_or_else(|| name.clone(), |port| format!("{name}:{port}"))
        };
        write!(formatter, "{excludes}{exact}{}", self.names.iter().map(name).collect::<Vec<_>>().join(","))
    }
}

impl Range {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::argument("need an address and the bits of its network, as 10.1.0.0/16");
        let (address, bits) = text.trim().split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        Ok(Self { address, prefix_bits })
    }

    /// True if an address lies within.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, true),
            IpAddr::V6(v6) => (u128::from(v6), false),
        };
        let ((own, kind), (other, other_kind)) = (bits(self.address), bits(address));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
        kind == other_kind && (own ^ other) & mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_chosen_by_its_name() {
        let chosen = |pairs: &[(&str, &str)]| {
            Verbs::from_source(&Source::of_pairs(pairs)).map(|verbs| (verbs.is_disabled, verbs.is_required))
        };
        assert_eq!(chosen(&[("NCCL_NET", "IB")]), Ok((false, true)));
        assert_eq!(chosen(&[("NCCL_NET", "socket")]), Ok((true, false)));
        assert_eq!(chosen(&[("NCCL_NET", "Socket"), ("NCCL_IB_DISABLE", "0")]), Ok((true, false)));
        let plugin = |pairs: &[(&str, &str)]| Verbs::from_source(&Source::of_pairs(pairs)).unwrap().plugin;
        assert_eq!(plugin(&[]), PluginWish::Any);
        assert!(matches!(plugin(&[("NCCL_NET", "IB")]), PluginWish::Off(_)));
        assert!(matches!(plugin(&[("NCCL_NET", "Socket")]), PluginWish::Off(_)));
        for name in ["NCCL_NET", "ACCL_REQUIRE_PATH"] {
            let required = PluginWish::Required("aws libfabric".to_string());
            assert_eq!(plugin(&[(name, "AWS Libfabric"), ("NCCL_IB_DISABLE", "1")]), required);
        }
        for pairs in [
            [("NCCL_NET", "AWS Libfabric"), ("ACCL_REQUIRE_PATH", "rdma")],
            [("NCCL_NET", "IB"), ("NCCL_IB_DISABLE", "1")],
            [("NCCL_NET", "Socket"), ("ACCL_REQUIRE_PATH", "rdma")],
        ] {
            assert_eq!(chosen(&pairs).unwrap_err().kind(), crate::ErrorKind::InvalidArgument, "{pairs:?}");
        }
    }

    #[test]
    fn settings_beat_what_a_program_chooses() {
        let chosen = |pairs: &[(&str, &str)], name| {
            let mut verbs = Verbs::from_source(&Source::of_pairs(pairs)).unwrap();
            verbs.choose(name);
            (verbs.is_disabled, verbs.is_required, verbs.plugin)
        };
        let off = || PluginWish::Off(CHOSEN);
        assert_eq!(chosen(&[], "IB"), (false, true, off()));
        assert_eq!(chosen(&[], "Socket"), (true, false, off()));
        assert_eq!(chosen(&[("NCCL_NET", "Socket")], "IB"), (true, false, off()));
        assert_eq!(chosen(&[("NCCL_IB_DISABLE", "0")], "Socket"), (false, false, PluginWish::Any));
        assert_eq!(chosen(&[], "Elsewhere"), (false, false, PluginWish::Required("elsewhere".to_string())));
    }

    #[test]
    fn device_rules_are_those_of_nccl() {
        let allowed = |rule: &str| {
            let rule = DeviceRule::parse(rule);
            let ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)];
            let allowed = ports.into_iter().filter(|(name, port)| rule.allows(name, *port));
            allowed.map(|(name, port)| format!("{name}:{port}")).collect::<Vec<_>>().join(" ")
        };
        for (rule, expected) in [
            ("mlx5", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
            ("=mlx5_1", "mlx5_1:1 mlx5_1:2"),
            ("mlx5_1:1", "mlx5_1:1 mlx5_10:1"),
            ("=mlx5_1:2,rxe0", ""),
            ("^mlx5", "rxe0:1"),
            ("^=mlx5_1:2,mlx5_0", "mlx5_1:1 mlx5_10:1 rxe0:1"),
            ("mlx5_0:1:3:1", "mlx5_0:1"),
            ("", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 rxe0:1"),
        ] {
            let expected = if rule == "=mlx5_1:2,rxe0" { "mlx5_1:2 rxe0:1" } else { expected };
            assert_eq!(allowed(rule), expected, "{rule}");
        }
        assert_eq!(DeviceRule::parse("^=a:1,b").to_string(), "^=a:1,b");
    }

    #[test]
    fn ranges_hold_what_begins_alike() {
        let range = Range::parse("10.77.0.0/16").unwrap();
        let within = |text: &str| range.contains(text.parse().unwrap());
        assert!(within("10.77.255.1") && !within("10.78.0.1") && !within("::ffff:10.77.0.1"));
        assert!(Range::parse("0.0.0.0/0").unwrap().contains("9.9.9.9".parse().unwrap()));
        assert!(Range::parse("fd00::/8").unwrap().contains("fd12::1".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "/8"] {
            assert_eq!(Range::parse(wrong).unwrap_err().kind(), crate::ErrorKind::InvalidArgument, "{wrong}");
        }
    }

    #[test]
    fn values_are_read_and_wrong_ones_refused_by_name() {
        let load = |pairs: &[(&str, &str)]| Verbs::from_source(&Source::of_pairs(pairs));
        assert_eq!(load(&[]).unwrap(), Verbs::default());
        let read = load(&[
            ("NCCL_IB_TIMEOUT", "18"),
            ("NCCL_IB_RETRY_CNT", "7"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("NCCL_IB_QPS_PER_CONNECTION", "4"),
        ]);
        let read = read.unwrap();
        assert_eq!((read.timeout, read.retries, read.gid_index, read.pairs), (18, 7, Some(3), 4));
        assert_eq!(load(&[("NCCL_IB_GID_INDEX", "-1")]).unwrap().gid_index, None);
        let required = load(&[("ACCL_REQUIRE_PATH", "rdma")]).unwrap();
        assert!(required.is_required && !required.is_disabled);
        assert!(!load(&[]).unwrap().is_disabled);
        assert!(!load(&[("NCCL_IB_DISABLE", "0")]).unwrap().is_disabled);
        assert!(load(&[("NCCL_IB_DISABLE", "1")]).unwrap().is_disabled);
        for (name, value) in [
            ("NCCL_IB_TIMEOUT", "32"),
            ("NCCL_IB_RETRY_CNT", "8"),
            ("NCCL_IB_ADDR_FAMILY", "inet"),
            ("NCCL_IB_ADDR_RANGE", "10.0.0.0"),
            ("ACCL_REQUIRE_PATH", "tcp"),
        ] {
            let error = load(&[(name, value)]).unwrap_err();
            assert!(error.text().contains(&format!("{name}={value}")), "{error}");
        }
        let both = load(&[("ACCL_REQUIRE_PATH", "rdma"), ("NCCL_IB_DISABLE", "1")]).unwrap_err();
        assert!(both.text().contains("unset one"), "{both}");
    }

    #[test]
    fn encryption_gives_rdma_up_and_is_refused_where_that_is_required() {
        let load = |pairs: &[(&str, &str)]| Verbs::from_source(&Source::of_pairs(pairs));
        let mut free = load(&[]).unwrap();
        free.forgo_for_encryption().unwrap();
        assert!(free.is_disabled);
        let mut required = load(&[("ACCL_REQUIRE_PATH", "rdma")]).unwrap();
        let error = required.forgo_for_encryption().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidUsage);
        assert!(
            error.text().contains("ACCL_REQUIRE_PATH=rdma") && error.text().contains("over TCP alone"),
            "{error}"
        );
    }
}
