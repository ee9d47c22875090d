//! What the model of the wire must say, whatever its figures.

use super::super::between::Between;
use super::*;
use crate::config::{Settings, Source};
use Algorithm::{Direct, RecursiveDoubling, Ring, Tree};

const NEAR: Wire = Wire { latency_ns: 5_000, bandwidth_mbps: 100_000 };
const FAR: Wire = Wire { latency_ns: 2_000_000, bandwidth_mbps: 10_000 };

fn layout(hosts: usize, locals: usize) -> Layout {
    Layout::of(&(0..hosts * locals).map(|rank| rank / locals).collect::<Vec<_>>())
}

fn between(hosts: usize, locals: usize, wire: Wire, settings: &[(&str, &str)]) -> Between {
    let settings = Settings::from_source(&Source::of_pairs(settings)).unwrap();
    Between::new(&settings, layout(hosts, locals), wire)
}

/// From how many bytes on calls of `kind` go by the ring.
fn ring_from(between: &Between, kind: Collective) -> usize {
    let rings = |bytes: &usize| between.choice(kind, *bytes) == Some(Choice::Hierarchical(Ring));
    (0..33).map(|shift| 1 << shift).find(rings).unwrap_or(usize::MAX)
}

#[test]
fn a_long_way_wants_few_hops_and_a_fast_one_few_bytes() {
    for hosts in [2, 3, 4, 16] {
        let [near, far] = [NEAR, FAR].map(|wire| between(hosts, 4, wire, &[]));
        let small = |between: &Between| between.choice(Collective::AllReduce, 8);
        assert_ne!(small(&near), Some(Choice::Hierarchical(Ring)));
        assert_ne!(small(&far), Some(Choice::Hierarchical(Ring)));
        let [near, far] = [near, far].map(|between| ring_from(&between, Collective::AllReduce));
        assert!(near < far && near < usize::MAX, "{hosts} hosts: from {near} and from {far} bytes on");
    }
    let two = between(2, 1, NEAR, &[]);
    assert_eq!(two.choice(Collective::AllReduce, 8), Some(Choice::Hierarchical(RecursiveDoubling)));
}

#[test]
fn many_hosts_want_a_ring_for_much_and_few_connect_directly() {
    for kind in [Collective::AllGather, Collective::ReduceScatter] {
        assert_eq!(ring_from(&between(2, 4, NEAR, &[]), kind), usize::MAX);
        assert_eq!(ring_from(&between(4, 4, NEAR, &[]), kind), usize::MAX);
        let many = between(16, 4, NEAR, &[]);
        assert_eq!(many.choice(kind, 8), Some(Choice::Hierarchical(Direct)));
        assert!(ring_from(&many, kind) < 16 << 20);
        let farther = between(16, 4, Wire { latency_ns: 50_000, ..NEAR }, &[]);
        assert!(ring_from(&many, kind) < ring_from(&farther, kind));
    }
    // From a root, many hosts are reached sooner by a tree than one after the other.
    let broadcast = |hosts| between(hosts, 1, NEAR, &[]).choice(Collective::Broadcast, 64 << 10);
    assert_eq!(broadcast(16), Some(Choice::Hierarchical(Tree)));
}

#[test]
fn small_blocks_are_gathered_where_hosts_have_several_ranks() {
    let gathers = |between: &Between, bytes| {
        between.choice(Collective::AllToAll, bytes) == Some(Choice::Hierarchical(Direct))
    };
    for (hosts, locals) in [(2, 8), (4, 4), (16, 8)] {
        let between = between(hosts, locals, NEAR, &[]);
        assert!(gathers(&between, 8) && gathers(&between, 256), "{hosts} hosts of {locals}");
        assert!(!gathers(&between, 1 << 20), "{hosts} hosts of {locals}");
    }
    assert!(!gathers(&between(16, 1, NEAR, &[]), 8));
}

#[test]
fn predictions_grow_with_bytes_hosts_and_the_way() {
    for kind in Collective::ALL.into_iter().filter(|kind| *kind != Collective::Split) {
        let time = |hosts, wire, bytes| {
            let between = between(hosts, 2, wire, &[]);
            let choice = between.choice(kind, bytes).unwrap();
            between.predict(choice, kind, bytes)
        };
        let times = [8, 4 << 10, 256 << 10, 16 << 20].map(|bytes| time(4, NEAR, bytes));
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{kind}: {times:?}");
        assert!(time(2, NEAR, 1 << 20) < time(16, NEAR, 1 << 20), "{kind}");
        assert!(time(4, NEAR, 1 << 20) < time(4, FAR, 1 << 20), "{kind}");
    }
}

#[test]
fn settings_leave_what_they_name() {
    let forced = between(4, 2, NEAR, &[("ACCL_ALGO", "ring,tree")]);
    let allowed = [Some(Choice::Planned(Ring)), Some(Choice::Planned(Tree))];
    for bytes in [0, 8, 1 << 20, 1 << 30] {
        assert!(allowed.contains(&forced.choice(Collective::AllReduce, bytes)));
        assert_eq!(forced.choice(Collective::AllGather, bytes), Some(Choice::Planned(Ring)));
    }
    let none = between(4, 2, NEAR, &[("ACCL_ALGO", "tree")]);
    assert_eq!(none.choice(Collective::AllGather, 8), None);
    let exact = between(4, 2, NEAR, &[("ACCL_DETERMINISTIC", "1")]);
    assert_eq!(exact.choice(Collective::AllReduce, 1 << 20), Some(Choice::Planned(Direct)));
}
