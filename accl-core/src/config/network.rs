//! The grammars of the settings about networks: `SOCKET_IFNAME`, `SOCKET_FAMILY`, `PORT_RANGE`, `COMM_ID`, `HOSTID`,
//! `PEER_TIMEOUT`, `TCP_CONGESTION`, `NET_LATENCY_US`, `NET_BANDWIDTH_MBPS`, `UID_STAGGER_THRESHOLD`, `UID_STAGGER_RATE`,
//! `NSOCKS_PERTHREAD`, `SOCKET_NTHREADS`, `SOCKET_RETRY_CNT`, `SOCKET_RETRY_SLEEP_MSEC`, `ENCRYPTION_KEY_FILE`.
//!
//! `SOCKET_IFNAME` is as NCCL reads it (`abi/nccl.md` §5.7): `^` before the list excludes, `=` (behind that: `^=`)
//! compares whole names in place of prefixes, names are separated by commas, at most 16 of them count, and what
//! stands behind a colon in a name does not.

use super::source::Source;
use crate::error::{Error, Result};
use crate::os::network::Family;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How many names of `SOCKET_IFNAME` count.
const MOST_NAMES: usize = 16;
/// Most threads and most sockets of them all (`abi/nccl.md`).
const MOST_THREADS: u32 = 16;
const MOST_SOCKETS: u32 = 64;
/// How long a `COMM_ID` may be: it must fit into a unique id.
pub const COMM_ID_BYTES: usize = 72;

/// What the settings say of networks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Network {
    /// `SOCKET_IFNAME`: which interfaces may be used; none leaves the choice to us.
    pub interfaces: Option<InterfaceRule>,
    /// `SOCKET_FAMILY`: the only family that may be used.
    pub family: Option<Family>,
    /// `PORT_RANGE`: which TCP ports may be listened on.
    pub ports: Option<RangeInclusive<u16>>,
    /// `COMM_ID`: where rank 0 is to be met, in place of ids that are handed around.
    pub comm_id: Option<RootAddress>,
    /// `HOSTID`: what this host is to be called when ranks find out who shares one.
    pub host_id: Option<String>,
    /// `PEER_TIMEOUT`: how long a host may be silent before its ranks are lost; `None` is for ever.
    pub peer_timeout: Option<Duration>,
    /// `TCP_CONGESTION`: the congestion control of connections that carry data; none leaves the choice to us.
    pub congestion_control: Option<String>,
    /// `SHM_DISABLE`: this process takes itself for a host of its own, and reaches all others by the network.
    pub apart: bool,
    /// `NET_LATENCY_US`: from host to host, if that is not to be measured.
    pub latency_us: Option<u32>,
    /// `NET_BANDWIDTH_MBPS`: of a host, if its interface is not to be asked.
    pub bandwidth_mbps: Option<u32>,
    /// `UID_STAGGER_THRESHOLD`, `UID_STAGGER_RATE`: how fast many ranks come to one root.
    pub stagger: Stagger,
    /// `NSOCKS_PERTHREAD`, `SOCKET_NTHREADS`: how many connections carry the data of two ranks.
    pub sockets: Sockets,
    /// `SOCKET_RETRY_CNT`, `SOCKET_RETRY_SLEEP_MSEC`: how often, and how soon, an address that does not answer is tried again.
    pub retries: Retries,
    /// Those about RDMA.
    pub verbs: super::Verbs,
    /// `ENCRYPTION_KEY_FILE`: the file that has the key with which connections are encrypted.
    pub key_file: Option<String>,
}

/// How many connections carry the data of two ranks, as two factors; one that is not set counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sockets {
    /// `NSOCKS_PERTHREAD`.
    pub per_thread: Option<u32>,
    /// `SOCKET_NTHREADS`.
    pub threads: Option<u32>,
}

impl Sockets {
    /// How many connections; none if that is left to us. What is out of range is cut, as NCCL does, and the text says so.
    pub fn connections(&self) -> (Option<usize>, Option<String>) {
        if self.per_thread.is_none() && self.threads.is_none() {
            return (None, None);
        }
        let (asked_threads, asked_each) = (self.threads.unwrap_or(1), self.per_thread.unwrap_or(1));
        let threads = asked_threads.clamp(1, MOST_THREADS);
        let each = asked_each.clamp(1, MOST_SOCKETS / threads);
        let warning = format!(
            "NCCL_SOCKET_NTHREADS={asked_threads} and NCCL_NSOCKS_PERTHREAD={asked_each} are out of range (1 to \
             {MOST_THREADS} threads, at most {MOST_SOCKETS} sockets in all): {threads} and {each} are used"
        );
        let cut = (threads, each) != (asked_threads, asked_each);
        (Some((threads * each) as usize), cut.then_some(warning))
    }
}

/// How an address is tried again that refuses connections, does not answer, or to which there is no way; what is not set is left to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retries {
    /// `SOCKET_RETRY_CNT`: so often after the first time, and then no more.
    pub count: Option<u32>,
    /// `SOCKET_RETRY_SLEEP_MSEC`: the first pause; the nth is n times as long.
    pub first_pause: Option<Duration>,
}

/// How fast many ranks come to one root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stagger {
    /// Up to so many ranks come at once.
    pub threshold_ranks: u32,
    /// How many come in a second if there are more; 0 for all at once.
    pub ranks_per_second: u32,
}

impl Default for Stagger {
    fn default() -> Self {
        Self { threshold_ranks: 256, ranks_per_second: 7000 }
    }
}

impl Stagger {
    /// How long a rank waits before it comes.
    pub fn delay(&self, ranks: usize, rank: usize) -> Duration {
        if ranks <= self.threshold_ranks as usize || self.ranks_per_second == 0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(rank as f64 / f64::from(self.ranks_per_second))
    }
}

/// Which interfaces may be used, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceRule {
    excludes: bool,
    exact: bool,
    names: Vec<String>,
}

/// An address that was agreed upon beforehand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootAddress {
    /// As it was written.
    pub text: String,
    /// A name, an IPv4 address, or an IPv6 address (without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Network {
    /// Reads these settings alone.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
    }

    /// Those of an environment that is given.
    #[cfg(test)]
    pub(crate) fn from_source_for_tests(pairs: &[(&str, &str)]) -> Self {
        Self::from_source(&Source::of_pairs(pairs)).unwrap()
    }

    pub(super) fn from_source(source: &Source) -> Result<Self> {
        fn read<T>(source: &Source, name: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
            let text = source.text(name);
            if text.is_empty() {
                return Ok(None);
            }
            parse(&text).map(Some).map_err(|error| source.explain(name, &error))
        }
        Ok(Self {
            interfaces: read(source, "SOCKET_IFNAME", |text| Ok(InterfaceRule::parse(text)))?,
            family: read(source, "SOCKET_FAMILY", family_of)?,
            ports: read(source, "PORT_RANGE", ports_of)?,
            comm_id: read(source, "COMM_ID", RootAddress::parse)?,
            host_id: read(source, "HOSTID", |text| Ok(text.to_string()))?,
            peer_timeout: source.seconds("PEER_TIMEOUT")?,
            congestion_control: read(source, "TCP_CONGESTION", |text| Ok(text.to_string()))?,
            apart: source.switch("SHM_DISABLE")?,
            latency_us: read(source, "NET_LATENCY_US", |text| above_zero(text, "microseconds"))?,
            bandwidth_mbps: read(source, "NET_BANDWIDTH_MBPS", |text| above_zero(text, "Mbit/s"))?,
            stagger: Stagger {
                threshold_ranks: read(source, "UID_STAGGER_THRESHOLD", number_of)?.unwrap_or(256),
                ranks_per_second: read(source, "UID_STAGGER_RATE", number_of)?.unwrap_or(7000),
            },
            sockets: Sockets {
                per_thread: read(source, "NSOCKS_PERTHREAD", sockets_of)?,
                threads: read(source, "SOCKET_NTHREADS", sockets_of)?,
            },
            retries: Retries {
                count: read(source, "SOCKET_RETRY_CNT", number_of)?,
                first_pause: read(source, "SOCKET_RETRY_SLEEP_MSEC", number_of)?
                    .map(|ms: u32| Duration::from_millis(ms.into())),
            },
            verbs: super::Verbs::from_source(source)?,
            key_file: read(source, "ENCRYPTION_KEY_FILE", |text| Ok(text.to_string()))?,
        })
    }
}

impl InterfaceRule {
    /// Any text is a rule.
    pub fn parse(text: &str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names = text.split(',').map(|name| name.split(':').next().unwrap_or_default());
        let names = names.filter(|name| !name.is_empty()).take(MOST_NAMES).map(str::to_string).collect();
        Self { excludes, exact, names }
    }

    /// True if the interface of this name may be used.
    pub fn allows(&self, name: &str) -> bool {
        let matches =
            |known: &String| if self.exact { name == known } else { name.starts_with(known.as_str()) };
        // As in NCCL, an empty list is a list of everything.
        (self.names.is_empty() || self.names.iter().any(matches)) != self.excludes
    }
}

impl std::fmt::Display for InterfaceRule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (excludes, exact) = (if self.excludes { "^" } else { "" }, if self.exact { "=" } else { "" });
        write!(formatter, "{excludes}{exact}{}", self.names.join(","))
    }
}

impl RootAddress {
    /// Reads `ipv4:port`, `host:port` or `[ipv6]:port`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::argument(format!(
                "need an address and a port, as host:port, ipv4:port or [ipv6]:port, in at most {COMM_ID_BYTES} bytes"
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let sound = match bracketed {
            Some(ip) => ip.split('%').next().is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
            None => {
                !host.is_empty()
                    && !host.contains([':', '[', ']', '/'])
                    && !host.contains(char::is_whitespace)
            }
        };
        let digits = port.bytes().all(|digit| digit.is_ascii_digit());
        let port: u16 = port.parse().ok().filter(|port| *port > 0 && digits).ok_or_else(wrong)?;
        if !sound || text.len() > COMM_ID_BYTES {
            return Err(wrong());
        }
        Ok(Self { text: text.to_string(), host: bracketed.unwrap_or(host).to_string(), port })
    }
}

fn family_of(text: &str) -> Result<Family> {
    match text {
        "AF_INET" => Ok(Family::V4),
        "AF_INET6" => Ok(Family::V6),
        _ => Err(Error::argument("need AF_INET or AF_INET6")),
    }
}

fn number_of(text: &str) -> Result<u32> {
    text.trim().parse().map_err(|_| Error::argument("need a whole number"))
}

fn above_zero(text: &str, unit: &str) -> Result<u32> {
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Error::argument(format!("need a whole number of {unit} above 0")))
}

fn sockets_of(text: &str) -> Result<u32> {
    text.trim().parse().map_err(|_| Error::argument("need a number of 1 or more"))
}

fn ports_of(text: &str) -> Result<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(Error::argument("need two ports, first-last, from 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interface_rules_are_those_of_nccl() {
        let allowed = |rule: &str| {
            let rule = InterfaceRule::parse(rule);
            let names = ["eth0", "eth1", "eth10", "ib0", "lo", "docker0"].into_iter();
            names.filter(|name| rule.allows(name)).collect::<Vec<_>>().join(" ")
        };
        for (rule, expected) in [
            ("eth", "eth0 eth1 eth10"),
            ("eth1,ib", "eth1 eth10 ib0"),
            ("=eth1,ib", "eth1"),
            ("^eth,docker", "ib0 lo"),
            ("^=eth1,lo", "eth0 eth10 ib0 docker0"),
            ("=^eth1", ""),
            ("eth0:4,ib0", "eth0 ib0"),
            (",,ib,", "ib0"),
            (" eth0", ""),
            ("=", "eth0 eth1 eth10 ib0 lo docker0"),
            ("^", ""),
            ("q1,q2,q3,q4,q5,q6,q7,q8,q9,r1,r2,r3,r4,r5,r6,lo,eth0", "lo"),
        ] {
            assert_eq!(allowed(rule), expected, "{rule}");
        }
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for (text, host, port) in [
            ("10.0.0.1:29500", "10.0.0.1", 29500),
            ("node-1.example:1", "node-1.example", 1),
            ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
            ("[::1]:80", "::1", 80),
        ] {
            let address = RootAddress::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port, address.text.as_str()), (host, port, text));
        }
        let long = format!("{}:1", "h".repeat(COMM_ID_BYTES));
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "::1:80",
            "[::1]",
            "[x]:1",
            "a b:1",
            "http://a:1",
            &long,
        ] {
            assert_eq!(
                RootAddress::parse(text).unwrap_err().kind(),
                crate::ErrorKind::InvalidArgument,
                "{text}"
            );
        }
    }

    #[test]
    fn connections_are_counted_as_nccl_does() {
        let count = |pairs: &[(&str, &str)]| {
            Network::from_source(&Source::of_pairs(pairs)).unwrap().sockets.connections()
        };
        let (each, threads) = ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS");
        assert_eq!(count(&[]), (None, None));
        assert_eq!(count(&[(each, "4"), (threads, "16")]), (Some(64), None));
        assert_eq!(count(&[(each, "8")]), (Some(8), None));
        assert_eq!(count(&[(threads, "1")]), (Some(1), None));
        for (pairs, connections, words) in [
            ([(each, "1"), (threads, "17")], 16, "16 and 1 are used"),
            ([(each, "9"), (threads, "10")], 60, "10 and 6 are used"),
            ([(each, "0"), (threads, "2")], 2, "2 and 1 are used"),
        ] {
            let (counted, warning) = count(&pairs);
            assert_eq!(counted, Some(connections));
            assert!(warning.as_ref().unwrap().ends_with(words), "{warning:?}");
        }
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let load = |name, value| Network::from_source(&Source::of_pairs(&[(name, value)]));
        assert_eq!(load("ACCL_PORT_RANGE", "5000-5003").unwrap().ports, Some(5000..=5003));
        assert_eq!(load("ACCL_PORT_RANGE", "5000").unwrap().ports, Some(5000..=5000));
        assert_eq!(load("NCCL_SOCKET_FAMILY", "AF_INET6").unwrap().family, Some(Family::V6));
        assert_eq!(load("NCCL_HOSTID", "a").unwrap().host_id.as_deref(), Some("a"));
        let stagger = load("NCCL_UID_STAGGER_RATE", "50").unwrap().stagger;
        assert_eq!(
            [stagger.delay(256, 255), stagger.delay(257, 100)],
            [Duration::ZERO, Duration::from_secs(2)]
        );
        let stagger = load("NCCL_UID_STAGGER_THRESHOLD", "7").unwrap().stagger;
        assert_eq!([stagger.delay(8, 7), stagger.delay(7, 6)], [Duration::from_millis(1), Duration::ZERO]);
        assert_eq!(load("NCCL_UID_STAGGER_RATE", "0").unwrap().stagger.delay(9999, 9), Duration::ZERO);
        assert_eq!(load("NCCL_SOCKET_RETRY_CNT", "0").unwrap().retries.count, Some(0));
        let pause = load("NCCL_SOCKET_RETRY_SLEEP_MSEC", "20").unwrap().retries.first_pause;
        assert_eq!(pause, Some(Duration::from_millis(20)));
        for (name, value) in [
            ("NCCL_UID_STAGGER_RATE", "-1"),
            ("ACCL_PORT_RANGE", "7-5"),
            ("ACCL_PORT_RANGE", "0-5"),
            ("ACCL_PORT_RANGE", "1-70000"),
            ("NCCL_SOCKET_FAMILY", "inet"),
            ("NCCL_SOCKET_NTHREADS", "-2"),
            ("NCCL_SOCKET_RETRY_CNT", "often"),
            ("NCCL_SOCKET_RETRY_SLEEP_MSEC", "0.1"),
            ("NCCL_NSOCKS_PERTHREAD", "two"),
            ("NCCL_COMM_ID", "nowhere"),
        ] {
            let error = load(name, value).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
            assert!(error.text().contains(&format!("{name}={value}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_refused(text in "\\PC{0,40}") {
            let rule = InterfaceRule::parse(&text);
            prop_assert!(rule.names.len() <= MOST_NAMES);
            if let Ok(address) = RootAddress::parse(&text) {
                prop_assert!(address.port > 0 && !address.host.is_empty());
            }
            let _ = (ports_of(&text), family_of(&text));
        }
    }
}
