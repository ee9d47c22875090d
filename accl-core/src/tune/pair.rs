//! What happens between two processors, and between two threads that share one: found by two threads that take turns.
//!
//! Data between them is ordered by the word that says whose turn it is.

use super::measure::{FIGURE_LIMIT, Figures, typical};
use crate::device::{Device, Host};
use crate::error::{Error, Result};
use crate::memory::{Scratch, UserPointer};
use crate::os::{clock, cpu};
use crate::sync::prim::{AtomicU32, Ordering, spin_hint};

const SAMPLES: usize = 40;
/// Turns for one sample where a turn is too short for the clock.
const TURNS: u32 = 50;
/// As much as an operation puts on the board; and as much as a piece of a large one.
const BLOCKS: [(usize, &str); 2] = [(8 << 10, "dirty-read"), (256 << 10, "dirty-read-bulk")];
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
    // Two threads on one processor: each turn takes one switch.
    let switch = one.map(|cpu| handover([cpu; 2], 0)).transpose()?.flatten();
    figures.extend(switch.map(|ns| ("yield", ns)));
    match two {
        Some(cpus) => {
            figures.extend(handover(cpus, PATIENCE)?.map(|ns| ("handover", ns)));
            for (bytes, name) in BLOCKS {
                if let Some((write, read)) = dirty(cpus, bytes)? {
                    figures.push((name, read));
                    figures.extend((bytes == BLOCKS[0].0).then_some(("dirty-write", write)));
                }
            }
        }
        None => figures.extend(switch.map(|ns| ("handover", ns))),
    }
    Ok(figures)
}

/// Nanoseconds from one thread's store to the other one's load; `None` where threads cannot be put on processors.
fn handover(cpus: [usize; 2], patience: u32) -> Result<Option<f64>> {
    let turns = |turn: &Turn, first: u32, samples: &mut Vec<f64>| {
        let begin = clock::now();
        for turns in (first..first + 2 * TURNS).step_by(2) {
            turn.pass(turns);
            if !turn.wait(turns + 1, patience) {
                return;
            }
        }
        samples.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TURNS));
    };
    let answers = |turn: &Turn| {
        let mut next = FIRST;
        while turn.wait(next, patience) {
            turn.pass(next + 1);
            next += 2;
        }
        Vec::new()
    };
    let samples = take_turns(cpus, 2 * TURNS, turns, answers)?;
    Ok(samples.map(|(mut ours, _)| typical(&mut ours)))
}

/// Nanoseconds for each KiB to write what the peer has just read, and to read what it has just written.
fn dirty(cpus: [usize; 2], bytes: usize) -> Result<Option<(f64, f64)>> {
    let mut blocks = [(); 3].map(|()| Scratch::default());
    let [shared, source, sink] = blocks.each_mut().map(|block| block.ensure(bytes));
    let timed_copy = |to: UserPointer, from: UserPointer, samples: &mut Vec<f64>| {
        let begin = clock::now();
        Host.copy(to, from, bytes);
        samples.push(begin.elapsed().as_secs_f64() * 1e9 * 1024.0 / bytes as f64);
    };
    let writes = |turn: &Turn, first: u32, samples: &mut Vec<f64>| {
        timed_copy(shared, source, samples);
        turn.pass(first);
        turn.wait(first + 1, PATIENCE);
    };
    let reads = |turn: &Turn| {
        let (mut next, mut samples) = (FIRST, Vec::with_capacity(SAMPLES));
        while turn.wait(next, PATIENCE) {
            timed_copy(sink, shared, &mut samples);
            turn.pass(next + 1);
            next += 2;
        }
        samples
    };
    let samples = take_turns(cpus, 2, writes, reads)?;
    Ok(samples.map(|(mut writes, mut reads)| (typical(&mut writes), typical(&mut reads))))
}

/// Runs this thread on the first of two processors and another one on the second. This one takes a sample at a time,
/// which goes through so many turns; the other one answers until they are over. Returns what both sampled.
fn take_turns(
    cpus: [usize; 2],
    turns: u32,
    mut sample: impl FnMut(&Turn, u32, &mut Vec<f64>),
    answer: impl FnOnce(&Turn) -> Vec<f64> + Send,
) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
    let turn = &Turn(AtomicU32::new(0));
    let follow = move || {
        let placed = cpu::run_on(&cpus[1..]);
        turn.pass(if placed { READY } else { OVER });
        if placed { answer(turn) } else { Vec::new() }
    };
    std::thread::scope(|scope| {
        let follower = std::thread::Builder::new().name("accl-tune".into()).spawn_scoped(scope, follow);
        let follower = follower.map_err(|error| Error::system("cannot start a thread", error))?;
        let ready = turn.wait(READY, 1) && cpu::run_on(&cpus[..1]);
        let begin = clock::now();
        let (mut samples, mut first) = (Vec::with_capacity(SAMPLES), FIRST);
        while ready && samples.len() < SAMPLES && begin.elapsed() < FIGURE_LIMIT {
            sample(turn, first, &mut samples);
            first += turns;
        }
        turn.pass(OVER);
        let theirs = follower.join().map_err(|_| Error::internal("measuring ended early"))?;
        Ok((!samples.is_empty()).then_some((samples, theirs)))
    })
}
