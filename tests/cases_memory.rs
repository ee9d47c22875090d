//! Memory that peers map: what `ncclMemAlloc` gives, and what users register.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_void;
use std::ptr::null_mut;
use support::api::{Comm, INT32, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};

const SCENARIOS: [(&str, Scenario); 2] = [("mapped", mapped), ("registered", registered)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

const BYTES: usize = 1 << 20;

/// Mappings of memory files in this process, by the name of the file.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Sums `BYTES` at `send` into `recv`; every element of rank r is `value` + r.
fn sum(rank: &Rank, comm: Comm, send: &mut [u8], recv: &mut [u8], value: i32) {
    for place in send[..BYTES].chunks_exact_mut(4) {
        place.copy_from_slice(&(value + rank.rank as i32).to_le_bytes());
    }
    let (from, to) = (send.as_mut_ptr().cast(), recv.as_mut_ptr().cast());
    rank.api.ok(unsafe { (rank.api.ncclAllReduce)(from, to, BYTES / 4, INT32, SUM, comm, null_mut()) });
    let ranks = rank.ranks as i32;
    let expected = value * ranks + ranks * (ranks - 1) / 2;
    assert!(recv[..BYTES].chunks_exact(4).all(|place| place == expected.to_le_bytes()), "{value}");
}

/// Peers read such memory in place, and let go of it once it has been freed, whatever lies at its address then.
#[test]
fn memory_of_the_library_is_mapped_by_peers() {
    for ranks in [2, 3] {
        Cluster::new(ranks, 1).run("mapped");
    }
}

fn mapped(rank: Rank) {
    let comm = rank.join();
    let own = || mappings("memfd:accl-memory");
    let mut addresses = Vec::new();
    for round in 0..5 {
        let (mut send, mut recv) = (rank.api.allocate(BYTES), rank.api.allocate(BYTES));
        addresses.push(send.as_ptr());
        assert_eq!(own(), 2);
        sum(&rank, comm, &mut send, &mut recv, round);
        sum(&rank, comm, &mut send, &mut recv, 100 + round);
        // Two ranks read inputs only; more read each other's results, too.
        let regions = if rank.ranks == 2 { 1 } else { 2 };
        assert!(own() >= 2 + regions * (rank.ranks - 1), "{} mappings", own());
        drop((send, recv));
        // Private memory, perhaps at the same address.
        let (mut send, mut recv) = (vec![0; BYTES], vec![0; BYTES]);
        sum(&rank, comm, &mut send, &mut recv, 1000 + round);
        assert_eq!(own(), 0, "freed memory is kept");
    }
    rank.api.destroy(comm);
}

/// The same for memory files of the user, from the registration to its end.
#[test]
fn registered_memory_files_are_mapped_by_peers() {
    Cluster::new(2, 1).run("registered");
}

fn registered(rank: Rank) {
    let comm = rank.join();
    let (mut file, mut private) = (MemoryFile::new(2 * BYTES), vec![0; BYTES]);
    let memory = file.memory();
    let mut handle: *mut c_void = null_mut();
    let start = memory.as_mut_ptr();
    rank.api.ok(unsafe { (rank.api.ncclCommRegister)(comm, start.cast(), 2 * BYTES, &raw mut handle) });
    let others = || mappings("memfd:users-memory") - 1;
    for (round, offset) in [0, 4096, BYTES, 12].into_iter().enumerate() {
        sum(&rank, comm, &mut memory[offset..], &mut private, round as i32);
        assert_eq!(others(), 1);
    }
    rank.api.ok(unsafe { (rank.api.ncclCommDeregister)(comm, handle) });
    sum(&rank, comm, memory, &mut private, 50);
    assert_eq!(others(), 0);
    rank.api.destroy(comm);
}

/// A memory file that cannot shrink, mapped.
struct MemoryFile {
    start: *mut u8,
    bytes: usize,
}

impl MemoryFile {
    fn new(bytes: usize) -> Self {
        unsafe {
            let file = libc::memfd_create(c"users-memory".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(file, bytes as i64), 0);
            assert_eq!(libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
            assert_ne!(start, libc::MAP_FAILED);
            Self { start: start.cast(), bytes }
        }
    }

    fn memory(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}
