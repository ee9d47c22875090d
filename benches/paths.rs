//! How many instructions the paths of small calls, and of a plan, take.
//!
//! `cargo bench --bench paths` times them; `ci/instructions` counts them under callgrind, one case a run, and compares
//! with `benches/instructions.txt`. Counts say what a noisy machine's times cannot: whether a path became longer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/paths.rs"]
mod paths;

use paths::{CALLS, Pair};
use std::time::Instant;

type Case = fn(&mut Pair);

/// Name, and what it does.
const CASES: [(&str, Case); 7] = [
    ("broadcast_4_bytes", |pair| pair.broadcast(1)),
    ("broadcast_4096_bytes", |pair| pair.broadcast(1024)),
    ("reduce_4_bytes", |pair| pair.reduce(1)),
    ("reduce_4096_bytes", |pair| pair.reduce(1024)),
    ("all_reduce_group_4_bytes", |pair| pair.all_reduce(1)),
    ("all_reduce_group_256_kib", |pair| pair.all_reduce(64 << 10)),
    ("all_reduce_group_1_mib", |pair| pair.all_reduce(256 << 10)),
];

/// What callgrind counts: it is told to look at this function only.
#[inline(never)]
fn counted(case: Case, pair: &mut Pair) {
    case(pair);
}

fn main() {
    // SAFETY: no other thread is there yet that could look at the environment.
    unsafe { std::env::set_var("ACCL_EXCHANGE_BYTES", "16K") };
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, case) in CASES.iter().filter(|(name, _)| wanted.as_ref().is_none_or(|wanted| wanted == name)) {
        let mut pair = Pair::new(256 << 10);
        // The first calls make what later ones find.
        case(&mut pair);
        let start = Instant::now();
        counted(*case, &mut pair);
        let nanoseconds = start.elapsed().as_nanos() as usize;
        // Each call of either rank counts as one.
        println!("{name:28} {CALLS} calls of 2 ranks, {:8} ns a call", nanoseconds / (2 * CALLS));
    }
}
