//! What the network between hosts is like, as far as ranks learn it by the way.
//!
//! A rank that comes to the root over TCP has a connection to another host, of which the kernel knows the round trip;
//! and the interface that it goes by has a speed. Both are told to all ranks with everything else that a rank says of
//! itself, so that all of them come to the same figures of the network, and choose alike.

/// What one rank knows of its way to other hosts; 0 stands for what it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uplink {
    /// The shortest round trip to another host, in microseconds.
    pub round_trip_us: u32,
    /// How fast its interface is, in Mbit/s.
    pub bandwidth_mbps: u32,
}

/// The network between hosts, as all ranks see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wire {
    /// From one host to another.
    pub latency_ns: u32,
    /// What a host can send, and receive at the same time, in Mbit/s.
    pub bandwidth_mbps: u32,
}

impl Wire {
    /// A network that nobody knows anything about.
    pub const UNKNOWN: Self = Self { latency_ns: 25_000, bandwidth_mbps: 10_000 };
    /// Ranks of one kernel that share no memory.
    pub const LOOPBACK: Self = Self { latency_ns: 5_000, bandwidth_mbps: 20_000 };

    /// What ranks say together; `usual` where nobody knows. All wait for the slowest, so it is the longest way and the
    /// slowest interface that count.
    pub fn of(uplinks: impl Iterator<Item = Uplink> + Clone, usual: Self) -> Self {
        let known = |value: &u32| *value > 0;
        let round_trip_us = uplinks.clone().map(|one| one.round_trip_us).filter(known).max();
        let bandwidth_mbps = uplinks.map(|one| one.bandwidth_mbps).filter(known).min();
        Self {
            latency_ns: round_trip_us.map_or(usual.latency_ns, |us| us.saturating_mul(500)),
            bandwidth_mbps: bandwidth_mbps.unwrap_or(usual.bandwidth_mbps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_those_who_know_counts() {
        let uplink = |round_trip_us, bandwidth_mbps| Uplink { round_trip_us, bandwidth_mbps };
        let wire = |uplinks: &[Uplink]| Wire::of(uplinks.iter().copied(), Wire::UNKNOWN);
        assert_eq!(wire(&[uplink(0, 0)]), Wire::UNKNOWN);
        assert_eq!(
            wire(&[uplink(0, 0), uplink(20, 100_000), uplink(70, 25_000), uplink(1, 0)]),
            Wire { latency_ns: 35_000, bandwidth_mbps: 25_000 }
        );
        assert_eq!(wire(&[uplink(u32::MAX, 1)]), Wire { latency_ns: u32::MAX, bandwidth_mbps: 1 });
    }
}
