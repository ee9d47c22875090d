//! Blocks and threads: who runs, who waits at a barrier, and what a warp does together.
//!
//! Threads are states that can be left and taken up again, and all resident blocks take turns, so that kernels may wait for each
//! other's flags, within a launch and between launches (each stream has its thread).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::launch::Shape;

use super::program::{Barrier, BarrierKind};
use super::space::{Cache, Words};
use super::types::{Operand, Special, WarpOp};
use super::{Kernel, Linked, warp};

/// Instructions of a thread before the next one's turn.
const TURN: u32 = 1000;

/// Rounds without any progress, after which a kernel is believed to wait for somebody, and lets others have the processor.
const PATIENCE: u32 = 20;

/// Why a kernel ends early.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) why: String,
}

impl Fault {
    pub(super) fn new(code: Code, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

/// Where a thread is in a routine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) routine: usize,
    /// Where the caller goes on.
    pub(super) next: usize,
    pub(super) registers: usize,
    pub(super) local: u64,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum State {
    Ready,
    AtBarrier,
    AtWarp,
    Done,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) state: State,
    pub(super) at: usize,
    pub(super) frame: Frame,
    pub(super) callers: Vec<Frame>,
    pub(super) registers: Vec<u64>,
    pub(super) local: Words,
    pub(super) carry: bool,
    pub(super) index: [u32; 3],
    pub(super) number: u32,
    /// What it wants from its warp: operation, members and its own values.
    pub(super) wish: Option<Wish>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) op: WarpOp,
    pub(super) members: u32,
    pub(super) values: [u64; 3],
}

/// Who has come to a barrier.
#[derive(Debug, Default)]
struct Meeting {
    arrived: usize,
    needed: Option<usize>,
    /// How many brought a true predicate.
    hits: u64,
    /// Who waits, by its number.
    waiting: Vec<(usize, Barrier)>,
}

#[derive(Debug)]
struct Block {
    index: [u32; 3],
    shared: Words,
    threads: Vec<Thread>,
    meetings: Vec<Meeting>,
    alive: usize,
}

/// Why a thread stopped.
pub(super) enum Stop {
    Turn,
    Barrier(Barrier),
    Warp,
    Done,
}

/// A launch.
pub(super) struct Machine<'a> {
    pub(super) linked: &'a Linked,
    pub(super) kernel: &'a Kernel,
    pub(super) shape: &'a Shape,
    pub(super) parameters: Words,
    pub(super) cache: Cache,
    pub(super) shared_bytes: u32,
    /// Has a thread changed something that others can see, or ended, or met others?
    pub(super) has_progress: bool,
    /// State of random turns: who runs when, and for how long, is up to the hardware, and no kernel may count on it.
    random: Option<u64>,
}

/// What a thread sees beside itself.
pub(super) struct Surroundings<'a> {
    pub(super) shared: &'a Words,
    pub(super) block: [u32; 3],
}

pub(super) fn run(kernel: &Kernel, shape: &Shape, packed: &[u8], context: &Arc<Context>) -> Outcome {
    let mut machine = Machine {
        linked: &kernel.linked,
        kernel,
        shape,
        parameters: Words::from(packed),
        cache: Cache::new(context),
        shared_bytes: kernel.shared_bytes + shape.shared_bytes,
        has_progress: false,
        random: crate::config::get().random_delay.map(|seed| seed ^ crate::time::now_ns()),
    };
    machine.all_blocks().map_err(|fault| {
        eprintln!("accl-sim: kernel {} failed: {}", kernel.name(), fault.why);
        fault.code
    })
}

impl Machine<'_> {
    fn all_blocks(&mut self) -> Result<(), Fault> {
        let total: u64 = self.shape.grid.iter().map(|&n| u64::from(n)).product();
        let room = self.kernel.resident_blocks(self.shape);
        let mut next = 0;
        let mut blocks: VecDeque<Block> = VecDeque::new();
        let mut idle_rounds = 0;
        loop {
            while next < total && blocks.len() < room {
                blocks.push_back(self.block(next));
                next += 1;
            }
            if blocks.is_empty() {
                return Ok(());
            }
            let first = self.below(blocks.len());
            blocks.rotate_left(first);
            for block in &mut blocks {
                self.turn(block)?;
            }
            blocks.retain(|block| block.alive > 0);
            idle_rounds = if std::mem::take(&mut self.has_progress) { 0 } else { idle_rounds + 1 };
            // Whoever is waited for may need this processor.
            if idle_rounds > PATIENCE {
                crate::time::pause_us(20);
            } else if !blocks.is_empty() {
                std::thread::yield_now();
            }
        }
    }

    fn block(&self, number: u64) -> Block {
        let [x, y, _] = self.shape.grid.map(u64::from);
        let index = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        let [bx, by, bz] = self.shape.block;
        let routine = &self.linked.routines[self.kernel.routine];
        let thread = |number: u32| Thread {
            state: State::Ready,
            at: 0,
            frame: Frame { routine: self.kernel.routine, next: 0, registers: 0, local: 0 },
            callers: Vec::new(),
            registers: vec![0; routine.registers],
            local: Words::new(routine.frame_bytes),
            carry: false,
            index: [number % bx, number / bx % by, number / bx / by],
            number,
            wish: None,
        };
        let threads: Vec<Thread> = (0..bx * by * bz).map(thread).collect();
        let alive = threads.len();
        let meetings = (0..16).map(|_| Meeting::default()).collect();
        Block { index, shared: Words::new(self.shared_bytes.into()), threads, meetings, alive }
    }

    /// Zero, or a random number below a bound where turns are random.
    fn below(&mut self, bound: usize) -> usize {
        self.random.as_mut().map_or(0, |state| crate::time::scramble(state) as usize % bound)
    }

    /// Lets each thread of a block run until it waits, or its turn is over.
    fn turn(&mut self, block: &mut Block) -> Result<(), Fault> {
        let (mut has_moved, mut has_met) = (false, false);
        let count = block.threads.len();
        let first = self.below(count);
        for number in (first..count).chain(0..first) {
            if block.threads[number].state != State::Ready {
                continue;
            }
            has_moved = true;
            let around = Surroundings { shared: &block.shared, block: block.index };
            let thread = &mut block.threads[number];
            let turn = TURN - self.below(TURN as usize) as u32;
            let stop = self.steps(thread, &around, turn).map_err(|fault| Fault {
                why: format!("block {:?}, thread {:?}: {}", block.index, thread.index, fault.why),
                ..fault
            })?;
            match stop {
                Stop::Turn => continue,
                Stop::Warp => thread.state = State::AtWarp,
                Stop::Barrier(barrier) => self.arrive(block, number, barrier),
                Stop::Done => {
                    thread.state = State::Done;
                    block.alive -= 1;
                }
            }
            has_met = true;
        }
        self.has_progress |= has_met;
        let woken = warp::resolve(&mut block.threads) | block.open_barriers();
        if has_moved || woken || block.alive == 0 {
            Ok(())
        } else {
            Err(Fault::new(
                Code::LAUNCH_FAILED,
                format!("block {:?} waits for threads that never come", block.index),
            ))
        }
    }

    fn arrive(&self, block: &mut Block, number: usize, barrier: Barrier) {
        let thread = &mut block.threads[number];
        let around = Surroundings { shared: &block.shared, block: block.index };
        let read = |operand: Operand| self.read(thread, &around, operand);
        let meeting = &mut block.meetings[read(barrier.id) as usize & 15];
        meeting.needed = barrier.threads.map(|threads| read(threads) as usize);
        meeting.arrived += 1;
        if (read(barrier.pred) != 0) != barrier.negate {
            meeting.hits += 1;
        }
        if barrier.kind != BarrierKind::Arrive {
            meeting.waiting.push((number, barrier));
            thread.state = State::AtBarrier;
        }
    }

    #[inline(never)]
    pub(super) fn special(&self, thread: &Thread, around: &Surroundings<'_>, special: Special) -> u64 {
        use super::types::LaneMask;
        let lane = thread.number & 31;
        match special {
            Special::Thread(axis) => thread.index[axis].into(),
            Special::BlockSize(axis) => self.shape.block[axis].into(),
            Special::Block(axis) => around.block[axis].into(),
            Special::GridSize(axis) => self.shape.grid[axis].into(),
            Special::Lane => lane.into(),
            Special::Warp => u64::from(thread.number / 32),
            Special::Warps => u64::from(self.shape.block.iter().product::<u32>().div_ceil(32)),
            Special::LaneMask(which) => {
                let bit = 1u32 << lane;
                u64::from(match which {
                    LaneMask::Equal => bit,
                    LaneMask::Less => bit - 1,
                    LaneMask::LessEqual => bit | (bit - 1),
                    LaneMask::Greater => !(bit | (bit - 1)),
                    LaneMask::GreaterEqual => !(bit - 1),
                })
            }
            Special::Clock | Special::NanoTime => crate::time::now_ns(),
            Special::DynamicShared => self.shape.shared_bytes.into(),
            Special::TotalShared => self.shared_bytes.into(),
            Special::Zero => 0,
            Special::One => 1,
        }
    }

    #[inline(always)]
    pub(super) fn read(&self, thread: &Thread, around: &Surroundings<'_>, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => thread.registers[thread.frame.registers + register as usize],
            Operand::Value(value) => value,
            Operand::Frame(at) => thread.frame.local + at,
            Operand::Special(special) => self.special(thread, around, special),
        }
    }
}

impl Block {
    /// Lets go who waits at barriers to which all have come; threads that have ended need not come.
    fn open_barriers(&mut self) -> bool {
        let mut has_opened = false;
        for meeting in &mut self.meetings {
            let needed = meeting.needed.unwrap_or(self.alive);
            if meeting.arrived == 0 || meeting.arrived < needed {
                continue;
            }
            let done = std::mem::take(meeting);
            for (number, barrier) in done.waiting {
                let thread = &mut self.threads[number];
                let result = match barrier.kind {
                    BarrierKind::Popc => done.hits,
                    BarrierKind::And => u64::from(done.hits == done.arrived as u64),
                    BarrierKind::Or => u64::from(done.hits > 0),
                    BarrierKind::Sync | BarrierKind::Arrive => 0,
                };
                let place = thread.frame.registers + barrier.to as usize;
                thread.registers[place] = result;
                thread.state = State::Ready;
            }
            has_opened = true;
        }
        has_opened
    }
}
