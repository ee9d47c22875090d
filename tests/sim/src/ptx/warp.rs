//! What threads of a warp do together: each waits until all members have come that are still alive.

use super::alu;
use super::machine::{State, Thread, Wish};
use super::types::{Atomic, Binary, Mods, Shuffle, Type, Vote, WarpOp};

/// Serves all warps whose members have come; says whether there was one.
pub(super) fn resolve(threads: &mut [Thread]) -> bool {
    let mut has_served = false;
    for warp in threads.chunks_mut(32) {
        while let Some(members) = ready(warp) {
            let wishes: Vec<(usize, Wish)> =
                members.iter().filter_map(|&lane| warp[lane].wish.take().map(|wish| (lane, wish))).collect();
            for &(lane, wish) in &wishes {
                serve(&mut warp[lane], lane, &wish, &wishes);
                warp[lane].state = State::Ready;
            }
            has_served = true;
        }
    }
    has_served
}

/// The lanes of a group that is complete.
fn ready(warp: &[Thread]) -> Option<Vec<usize>> {
    let lanes = |members: u32| (0..warp.len()).filter(move |lane| members >> lane & 1 == 1);
    warp.iter().filter(|thread| thread.state == State::AtWarp).find_map(|thread| {
        let members = thread.wish?.members;
        let is_here = |&lane: &usize| {
            let other = &warp[lane];
            other.state == State::AtWarp && other.wish.is_some_and(|wish| wish.members == members)
        };
        let alive: Vec<usize> = lanes(members).filter(|&lane| warp[lane].state != State::Done).collect();
        alive.iter().all(is_here).then_some(alive)
    })
}

fn set(thread: &mut Thread, register: u32, value: u64) {
    let place = thread.frame.registers + register as usize;
    thread.registers[place] = value;
}

fn serve(thread: &mut Thread, lane: usize, wish: &Wish, wishes: &[(usize, Wish)]) {
    let of = |lane: usize| wishes.iter().find(|(other, _)| *other == lane).map(|(_, wish)| wish.values);
    match wish.op {
        WarpOp::Sync => {}
        WarpOp::Shuffle { mode, to, valid, .. } => {
            let (source, is_valid) = source(mode, lane as i32, wish.values[1] as i32, wish.values[2] as u32);
            let mine = wish.values[0];
            let value = if is_valid { of(source as usize).map_or(mine, |values| values[0]) } else { mine };
            set(thread, to, value & 0xFFFF_FFFF);
            if let Some(valid) = valid {
                set(thread, valid, is_valid.into());
            }
        }
        WarpOp::Vote { mode, to, .. } => {
            let ballot = wishes
                .iter()
                .filter(|(_, wish)| wish.values[0] != 0)
                .fold(0u32, |bits, (lane, _)| bits | 1 << lane);
            let hits = ballot.count_ones() as usize;
            let result = match mode {
                Vote::All => u64::from(hits == wishes.len()),
                Vote::Any => u64::from(hits > 0),
                Vote::Uni => u64::from(hits == 0 || hits == wishes.len()),
                Vote::Ballot => ballot.into(),
            };
            set(thread, to, result);
        }
        WarpOp::Match { all, to, valid, .. } => {
            let same = wishes.iter().filter(|(_, other)| other.values[0] == wish.values[0]);
            let (bits, count) =
                same.fold((0u32, 0), |(bits, count), (lane, _)| (bits | 1 << lane, count + 1));
            let is_all = count == wishes.len();
            set(thread, to, if all && !is_all { 0 } else { bits.into() });
            if let Some(valid) = valid {
                set(thread, valid, is_all.into());
            }
        }
        WarpOp::Redux { op, kind, to, .. } => {
            let values = wishes.iter().map(|(_, wish)| wish.values[0]);
            let result = values.reduce(|a, b| combine(op, kind, a, b)).unwrap_or_default();
            set(thread, to, result);
        }
    }
}

/// Which lane a shuffle reads, and whether that is within its segment.
fn source(mode: Shuffle, lane: i32, distance: i32, clamp: u32) -> (i32, bool) {
    let segment = (clamp >> 8 & 31) as i32;
    let bound = (clamp & 31) as i32;
    let least = lane & segment;
    let most = least | bound & !segment;
    let distance = distance & 31;
    let (source, is_valid) = match mode {
        Shuffle::Up => (lane - distance, lane - distance >= most),
        Shuffle::Down => (lane + distance, lane + distance <= most),
        Shuffle::Butterfly => (lane ^ distance, (lane ^ distance) <= most),
        Shuffle::Index => {
            let source = least | distance & !segment;
            (source, source <= most)
        }
    };
    if is_valid { (source, true) } else { (lane, false) }
}

/// One step of a reduction, or of an atomic operation.
pub(super) fn combine(op: Atomic, kind: Type, a: u64, b: u64) -> u64 {
    let f = match op {
        Atomic::Add => Binary::Add,
        Atomic::Min => Binary::Min,
        Atomic::Max => Binary::Max,
        Atomic::And => Binary::And,
        Atomic::Or => Binary::Or,
        Atomic::Xor => Binary::Xor,
        Atomic::Exch | Atomic::Cas => return b,
        Atomic::Inc => return if a >= b { 0 } else { a + 1 },
        Atomic::Dec => return if a == 0 || a > b { b } else { a - 1 },
    };
    alu::binary(f, kind, &Mods::PLAIN, a & kind.mask(), b & kind.mask(), &mut false).unwrap_or_default()
}
