//! C51: what communicators over the same ranks cost, unused and used: measured, asked for, and by the formula of docs/performance.md.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::{CStr, CString, c_int};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::ptr::null_mut;
use support::api::{Api, Comm, INT32, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::snapshot::{mapped_bytes, memory_bytes};

const SCENARIOS: [(&str, Scenario); 1] = [("footprint", footprint)];
const STAGES: [&str; 3] = ["unused", "after AllReduce", "after AlltoAll"];
const RANKS: usize = 4;
/// Elements of int32 that each rank brings.
const COUNT: usize = 40_000;

#[test]
fn worker() {
    work(&SCENARIOS);
}

#[test]
fn c51_footprint() {
    let directory = format!("/dev/shm/accl-footprint-{}", std::process::id());
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    for (made, more) in [("init", 1), ("init", 8), ("init", 32), ("split", 1), ("split", 8), ("split", 32)] {
        let cluster = Cluster::new(RANKS, 1).ids(1 + more).argument(format!("{made} {more}"));
        let cluster = cluster.env("ACCL_RECORDER_DIR", &directory);
        let said = cluster.run("footprint");
        for stage in STAGES {
            // Measured, asked for, by the formula: for each communicator, on average over the ranks.
            let of = |figure: usize| mean(&said, stage, figure);
            let (measured, asked, formula) = (of(0), of(1), of(2));
            println!(
                "{made} {more}, {stage}: measured {measured:.0}, asked {asked:.0}, by the formula {formula:.0} bytes"
            );
            if stage == STAGES[0] && more > 1 {
                assert!(measured < (64 << 10) as f64, "{measured} bytes for a communicator that is not used");
            }
            // What the allocator of the process takes at once is shared out among few communicators.
            let slack = (16 << 10) as f64 / more as f64 + 4096.0;
            for other in [measured, formula] {
                assert!(
                    (other - asked).abs() < 0.2 * asked + slack,
                    "{made} {more}, {stage}: {other}, asked {asked}: {said:#?}"
                );
            }
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// The mean over ranks of the figure of that place in the line of the stage.
fn mean(said: &[String], stage: &str, figure: usize) -> f64 {
    let of = |text: &String| -> f64 {
        let figures = text.lines().find_map(|line| line.strip_prefix(stage)).unwrap();
        figures.split_whitespace().nth(figure).unwrap().parse().unwrap()
    };
    said.iter().map(of).sum::<f64>() / said.len() as f64
}

/// What a call brings to a rank's part, as docs/performance.md says; `bytes` is what the rank brings.
fn formula(api: &Api, comm: Comm, operation: &str, bytes: usize) -> usize {
    let mut way = [0u8; 32];
    let operation = CString::new(operation).unwrap();
    let count = bytes / 4 / if operation.as_bytes() == b"alltoall" { RANKS } else { 1 };
    let mut ns = 0.0;
    api.ok(unsafe {
        (api.acclExplain)(
            comm,
            operation.as_ptr(),
            count,
            INT32,
            way.as_mut_ptr().cast(),
            way.len(),
            &raw mut ns,
        )
    });
    let others = RANKS - 1;
    let pages = 4096 * others;
    match CStr::from_bytes_until_nul(&way).unwrap().to_str().unwrap() {
        "staged" => bytes,
        // Nothing is folded in an AlltoAll.
        "lent-flat" | "lent-owned" if operation.as_bytes() == b"alltoall" => pages,
        "lent-flat" => pages + (others * bytes).min(256 << 10),
        "lent-owned" => pages + (others * bytes / RANKS).min(256 << 10),
        "passed" if operation.as_bytes() == b"alltoall" => pages + others * bytes / RANKS,
        "passed" => pages + 2 * others * bytes / RANKS,
        other => panic!("{operation:?} of {bytes} bytes goes by {other}"),
    }
}

/// Memory of this process, with all of its recorders' files, of which it maps little.
fn in_use() -> usize {
    let files = std::fs::read_dir(std::env::var("ACCL_RECORDER_DIR").unwrap()).unwrap().flatten();
    let own = format!("-{}-", std::process::id());
    let recorders = files.filter(|file| file.file_name().to_string_lossy().contains(&own));
    let blocks: u64 = recorders.map(|file| file.metadata().unwrap().blocks()).sum();
    memory_bytes() - mapped_bytes(".rec") + 512 * blocks as usize
}

fn footprint(rank: Rank) {
    let (made, more) = rank.argument.split_once(' ').unwrap();
    let more: usize = more.parse().unwrap();
    let api = rank.api;
    let first = rank.join();
    let (mine, mut theirs) = (vec![1i32; COUNT], vec![0i32; COUNT]);
    let (from, to) = (mine.as_ptr().cast_mut().cast(), theirs.as_mut_ptr().cast());
    let all_reduce =
        |comm: Comm| api.ok(unsafe { (api.ncclAllReduce)(from, to, COUNT, INT32, SUM, comm, null_mut()) });
    let all_to_all =
        |comm: Comm| api.ok(unsafe { (api.ncclAlltoAll)(from, to, COUNT / RANKS, INT32, comm, null_mut()) });
    all_reduce(first);
    all_to_all(first);
    let meet = || assert_eq!(api.sum(1, first), RANKS as i32);
    meet();
    // Looking takes memory, too, which is there from here on.
    in_use();
    let before = in_use();
    meet();
    let make = |index: usize| -> Comm {
        if made == "init" {
            return api.init(rank.ranks, rank.ids[1 + index], rank.rank);
        }
        let mut child = null_mut();
        api.ok(unsafe { (api.ncclCommSplit)(first, 0, index as c_int, &raw mut child, null_mut()) });
        child
    };
    let comms: Vec<Comm> = (0..more).map(make).collect();
    // The recorder's file, and this rank's share of two pages.
    let mut by_formula = (24 << 10) + (8 << 10) / RANKS;
    let tell = |stage: &str, by_formula: usize| {
        meet();
        let measured = in_use() as f64 - before as f64;
        let mut asked = 0;
        for comm in &comms {
            let mut bytes = 0;
            api.ok(unsafe { (api.ncclCommMemStats)(*comm, 3, &raw mut bytes) });
            asked += bytes as usize;
        }
        meet();
        eprintln!("{stage} {} {} {by_formula}", measured / more as f64, asked / more);
    };
    tell(STAGES[0], by_formula);
    comms.iter().for_each(|comm| all_reduce(*comm));
    by_formula += formula(api, first, "allreduce", 4 * COUNT);
    tell(STAGES[1], by_formula);
    comms.iter().for_each(|comm| all_to_all(*comm));
    by_formula += formula(api, first, "alltoall", 4 * COUNT);
    tell(STAGES[2], by_formula);
    comms.into_iter().for_each(|comm| api.destroy(comm));
    api.destroy(first);
}
