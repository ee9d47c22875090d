//! What happens between two processors, and between two threads that share one: found by two threads that take turns.
//!
//! Data between them is ordered by the word that says whose turn it is.

use super::measure::{FIGURE_LIMIT, Figures, typical};
use crate::device::{Device, Host};
use crate::error::{Error, Result};
use crate::memory::{Scratch, UserPointer};
use crate::os::{clock, cpu};
use crate::sync::prim::{AtomicU32, Ordering, spin_hint};
use std::ops::Range;

const SAMPLES: usize = 40;
/// Rounds for one sample where a round is too short for the clock.
const ROUNDS: u32 = 50;
/// As much as an operation puts on the board.
const BOARD_BYTES: usize = 8 << 10;
/// As much as a piece of a large one.
const BULK_BYTES: usize = 256 << 10;
/// Places that an exchange goes through, as on the board: none is written while the peer may still read it.
const PLACES: usize = 8;
/// Looks at the word before the processor is given away: the other thread may need it.
const PATIENCE: u32 = 2000;
const READY: u32 = 1;
/// The first turn to pass; the answer to each is the next number.
const FIRST: u32 = 2;
const OVER: u32 = u32::MAX;

/// The word, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Turn(AtomicU32);

impl Turn {
    /// Release: pairs with `wait`.
    fn pass(&self, turn: u32) {
        self.0.store(turn, Ordering::Release);
    }

    /// Waits for this turn; false if there will be none.
    fn wait(&self, turn: u32, patience: u32) -> bool {
        let mut looks = 0;
        loop {
            match self.0.load(Ordering::Acquire) {
                OVER => return false,
                now if now == turn => return true,
                _ => {}
            }
            looks += 1;
            if looks < patience { spin_hint() } else { cpu::yield_now() }
        }
    }
}

/// All figures that take two threads: this one, and another one; on one processor, and on two.
pub(super) fn figures(one: Option<usize>, two: Option<[usize; 2]>) -> Result<Figures> {
    let mut figures = Figures::new();
    // Two threads on one processor: whoever is let run finishes this round and begins the next one, so a round takes
    // one switch.
    let switch = one.map(|cpu| exchange([cpu; 2], 0, 0)).transpose()?.flatten();
    figures.extend(switch.map(|ns| ("yield", ns)));
    let Some(cpus) = two else {
        figures.extend(switch.map(|ns| ("handover", ns)));
        return Ok(figures);
    };
    let (handover, board) = (exchange(cpus, 0, PATIENCE)?, exchange(cpus, BOARD_BYTES, PATIENCE)?);
    let (read, bulk) = (dirty_read(cpus, BOARD_BYTES)?, dirty_read(cpus, BULK_BYTES)?);
    if let (Some(handover), Some(board), Some(read)) = (handover, board, read) {
        // Writing ends when the peer can read, which the writer's clock does not tell: it is what is left of an
        // exchange. Data is asked for when the word is there, so the way is gone twice.
        let write = (board - 2.0 * handover) * 1024.0 / BOARD_BYTES as f64 - read;
        figures.extend([("handover", handover), ("dirty-read", read), ("dirty-write", write)]);
    }
    figures.extend(bulk.map(|ns| ("dirty-read-bulk", ns)));
    Ok(figures)
}

/// One thread's side of an exchange: the numbers of its rounds, and what it has written in them.
#[derive(Debug)]
struct Side {
    words: [Turn; PLACES],
    block: UserPointer,
}

impl Side {
    fn new(block: UserPointer) -> Self {
        Self { words: [const { Turn(AtomicU32::new(0)) }; PLACES], block }
    }

    /// So many rounds with the other side: writes `bytes` from `private`, says so, waits for the same, and reads it.
    fn rounds(&self, other: &Self, numbers: Range<u32>, bytes: usize, private: UserPointer, patience: u32) {
        for number in numbers {
            let place = number as usize % PLACES;
            let at = |side: &Self| side.block.byte_add(place * bytes);
            Host.copy(at(self), private, bytes);
            self.words[place].pass(number);
            other.words[place].wait(number, patience);
            Host.copy(private, at(other), bytes);
        }
    }
}

/// Nanoseconds until both threads have told each other so many bytes; `None` where threads cannot be put on processors.
fn exchange(cpus: [usize; 2], bytes: usize, patience: u32) -> Result<Option<f64>> {
    let mut memory = [(); 4].map(|()| Scratch::default());
    for one in &mut memory {
        one.ensure(PLACES * bytes)?;
    }
    let [ours, theirs, our_copy, their_copy] = memory.each_mut().map(Scratch::start);
    let sides = [Side::new(ours), Side::new(theirs)];
    let [left, right] = &sides;
    // The first round of a sample is where they meet.
    let numbers = |turn: u32| turn * (ROUNDS + 1) + 1..(turn + 1) * (ROUNDS + 1) + 1;
    let sample = |turn: &Turn, first: u32, samples: &mut Vec<f64>| {
        turn.pass(first);
        let mut all = numbers(first);
        let meet = all.start..all.start + 1;
        all.start += 1;
        left.rounds(right, meet, bytes, our_copy, patience);
        let begin = clock::now();
        left.rounds(right, all, bytes, our_copy, patience);
        samples.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
        turn.wait(first + 1, patience);
    };
    let answer = |turn: &Turn| {
        let mut next = FIRST;
        while turn.wait(next, patience) {
            right.rounds(left, numbers(next), bytes, their_copy, patience);
            turn.pass(next + 1);
            next += 2;
        }
    };
    let samples = take_turns(cpus, sample, answer)?;
    Ok(samples.map(|mut samples| typical(&mut samples)))
}

/// Nanoseconds for each KiB to read what the peer has just written.
fn dirty_read(cpus: [usize; 2], bytes: usize) -> Result<Option<f64>> {
    let mut blocks = [(); 3].map(|()| Scratch::default());
    for block in &mut blocks {
        block.ensure(bytes)?;
    }
    let [shared, source, sink] = blocks.each_mut().map(Scratch::start);
    let sample = |turn: &Turn, first: u32, samples: &mut Vec<f64>| {
        turn.pass(first);
        if turn.wait(first + 1, PATIENCE) {
            let begin = clock::now();
            Host.copy(sink, shared, bytes);
            samples.push(begin.elapsed().as_secs_f64() * 1e9 * 1024.0 / bytes as f64);
        }
    };
    let answer = |turn: &Turn| {
        let mut next = FIRST;
        while turn.wait(next, PATIENCE) {
            Host.copy(shared, source, bytes);
            turn.pass(next + 1);
            next += 2;
        }
    };
    let samples = take_turns(cpus, sample, answer)?;
    Ok(samples.map(|mut samples| typical(&mut samples)))
}

/// Runs this thread on the first of two processors and another one on the second. This one takes a sample at a time, which
/// begins with passing a turn and ends with the answer; the other one answers until all is over. Returns the samples.
fn take_turns(
    cpus: [usize; 2],
    mut sample: impl FnMut(&Turn, u32, &mut Vec<f64>),
    answer: impl FnOnce(&Turn) + Send,
) -> Result<Option<Vec<f64>>> {
    let turn = &Turn(AtomicU32::new(0));
    let follow = move || {
        let placed = cpu::run_on(&cpus[1..]);
        turn.pass(if placed { READY } else { OVER });
        if placed {
            answer(turn);
        }
    };
    std::thread::scope(|scope| {
        let follower = std::thread::Builder::new().name("accl-tune".into()).spawn_scoped(scope, follow);
        let follower = follower.map_err(|error| Error::thread("a thread that measures", error))?;
        let ready = turn.wait(READY, 1) && cpu::run_on(&cpus[..1]);
        let begin = clock::now();
        let (mut samples, mut first) = (Vec::with_capacity(SAMPLES), FIRST);
        while ready && samples.len() < SAMPLES && begin.elapsed() < FIGURE_LIMIT {
            sample(turn, first, &mut samples);
            first += 2;
        }
        turn.pass(OVER);
        follower.join().map_err(|_| Error::internal("measuring ended early"))?;
        Ok((!samples.is_empty()).then_some(samples))
    })
}
