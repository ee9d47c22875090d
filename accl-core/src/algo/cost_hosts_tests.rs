//! What the model of the wire must say, whatever its figures.

use super::*;
use crate::algo::between::Between;
use crate::algo::{Plan, Request, Step};
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
    assert_eq!(two.choice(Collective::AllReduce, 64 << 20), Some(Choice::Hierarchical(Ring)));
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
        assert!(gathers(&between, 8), "{hosts} hosts of {locals}");
        assert_eq!(gathers(&between, 256), hosts > 2, "{hosts} hosts of {locals}");
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

/// Elements that cross the network when all ranks follow their plans; unfinished sums count as elements.
fn sent_elems(layout: &Layout, choice: Choice, kind: Collective, count_elems: usize) -> usize {
    let ranks = layout.hosts().iter().map(Vec::len).sum();
    let sent = |rank| {
        let request = Request {
            kind,
            ranks,
            rank,
            root: ranks - 1,
            count_elems,
            segment_elems: 4096,
            align_elems: 16,
            staging_elems: 0,
        };
        let mut plan = Plan::default();
        match choice {
            Choice::Hierarchical(between) => request.plan_hierarchical(layout, between, &mut plan),
            _ => request.plan(Direct, &mut plan),
        }
        let crossing = |step: &Step| match step {
            Step::Send { to, span } if layout.host_of[*to] != layout.host_of[rank] => span.count_elems,
            _ => 0,
        };
        plan.steps.iter().map(crossing).sum::<usize>()
    };
    (0..ranks).map(sent).sum()
}

/// What must cross: each host's part of a sum must leave it, and each result come to every other host; a block goes to
/// each host that has a rank which wants it, once.
fn least_elems(layout: &Layout, kind: Collective, count: usize) -> usize {
    let locals: Vec<_> = layout.hosts().iter().map(Vec::len).collect();
    let (ranks, others) = (locals.iter().sum::<usize>(), locals.len() - 1);
    let roots_host = locals[layout.host_of[ranks - 1]];
    match kind {
        Collective::AllReduce => 2 * others * count,
        Collective::Reduce | Collective::Broadcast => others * count,
        Collective::AllGather | Collective::ReduceScatter => ranks * others * count,
        Collective::AllToAll => locals.iter().map(|local| local * (ranks - local) * count).sum(),
        _ => (ranks - roots_host) * count,
    }
}

#[test]
fn no_byte_crosses_the_network_needlessly() {
    const COUNT: usize = 1 << 18;
    for locals in [&[2, 2][..], &[3, 4], &[1, 5], &[8, 8], &[2, 2, 2], &[1, 3, 2, 2, 2, 4]] {
        let hosts = locals.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]);
        let layout = Layout::of(&hosts.collect::<Vec<_>>());
        let settings = Settings::from_source(&Source::of_pairs(&[])).unwrap();
        let between = Between::new(&settings, layout.clone(), NEAR);
        for kind in Collective::ALL.into_iter().filter(|kind| *kind != Collective::Split) {
            let choice = between.choice(kind, COUNT * 4).unwrap();
            let sent = sent_elems(&layout, choice, kind, COUNT);
            let least = least_elems(&layout, kind, COUNT);
            assert!(
                sent >= least && sent * 10 <= least * 11,
                "{kind} on {locals:?}: {sent} of {least} by {choice:?}"
            );
        }
        // Gathering takes other ways within a host, and none between them.
        let gathered = sent_elems(&layout, Choice::Hierarchical(Direct), Collective::AllToAll, 100);
        assert_eq!(gathered, least_elems(&layout, Collective::AllToAll, 100));
    }
}
