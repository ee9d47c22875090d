//! Hosts of any number of ranks, and who shares one: right results everywhere, and shared memory where it truly is shared.

// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::job::{Job, Rank, Scenario, assert_success};
use super::namespaces::Net;
use super::support::api::{Api, Comm, INT32, SUM};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("all_collectives", all_collectives),
    ("count_bytes", count_bytes),
    ("count_connections", count_connections),
];

/// Element `index` of what `rank` has.
fn value(rank: usize, index: usize) -> i32 {
    ((index * 7 + rank * 13) % 1009) as i32
}

/// Buffers of a rank, and what it is called.
struct Caller {
    api: &'static Api,
    comm: Comm,
    rank: usize,
    ranks: usize,
    count: usize,
    send: Vec<i32>,
    recv: Vec<i32>,
}

impl Caller {
    /// Makes a call of `blocks` counts of results, and looks at all of them.
    #[track_caller]
    fn check(
        &mut self,
        blocks: usize,
        call: impl FnOnce(&Api, *mut c_void, *mut c_void, usize, Comm) -> c_int,
        expected: impl Fn(usize, usize) -> i32,
    ) {
        self.recv.fill(-1);
        let (send, recv) = (self.send.as_mut_ptr().cast(), self.recv.as_mut_ptr().cast());
        self.api.ok(call(self.api, send, recv, self.count, self.comm));
        for block in 0..blocks {
            for index in 0..self.count {
                let got = self.recv[block * self.count + index];
                let expected = expected(block, index);
                assert_eq!(got, expected, "rank {} block {block} element {index}", self.rank);
            }
        }
        assert!(self.recv[blocks * self.count..].iter().all(|rest| *rest == -1), "rank {}", self.rank);
    }

    fn check_all(&mut self, root: usize) {
        let (rank, ranks, count, none) = (self.rank, self.ranks, self.count, null_mut());
        let of_root = usize::from(rank == root);
        let to = root as c_int;
        let sum = move |index| (0..ranks).map(|one| value(one, index)).sum::<i32>();
        self.check(
            1,
            |api, send, recv, n, comm| unsafe { (api.ncclAllReduce)(send, recv, n, INT32, SUM, comm, none) },
            |_, index| sum(index),
        );
        self.check(
            of_root,
            |api, send, recv, n, comm| unsafe { (api.ncclReduce)(send, recv, n, INT32, SUM, to, comm, none) },
            |_, index| sum(index),
        );
        self.check(
            1,
            |api, send, recv, n, comm| unsafe { (api.ncclBroadcast)(send, recv, n, INT32, to, comm, none) },
            |_, index| value(root, index),
        );
        self.check(
            ranks,
            |api, send, recv, n, comm| unsafe { (api.ncclAllGather)(send, recv, n, INT32, comm, none) },
            value,
        );
        self.check(
            1,
            |api, send, recv, n, comm| unsafe {
                (api.ncclReduceScatter)(send, recv, n, INT32, SUM, comm, none)
            },
            |_, index| sum(rank * count + index),
        );
        self.check(
            ranks,
            |api, send, recv, n, comm| unsafe { (api.ncclAlltoAll)(send, recv, n, INT32, comm, none) },
            |block, index| value(block, rank * count + index),
        );
        self.check(
            ranks * of_root,
            |api, send, recv, n, comm| unsafe { (api.ncclGather)(send, recv, n, INT32, to, comm, none) },
            value,
        );
        self.check(
            1,
            |api, send, recv, n, comm| unsafe { (api.ncclScatter)(send, recv, n, INT32, to, comm, none) },
            |_, index| value(root, rank * count + index),
        );
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        self.check(
            1,
            |api, send, recv, n, comm| {
                api.group(|| unsafe {
                    api.ok((api.ncclSend)(send, n, INT32, next as c_int, comm, none));
                    api.ok((api.ncclRecv)(recv, n, INT32, before as c_int, comm, none));
                })
            },
            |_, index| value(before, index),
        );
    }
}

/// Every collective, of few and of many elements.
fn all_collectives(rank: Rank) {
    let comm = rank.join(rank.id());
    for count in [1000, 1_000_003] {
        let send = (0..rank.ranks * count).map(|index| value(rank.rank, index)).collect();
        let recv = vec![0; rank.ranks * count];
        let mut caller =
            Caller { api: rank.api, comm, rank: rank.rank, ranks: rank.ranks, count, send, recv };
        caller.check_all(rank.ranks - 1);
    }
    rank.api.destroy(comm);
}

/// C06.
#[test]
fn hosts_with_different_numbers_of_ranks_are_right() {
    let Some(net) = Net::two() else { return };
    assert_success(&Job::new(&net, "all_collectives", &[0, 0, 0, 1, 1, 1, 1]).run());
    assert_success(&Job::new(&net, "all_collectives", &[0, 1, 1, 1, 1, 1]).run());
    assert_success(&Job::new(&net, "all_collectives", &[1, 0, 1, 1, 0, 1, 1, 1, 1]).run());
}

/// TCP connections of this network namespace that have both ends.
fn established() -> usize {
    let files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let text = files.map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let lines = text.iter().flat_map(|text| text.lines().skip(1));
    lines.filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
}

/// Says how many connections there are after a large sum.
fn count_connections(rank: Rank) {
    let comm = rank.join(rank.id());
    let count = 100_000;
    let (send, mut recv) = (vec![rank.rank as i32 + 1; count], vec![0; count]);
    rank.api.ok(rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm));
    let sum: i32 = (1..=rank.ranks as i32).sum();
    assert_eq!(recv, vec![sum; count]);
    eprintln!("connections: {}", established());
    rank.ready();
    // Nobody leaves before all have counted.
    rank.wait_ready(&(0..rank.ranks).collect::<Vec<_>>());
    rank.api.destroy(comm);
}

/// C52.
#[test]
fn memory_is_shared_where_it_can_be_and_nowhere_else() {
    let Some(net) = Net::two() else { return };
    let connections = |job: Job<'_>| {
        let ended = job.run();
        assert_success(&ended);
        let of = |text: &str| text.split("connections: ").nth(1)?.lines().next()?.parse::<usize>().ok();
        ended.iter().map(|end| of(&end.stderr).unwrap_or_else(|| panic!("{ended:?}"))).collect::<Vec<_>>()
    };
    // One network namespace, and everything else apart.
    for apart in [
        "--uts",
        "--ipc",
        "--mount",
        "--pid --fork --mount-proc",
        "--uts --ipc --mount --pid --fork --mount-proc",
    ] {
        let counts = connections(Job::new(&net, "count_connections", &[0, 0]).apart(apart));
        assert_eq!(counts, [0, 0], "{apart}");
    }
    // A common name, wrongly given, makes no memory common that is not.
    for name in [None, Some("a")] {
        let job = Job::new(&net, "count_connections", &[0, 1]);
        let job = name.into_iter().fold(job, |job, name| job.env("NCCL_HOSTID", name));
        assert!(connections(job).iter().all(|count| *count > 0), "{name:?}");
    }
    let ended = Job::new(&net, "count_connections", &[0, 1]).env("NCCL_HOSTID", "a").run();
    assert!(ended[0].stderr.contains("NCCL_HOSTID is the same for rank 0 (process"), "{ended:?}");
    // Different ones divide what could be common.
    let job = Job::new(&net, "count_connections", &[0, 0]).env("ACCL_SHM_DISABLE", "1");
    assert!(connections(job).iter().all(|count| *count > 0));
    // Names of hosts mean nothing, also where they begin alike.
    let job = Job::new(&net, "count_connections", &[0, 1]).named("node.first", "node.second");
    assert!(connections(job).iter().all(|count| *count > 0));
    let job = Job::new(&net, "count_connections", &[0, 1]).named("node", "node");
    assert!(connections(job).iter().all(|count| *count > 0));
}

/// What has left this host so far.
fn sent_bytes() -> usize {
    let text = std::fs::read_to_string("/sys/class/net/eth0/statistics/tx_bytes").unwrap();
    text.trim().parse().unwrap()
}

/// For each collective: no host sends much more than must cross the network.
fn count_bytes(rank: Rank) {
    /// How a collective is called: buffers, and the count of a block.
    type Call = unsafe fn(&Api, *mut c_void, *mut c_void, usize, Comm) -> c_int;
    let comm = rank.join(rank.id());
    let (api, block) = (rank.api, 1 << 20);
    let (hosts, of_host) = (2, rank.ranks / 2);
    // In blocks, what the first and the other host must send: what is not there yet, folded where it may be.
    let calls: [(&str, Call, [usize; 2]); 6] = [
        (
            "allreduce",
            |api, s, r, n, c| unsafe { (api.ncclAllReduce)(s, r, n, INT32, SUM, c, null_mut()) },
            [1, 1],
        ),
        (
            "broadcast",
            |api, s, r, n, c| unsafe { (api.ncclBroadcast)(s, r, n, INT32, 0, c, null_mut()) },
            [1, 0],
        ),
        (
            "reduce",
            |api, s, r, n, c| unsafe { (api.ncclReduce)(s, r, n, INT32, SUM, 0, c, null_mut()) },
            [0, 1],
        ),
        (
            "allgather",
            |api, s, r, n, c| unsafe { (api.ncclAllGather)(s, r, n, INT32, c, null_mut()) },
            [of_host; 2],
        ),
        (
            "reducescatter",
            |api, s, r, n, c| unsafe { (api.ncclReduceScatter)(s, r, n, INT32, SUM, c, null_mut()) },
            [of_host; 2],
        ),
        (
            "alltoall",
            |api, s, r, n, c| unsafe { (api.ncclAlltoAll)(s, r, n, INT32, c, null_mut()) },
            [of_host * of_host; 2],
        ),
    ];
    let mut send = vec![1i32; rank.ranks * block];
    let mut recv = vec![0i32; rank.ranks * block];
    for (name, call, blocks) in calls {
        // Connections are made by the first.
        for counted in [false, true] {
            api.sum(1, comm);
            let before = sent_bytes();
            api.ok(unsafe { call(api, send.as_mut_ptr().cast(), recv.as_mut_ptr().cast(), block, comm) });
            api.sum(1, comm);
            let (sent, least) = (sent_bytes() - before, blocks[rank.rank % hosts] * block * 4);
            let most = least + least / 10 + block / 4;
            assert!(!counted || sent <= most, "{name}: {sent} bytes sent, {least} are needed");
            assert!(sent >= least, "{name}: {sent} bytes sent, {least} are needed");
        }
    }
    api.destroy(comm);
}

#[test]
fn the_network_carries_no_more_than_it_must() {
    let Some(net) = Net::two() else { return };
    assert_success(&Job::new(&net, "count_bytes", &[0, 1, 0, 1]).run());
}
