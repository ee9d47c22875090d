//! The random sweep: every operation, type, operator, transport and algorithm on random counts and addresses,
//! against an independent oracle, with guard zones around every buffer.
//!
//! `ACCL_SWEEP_CASES` sets the cases per layout, `ACCL_SWEEP_SEED` the seed, which is printed.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

// Made for the tests between hosts, which need more of it.
#[allow(dead_code)]
#[path = "net/namespaces.rs"]
mod namespaces;
mod support;

use namespaces::Net;
use std::ffi::{c_int, c_void};
use std::ops::DerefMut;
use std::process::Command;
use std::ptr::null_mut;
use support::api::{Api, Comm, INT8, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::{TYPES, element, encode, is_float, mix, reduce, wrap};

const SCENARIOS: [(&str, Scenario); 1] = [("sweep", sweep)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
}

const KINDS: [Kind; 9] = [
    Kind::AllReduce,
    Kind::Reduce,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::SendRecv,
];

/// One case, the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    dtype: usize,
    op: usize,
    count: usize,
    root: usize,
    in_place: bool,
    streamed: bool,
    seed: u64,
}

impl Case {
    fn random(seed: u64, ranks: usize) -> Self {
        let pick = |what: u64, most: usize| (mix(seed ^ what << 40) % most as u64) as usize;
        let kind = KINDS[pick(1, KINDS.len())];
        // Mostly small, now and then up to a million elements, odd and even.
        let count = match pick(2, 40) {
            0 => 0,
            1 => 1_000_003 / if kind == Kind::AllReduce { 1 } else { ranks },
            2..=5 => pick(3, 200_000 / ranks),
            6..=15 => pick(3, 20_000 / ranks),
            _ => pick(3, 700),
        };
        let in_place = pick(6, 3) == 0 && kind != Kind::AllToAll && kind != Kind::SendRecv;
        let (dtype, op) = (pick(4, 12), pick(5, 6));
        Self { kind, dtype, op, count, root: pick(7, ranks), in_place, streamed: pick(8, 4) == 0, seed }
    }

    fn size(&self) -> usize {
        TYPES[self.dtype].1
    }

    fn reduces(&self) -> bool {
        matches!(self.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter)
    }

    fn input(&self, rank: usize, index: usize) -> Vec<u8> {
        let op = if self.reduces() { self.op } else { 0 };
        element(self.dtype, op, mix(self.seed ^ (rank as u64) << 32 ^ index as u64))
    }

    /// The rank's factor of a pre-multiplied sum.
    fn factor(&self, rank: usize) -> Vec<u8> {
        let whole = (rank % 3 + 1) as f64;
        if is_float(self.dtype) { encode(self.dtype, whole / 2.0) } else { wrap(self.dtype, whole as i128) }
    }

    fn input_count(&self, rank: usize, ranks: usize) -> usize {
        match self.kind {
            Kind::ReduceScatter | Kind::AllToAll => ranks * self.count,
            Kind::Scatter if rank == self.root => ranks * self.count,
            Kind::Scatter => 0,
            Kind::Broadcast if rank != self.root => 0,
            _ => self.count,
        }
    }

    fn output_count(&self, rank: usize, ranks: usize) -> usize {
        match self.kind {
            Kind::AllGather | Kind::AllToAll => ranks * self.count,
            Kind::Gather if rank == self.root => ranks * self.count,
            Kind::Gather => 0,
            Kind::Reduce if rank != self.root => 0,
            _ => self.count,
        }
    }

    /// What element `index` of the output must be.
    fn expected(&self, rank: usize, ranks: usize, index: usize) -> Vec<u8> {
        let count = self.count;
        match self.kind {
            Kind::AllReduce | Kind::Reduce => self.reduced(ranks, index),
            Kind::ReduceScatter => self.reduced(ranks, rank * count + index),
            Kind::Broadcast => self.input(self.root, index),
            Kind::AllGather | Kind::Gather => self.input(index / count, index % count),
            Kind::AllToAll => self.input(index / count, rank * count + index % count),
            Kind::Scatter => self.input(self.root, rank * count + index),
            Kind::SendRecv => self.input((rank + ranks - 1) % ranks, index),
        }
    }

    fn reduced(&self, ranks: usize, index: usize) -> Vec<u8> {
        let inputs: Vec<_> = (0..ranks).map(|rank| self.input(rank, index)).collect();
        let factors: Vec<_> = (0..ranks).map(|rank| self.factor(rank)).collect();
        reduce(self.dtype, self.op, &inputs, &factors)
    }
}

const GUARD: usize = 96;

/// A buffer at a random address, with guard zones.
struct Buffer {
    memory: Box<dyn DerefMut<Target = [u8]>>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// One of four lies in memory of the library, which peers map.
    fn new(api: &'static Api, bytes: usize, random: u64) -> Self {
        let all = bytes + 2 * GUARD + 64;
        let mut memory: Box<dyn DerefMut<Target = [u8]>> =
            if random >> 40 & 3 == 0 { Box::new(api.allocate(all)) } else { Box::new(vec![0; all]) };
        memory.fill(0xa5);
        Self { memory, start: GUARD + (random % 64) as usize, bytes }
    }

    fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    fn pointer(&mut self) -> *mut u8 {
        self.data().as_mut_ptr()
    }

    fn check_guards(&self, what: &str) {
        let outside = self.memory[..self.start].iter().chain(&self.memory[self.start + self.bytes..]);
        assert!(outside.clone().all(|byte| *byte == 0xa5), "{what}: wrote outside of its buffer");
    }
}

fn sweep(rank: Rank) {
    let numbers: Vec<u64> = rank.argument.split(',').map(|number| number.parse().unwrap()).collect();
    let comm = rank.join();
    let stream = rank.api.stream();
    for number in 0..numbers[1] {
        let case = Case::random(mix(numbers[0] ^ number << 20), rank.ranks);
        let stream = if case.streamed { stream } else { null_mut() };
        run_case(&rank, comm, stream, &case, number);
    }
    rank.api.ok(unsafe { (rank.api.acclStreamDestroy)(stream) });
    rank.api.destroy(comm);
}

fn run_case(rank: &Rank, comm: Comm, stream: *mut c_void, case: &Case, number: u64) {
    let what = format!("case {number} on rank {} of {}: {case:?}", rank.rank, rank.ranks);
    let (inputs, outputs) =
        (case.input_count(rank.rank, rank.ranks), case.output_count(rank.rank, rank.ranks));
    let size = case.size();
    let random = mix(case.seed ^ 77 ^ (rank.rank as u64) << 8);
    // In place: one buffer, at the offsets that the interface defines.
    let own = rank.rank * case.count * size;
    let (send_at, recv_at) = match case.kind {
        Kind::AllGather => (own, 0),
        Kind::Gather if rank.rank == case.root => (own, 0),
        Kind::ReduceScatter => (0, own),
        Kind::Scatter if rank.rank == case.root => (0, own),
        _ => (0, 0),
    };
    let shared = case.in_place.then_some(inputs.max(outputs) * size);
    let mut output = Buffer::new(rank.api, shared.unwrap_or(outputs * size), random);
    let mut input = Buffer::new(rank.api, inputs * size, random >> 8);
    for index in 0..inputs {
        input.data()[index * size..(index + 1) * size].copy_from_slice(&case.input(rank.rank, index));
    }
    if case.in_place {
        let from = input.data().to_vec();
        output.data()[send_at..send_at + from.len()].copy_from_slice(&from);
    }
    let before = input.data().to_vec();
    let recv = output.pointer().wrapping_add(if case.in_place { recv_at } else { 0 });
    let send = if case.in_place { output.pointer().wrapping_add(send_at) } else { input.pointer() };
    call(rank, comm, stream, case, (send.cast(), recv.cast()), &what);
    output.check_guards(&what);
    input.check_guards(&what);
    assert_eq!(input.data(), &before[..], "{what}: the input changed");
    let got = output.data()[if case.in_place { recv_at } else { 0 }..].to_vec();
    // Large results are checked at both ends and in steps that hit every residue.
    let step = if outputs > 5000 { 97 } else { 1 };
    for index in (0..outputs).filter(|index| index % step == 0 || *index < 600 || *index + 600 > outputs) {
        let expected = case.expected(rank.rank, rank.ranks, index);
        assert_eq!(
            &got[index * size..(index + 1) * size],
            &expected[..],
            "{what}: element {index} of {outputs}"
        );
    }
}

fn call(
    rank: &Rank,
    comm: Comm,
    stream: *mut c_void,
    case: &Case,
    (send, recv): (*mut c_void, *mut c_void),
    what: &str,
) {
    let api = rank.api;
    let (count, dtype, root) = (case.count, case.dtype as c_int, case.root as c_int);
    let mut op = case.op as c_int;
    let mut factor = case.factor(rank.rank);
    let made = case.op == 5 && case.reduces();
    if made {
        api.ok(unsafe {
            (api.ncclRedOpCreatePreMulSum)(&raw mut op, factor.as_mut_ptr().cast(), dtype, 1, comm)
        });
    }
    let code = unsafe {
        match case.kind {
            Kind::AllReduce => (api.ncclAllReduce)(send, recv, count, dtype, op, comm, stream),
            Kind::Reduce => (api.ncclReduce)(send, recv, count, dtype, op, root, comm, stream),
            Kind::Broadcast => (api.ncclBroadcast)(send, recv, count, dtype, root, comm, stream),
            Kind::AllGather => (api.ncclAllGather)(send, recv, count, dtype, comm, stream),
            Kind::ReduceScatter => (api.ncclReduceScatter)(send, recv, count, dtype, op, comm, stream),
            Kind::AllToAll => (api.ncclAlltoAll)(send, recv, count, dtype, comm, stream),
            Kind::Gather => (api.ncclGather)(send, recv, count, dtype, root, comm, stream),
            Kind::Scatter => (api.ncclScatter)(send, recv, count, dtype, root, comm, stream),
            Kind::SendRecv => {
                let (next, last) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
                api.group(|| {
                    api.ok((api.ncclSend)(send, count, dtype, next as c_int, comm, stream));
                    api.ok((api.ncclRecv)(recv, count, dtype, last as c_int, comm, stream));
                })
            }
        }
    };
    assert_eq!(code, 0, "{what}: {}", api.error_text());
    if made {
        api.ok(unsafe { (api.ncclRedOpDestroy)(op, comm) });
    }
    if !stream.is_null() {
        api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
        let code = api.async_error(comm);
        assert_eq!(code, 0, "{what}: {}", api.error_text());
    }
}

fn cases() -> u64 {
    std::env::var("ACCL_SWEEP_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

fn seed() -> u64 {
    let random =
        || u64::from(std::process::id()) ^ std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed =
        std::env::var("ACCL_SWEEP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(random);
    println!("ACCL_SWEEP_SEED={seed}");
    seed
}

fn run(cluster: Cluster, cases: u64) {
    cluster.argument(format!("{},{cases}", seed())).limit(1200).run("sweep");
}

#[test]
fn processes() {
    for ranks in 1..=9 {
        run(Cluster::new(ranks, 1), cases());
    }
}

#[test]
fn threads() {
    for ranks in 2..=9 {
        run(Cluster::new(1, ranks), cases());
    }
}

#[test]
fn processes_of_threads() {
    for (processes, threads) in [(2, 2), (2, 4), (3, 2)] {
        run(Cluster::new(processes, threads), cases());
    }
}

#[test]
fn without_reading_across_processes() {
    for ranks in [2, 3, 5] {
        run(Cluster::new(ranks, 1).env("ACCL_CROSS_MEMORY", 0), cases() / 2);
        let messages = Cluster::new(ranks, 1).env("ACCL_CROSS_MEMORY", 0).env("ACCL_EXCHANGE_BYTES", 0);
        run(messages.env("ACCL_SEGMENT_BYTES", "1K"), cases() / 2);
        let staged = Cluster::new(ranks, 1).env("ACCL_CROSS_MEMORY", 0).env("ACCL_STAGE_BYTES", "3K");
        run(staged, cases() / 2);
    }
}

/// Every threshold at its ends, whatever the model says.
#[test]
fn every_threshold() {
    for (exchange, flat, stream) in
        [("0", "0", "1"), ("16K", "1G", "1"), ("0", "1G", "1G"), ("300", "5K", "9K")]
    {
        for (processes, threads) in [(2, 1), (4, 1), (1, 3), (2, 2)] {
            let cluster = Cluster::new(processes, threads)
                .env("ACCL_EXCHANGE_BYTES", exchange)
                .env("ACCL_FLAT_BYTES", flat)
                .env("ACCL_STREAM_BYTES", stream);
            run(cluster, cases() / 3);
        }
    }
}

/// Through staging areas whatever the size, and only where that is large.
#[test]
fn staged() {
    for (exchange, stage) in [("0", "0"), ("1K", "20K")] {
        for (processes, threads) in [(2, 1), (3, 1), (5, 1), (1, 3), (2, 2)] {
            let cluster = Cluster::new(processes, threads)
                .env("ACCL_EXCHANGE_BYTES", exchange)
                .env("ACCL_STAGE_BYTES", stage);
            run(cluster, cases() / 2);
        }
    }
}

/// Every process takes itself for a host of its own: everything goes by TCP, or half of it, over one connection or several.
#[test]
fn over_tcp() {
    for (processes, threads, sockets) in [(2, 1, 1), (3, 1, 3), (5, 1, 2), (2, 2, 8), (3, 2, 1)] {
        for algorithm in ["", "direct", "ring", "tree;allgather:ring;reducescatter:ring"] {
            let cluster = Cluster::new(processes, threads).env("ACCL_SHM_DISABLE", 1);
            let cluster = cluster.env("ACCL_NSOCKS_PERTHREAD", sockets);
            run(cluster.env("ACCL_ALGO", algorithm), cases() / 3);
        }
    }
}

/// The same with everything encrypted. The ids are made by the ranks: this process has no key.
#[test]
fn over_tcp_encrypted() {
    let key = std::env::temp_dir().join(format!("accl-sweep-key-{}", std::process::id()));
    std::fs::write(&key, "a key that these ranks have in common").unwrap();
    for (processes, threads, sockets) in [(2, 1, 1), (3, 1, 3), (2, 2, 8)] {
        for algorithm in ["", "ring"] {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let cluster = Cluster::new(processes, threads)
                .places(std::iter::once(Command::new("env")), &free.to_string())
                .env("ACCL_ENCRYPTION_KEY_FILE", key.display())
                .env("ACCL_SHM_DISABLE", 1)
                .env("ACCL_NSOCKS_PERTHREAD", sockets);
            run(cluster.env("ACCL_ALGO", algorithm), cases() / 3);
        }
    }
    std::fs::remove_file(key).unwrap();
}

/// The same by RDMA and nothing else, where there is a device: in the guest of `ci/rdma` there must be.
#[test]
fn over_rdma() {
    if !support::has_rdma() {
        return;
    }
    for (processes, threads, pairs) in [(2, 1, 1), (3, 1, 3), (4, 1, 1), (2, 2, 2)] {
        for algorithm in ["", "ring", "tree;allgather:ring;reducescatter:ring"] {
            let cluster = Cluster::new(processes, threads)
                .env("ACCL_SHM_DISABLE", 1)
                .env("ACCL_REQUIRE_PATH", "rdma")
                .env("NCCL_IB_TIMEOUT", 18)
                .env("NCCL_IB_QPS_PER_CONNECTION", pairs);
            run(cluster.env("ACCL_ALGO", algorithm), cases() / 3);
        }
    }
}

/// The same by a network plugin and nothing else, which refuses requests, is late, and has several messages in a request.
#[test]
fn over_a_network_plugin() {
    for (version, processes, threads, receives) in [(8, 2, 1, 1), (12, 3, 1, 4), (10, 2, 2, 8)] {
        let plugin = support::plugin("net", version, 0);
        for algorithm in ["", "ring"] {
            let cluster = Cluster::new(processes, threads)
                .env("ACCL_SHM_DISABLE", 1)
                .env("NCCL_NET_PLUGIN", plugin.display())
                .env("NCCL_NET", "Test")
                .env("NET_TEST_RECEIVES", receives)
                .env("NET_TEST_NULL", 3)
                .env("NET_TEST_LATE", 2);
            run(cluster.env("ACCL_ALGO", algorithm), cases() / 3);
        }
        std::fs::remove_file(plugin).unwrap();
    }
}

/// Processes of several hosts, by memory among themselves and by TCP between the hosts: as the model says of this network, and
/// where it takes the way for very long, or the bytes for very slow.
#[test]
fn several_hosts() {
    for (processes, threads, hosts) in [(4, 1, 2), (5, 1, 2), (6, 1, 3), (7, 1, 5), (2, 3, 2), (4, 2, 2)] {
        for (segment, deterministic, latency_us, bandwidth_mbps) in
            [("256K", 0, "", ""), ("1K", 0, "1000000", ""), ("1K", 0, "1", "1"), ("64", 1, "", "")]
        {
            let cluster = Cluster::new(processes, threads)
                .hosts(hosts)
                .env("ACCL_SEGMENT_BYTES", segment)
                .env("ACCL_DETERMINISTIC", deterministic)
                .env("ACCL_NET_LATENCY_US", latency_us)
                .env("ACCL_NET_BANDWIDTH_MBPS", bandwidth_mbps);
            run(cluster, cases() / 3);
        }
    }
}

/// Hosts that share nothing but a cable, or a switch.
#[test]
fn between_namespaces() {
    for (hosts, processes, threads) in [(2, 2, 1), (2, 4, 1), (3, 3, 1), (3, 7, 1), (3, 3, 2)] {
        let Some(net) = (if hosts == 2 { Net::two() } else { Net::switched(hosts) }) else { return };
        for (segment, sockets) in [("256K", ""), ("1K", "3")] {
            let cluster = Cluster::new(processes, threads)
                .places((0..hosts).map(|host| net.command(host)), "10.9.0.1:29600")
                .env("ACCL_SEGMENT_BYTES", segment)
                .env("ACCL_NSOCKS_PERTHREAD", sockets);
            run(cluster, cases() / 2);
        }
    }
}

/// As many ranks as one host is built for, on as few cores as there are.
#[test]
fn many_ranks() {
    for (processes, threads) in [(64, 1), (1, 64), (8, 4), (17, 1)] {
        run(Cluster::new(processes, threads), cases().div_ceil(10));
    }
}

/// Everything that takes the one-step path otherwise goes by a plan here, in small segments.
#[test]
fn every_algorithm() {
    for algorithm in
        ["direct", "ring", "tree", "rd;allgather:ring;reducescatter:ring;broadcast:ring;reduce:tree"]
    {
        for (processes, threads) in [(2, 1), (3, 1), (1, 6), (2, 4)] {
            let cluster = Cluster::new(processes, threads)
                .env("NCCL_ALGO", if algorithm == "tree" { "tree,ring" } else { algorithm })
                .env("ACCL_EXCHANGE_BYTES", 0)
                .env("ACCL_SEGMENT_BYTES", "1K");
            run(cluster, cases() / 2);
        }
    }
}

/// The oracle itself, against facts that do not come from it.
#[test]
fn the_oracle_knows_the_formats() {
    for (dtype, value, bytes) in [
        (6, 1.0, vec![0x00, 0x3c]),
        (6, 65504.0, vec![0xff, 0x7b]),
        (6, 65520.0, vec![0x00, 0x7c]),
        (9, 1.0, vec![0x80, 0x3f]),
        (10, 448.0, vec![0x7e]),
        (10, 1000.0, vec![0x7e]),
        (10, f64::NAN, vec![0x7f]),
        (11, 57344.0, vec![0x7b]),
        (11, f64::INFINITY, vec![0x7c]),
        (10, -0.001953125, vec![0x81]),
    ] {
        assert_eq!(encode(dtype, value), bytes, "{} {value}", TYPES[dtype].0);
    }
    let bytes = |value: i8| vec![value as u8];
    assert_eq!(reduce(0, SUM as usize, &[bytes(127), bytes(2)], &[]), bytes(-127));
    assert_eq!(reduce(0, 4, &[bytes(127), bytes(127), bytes(-3)], &[]), bytes(83));
    assert_eq!(INT8, 0);
}
