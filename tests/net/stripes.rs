//! Several connections between two ranks: over one cable, over two, and over cables that lead nowhere.

use super::job::{Job, Rank, Scenario, assert_success};
use super::namespaces::Net;
use super::support::api::{Comm, FLOAT, INT32, SUM};
use std::ffi::c_int;
use std::ptr::null_mut;

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[("spread", spread), ("calculate", calculate)];

/// Elements of a sum of 64 MiB.
const COUNT: usize = 16 << 20;
/// Elements that fill no block exactly.
const ODD_COUNT: usize = 1_000_003;

/// Two hosts on two cables, each a subnet.
fn two_cables() -> Option<Net> {
    let net = Net::two()?;
    net.cable((0, "eth1", &["10.10.0.1/24"]), (1, "eth1", &["10.10.0.2/24"]));
    Some(net)
}

/// What has gone out by an interface.
fn sent_bytes(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn sum(rank: &Rank, comm: Comm) {
    let (send, mut recv) = (vec![rank.rank as i32 + 1; COUNT], vec![0; COUNT]);
    rank.api.ok(rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm));
    assert!(recv.iter().all(|sum| *sum == 3), "a wrong sum");
}

/// Sums until each interface that the argument names carries its share; those behind the slash carry nothing.
fn spread(rank: Rank) {
    let argument = rank.argument();
    let (used, idle) = argument.split_once('/').unwrap();
    let names = |list: &'_ str| list.split(',').filter(|name| !name.is_empty()).map(String::from).collect();
    let (used, idle): (Vec<String>, Vec<String>) = (names(used), names(idle));
    let before: Vec<_> = idle.iter().map(|name| sent_bytes(name)).collect();
    let comm = rank.join(rank.id());
    loop {
        let before: Vec<_> = used.iter().map(|name| sent_bytes(name)).collect();
        sum(&rank, comm);
        let sent: Vec<_> = used.iter().zip(&before).map(|(name, before)| sent_bytes(name) - before).collect();
        // The further connections come when they come.
        // Each rank sends half of its numbers and half of the sums.
        let enough = if used.len() == 1 { 64 << 20 } else { (64 << 20) * 3 / 10 };
        let balanced = sent.iter().all(|sent| *sent >= enough);
        let all = rank.api.sum(i32::from(balanced), comm);
        if all == 2 {
            break;
        }
    }
    for (name, before) in idle.iter().zip(before) {
        let sent = sent_bytes(name) - before;
        assert!(sent < 100_000, "{sent} bytes by {name}");
    }
    rank.api.destroy(comm);
}

#[test]
fn two_cables_carry_a_share_each() {
    let Some(net) = two_cables() else { return };
    assert_success(&Job::new(&net, "spread", &[0, 1]).argument("eth0,eth1/").run());
}

#[test]
fn what_is_not_chosen_stays_idle() {
    let Some(net) = two_cables() else { return };
    for (rule, argument) in
        [("eth1", "eth1/eth0"), ("^=eth1", "eth0/eth1"), ("=eth0", "eth0/eth1"), ("=other,eth1", "eth1/eth0")]
    {
        let job = Job::new(&net, "spread", &[0, 1]).argument(argument);
        assert_success(&job.env("NCCL_SOCKET_IFNAME", rule).run());
    }
}

#[test]
fn a_cable_that_leads_nowhere_does_no_harm() {
    let Some(net) = Net::two() else { return };
    for host in 0..2 {
        // The same subnet on both sides, and no way in between; and an address that both have.
        net.decoy(host, "eth1", &[&format!("10.10.0.{}/24", host + 1)]);
        net.decoy(host, "eth2", &["10.11.0.1/24"]);
    }
    assert_success(&Job::new(&net, "spread", &[0, 1]).argument("eth0/eth2").run());
    assert_success(&Job::new(&net, "calculate", &[0, 1]).argument("5").sockets(4).run());
}

#[test]
fn there_are_as_many_connections_as_are_asked_for() {
    let Some(net) = Net::two() else { return };
    for (connections, argument) in [(1, "2"), (2, "3"), (4, "5"), (64, "65")] {
        assert_success(&Job::new(&net, "calculate", &[0, 1]).argument(argument).sockets(connections).run());
    }
    let Some(net) = two_cables() else { return };
    assert_success(&Job::new(&net, "calculate", &[0, 1]).argument("5").sockets(4).run());
}

impl Job<'_> {
    fn sockets(self, connections: usize) -> Self {
        let threads = connections.min(2);
        let each = (connections / threads).to_string();
        self.env("NCCL_NSOCKS_PERTHREAD", &each).env("NCCL_SOCKET_NTHREADS", &threads.to_string())
    }
}

/// Established connections of this host with others.
fn connections() -> usize {
    let mut all = 0;
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let fields = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let established = |fields: &Vec<&str>| {
            let ip = |field: &str| field.split(':').next().unwrap().to_string();
            fields[3] == "01" && ip(fields[1]) != ip(fields[2])
        };
        all += fields.filter(established).count();
    }
    all
}

/// All operations, until there are as many connections as the argument says.
fn calculate(rank: Rank) {
    let comm = rank.join(rank.id());
    let wanted: usize = rank.argument().parse().unwrap();
    loop {
        collectives(&rank, comm);
        let all = rank.api.sum(i32::from(connections() == wanted), comm);
        assert!(connections() <= wanted, "{} connections", connections());
        if all == 2 {
            break;
        }
    }
    collectives(&rank, comm);
    // Messages from rank to rank have connections of their own.
    let peer = 1 - rank.rank;
    let (mine, mut theirs) = (pattern(rank.rank), vec![0f32; ODD_COUNT]);
    rank.api.ok(rank.api.group(|| {
        rank.api.ok(rank.api.send(&mine, peer, comm));
        rank.api.ok(rank.api.recv(&mut theirs, peer, comm));
    }));
    assert!(theirs == pattern(peer), "a wrong message");
    rank.api.destroy(comm);
}

/// The numbers of one rank.
fn pattern(rank: usize) -> Vec<f32> {
    (0..2 * ODD_COUNT).map(|i| ((i * 7 + rank * 13) % 1021) as f32).take(ODD_COUNT).collect()
}

/// Every collective once, with numbers of which the sums are exact.
fn collectives(rank: &Rank, comm: Comm) {
    let (api, own, none) = (rank.api, pattern(rank.rank), null_mut());
    let all: Vec<_> = (0..2).flat_map(pattern).collect();
    let sums: Vec<_> = (0..ODD_COUNT).map(|i| all[i] + all[ODD_COUNT + i]).collect();
    let mut one = vec![0f32; ODD_COUNT];
    let mut two = vec![0f32; 2 * ODD_COUNT];
    let count = ODD_COUNT;
    api.ok(api.all_reduce(&own, &mut one, FLOAT, SUM, comm));
    assert!(one == sums, "AllReduce");
    // SAFETY: calls of the C interface; all buffers hold as many elements as are moved.
    unsafe {
        let (from, both) = (own.as_ptr().cast_mut().cast(), all.as_ptr().cast_mut().cast());
        api.ok((api.ncclAllGather)(from, two.as_mut_ptr().cast(), count, FLOAT, comm, none));
        assert!(two == all, "AllGather");
        for root in 0..2usize {
            let into = one.as_mut_ptr().cast();
            api.ok((api.ncclBroadcast)(from, into, count, FLOAT, root as c_int, comm, none));
            assert!(one == pattern(root), "Broadcast");
            api.ok((api.ncclReduce)(
                from,
                one.as_mut_ptr().cast(),
                count,
                FLOAT,
                SUM,
                root as c_int,
                comm,
                none,
            ));
            assert!(rank.rank != root || one == sums, "Reduce");
        }
        api.ok((api.ncclReduceScatter)(both, one.as_mut_ptr().cast(), count, FLOAT, SUM, comm, none));
        let doubled = pattern(rank.rank).iter().map(|number| 2.0 * number).collect::<Vec<_>>();
        assert!(one == doubled, "ReduceScatter");
    }
}
