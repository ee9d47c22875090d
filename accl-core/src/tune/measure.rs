//! Measuring: what one thread finds out by itself, and the figures of a pair of threads.
//!
//! Other programs take processors and caches away, so noise only ever adds: a figure is the least of some medians.

use super::pair;
use crate::device::{Device, Host, Operand};
use crate::error::{Error, Result};
use crate::memory::{Scratch, UserPointer};
use crate::os::mapping::Mapping;
use crate::os::{clock, cpu, process};
use crate::reduce::{Form, Reduction};
use crate::topo::{FIGURES, Machine};
use crate::transport::shm::{Reach, pull};
use crate::types::{DataType, ReduceOp};
use std::time::Duration;

/// Rows that come from memory: all rows of a measurement together have so many bytes, more than the caches that the cores
/// of one rank usually have a share of.
const MEMORY_BYTES: usize = 128 << 20;
/// The kernel copies so many bytes with one call, as in the engine.
const PIECE_BYTES: usize = 256 << 10;
/// Samples of which a median is taken.
const BATCH: usize = 3;
/// Several of them: the least counts.
const BATCHES: usize = 7;
/// No figure may take longer; there are about twenty.
pub(super) const FIGURE_LIMIT: Duration = Duration::from_millis(30);
/// A sample is as long at least, so that the clock does not count.
const SAMPLE_LEAST: Duration = Duration::from_micros(20);

/// Measures this machine, in less than half a second, and with 200 MB of memory. What cannot be measured here (as what
/// happens between two processors where there is one) keeps its default.
///
/// An error (System) if the memory or the threads are not there.
pub fn measure() -> Result<Machine> {
    // Vectors end the process where memory is short; a mapping says so.
    drop(Mapping::anonymous(3 * MEMORY_BYTES / 2)?);
    // A thread of its own, since it goes from processor to processor.
    let thread = std::thread::Builder::new().name("accl-tune".into()).spawn(figures);
    let thread = thread.map_err(|error| Error::thread("a thread that measures", error))?;
    let figures = thread.join().map_err(|_| Error::internal("measuring ended early"))??;
    let values = Machine::default().values();
    let measured = |name: &str| figures.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    Ok(Machine::from_values(std::array::from_fn(|index| {
        measured(FIGURES[index].name).unwrap_or(values[index])
    })))
}

fn figures() -> Result<Figures> {
    let (allowed, pair) = (cpu::allowed(), cpu::pair());
    if let Some(first) = pair.map(|pair| pair[0]).or_else(|| allowed.first().copied()) {
        cpu::run_on(&[first]);
    }
    let mut figures = Bench::new()?.figures();
    figures.extend(pair::figures(allowed.first().copied(), pair)?);
    Ok(figures)
}

/// Figures by name, in the units in which they are written.
pub(super) type Figures = Vec<(&'static str, f64)>;

/// The least of the medians of batches; infinite without samples.
pub(super) fn typical(samples: &mut [f64]) -> f64 {
    let median = |batch: &mut [f64]| {
        batch.sort_by(f64::total_cmp);
        batch[batch.len() / 2]
    };
    samples.chunks_mut(BATCH).map(median).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds that `work` takes, typically.
fn time_ns(mut work: impl FnMut()) -> f64 {
    let begin = clock::now();
    work();
    let once = begin.elapsed().max(Duration::from_nanos(1));
    let repeats = (SAMPLE_LEAST.as_nanos() / once.as_nanos()).clamp(1, 1000) as u32;
    let mut samples = Vec::with_capacity(BATCH * BATCHES);
    while samples.len() < BATCH * BATCHES && (samples.len() < BATCH || begin.elapsed() < FIGURE_LIMIT) {
        let start = clock::now();
        for _ in 0..repeats {
            work();
        }
        samples.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(repeats));
    }
    typical(&mut samples)
}

fn per_kib(ns: f64, bytes: usize) -> f64 {
    ns * 1024.0 / bytes as f64
}

/// Rows to copy and to add.
#[derive(Debug)]
struct Bench {
    left: Scratch,
    right: Scratch,
    result: Scratch,
    l2_bytes: usize,
}

impl Bench {
    /// With as much memory as any of the measurements needs.
    fn new() -> Result<Self> {
        let mut rows = [(); 3].map(|()| Scratch::default());
        for row in &mut rows {
            row.ensure(MEMORY_BYTES / 2)?;
        }
        let [left, right, result] = rows;
        let l2_bytes = cpu::level2_bytes().unwrap_or_else(|| Machine::default().l2_kib as usize * 1024);
        // A cache as large as that leaves no room for others below what counts as memory.
        Ok(Self { left, right, result, l2_bytes: l2_bytes.clamp(64 << 10, MEMORY_BYTES / 16) })
    }

    fn figures(&mut self) -> Figures {
        let rows = [self.l2_bytes / 2, 3 * self.l2_bytes, MEMORY_BYTES];
        let [copy_l2, copy_l3, copy_memory] = rows.map(|bytes| self.copy(bytes));
        let [add_l2, add_l3, add_memory] = rows.map(|bytes| self.add(bytes));
        let l3_bytes = self.l3_bytes(copy_l3, copy_memory);
        let mut figures = vec![
            ("copy-l2", copy_l2),
            ("copy-l3", copy_l3),
            ("copy-memory", copy_memory),
            ("copy-streaming", self.copy_streaming(MEMORY_BYTES)),
            ("add-l2", add_l2),
            ("add-l3", add_l3),
            ("add-memory", add_memory),
            ("add-streaming", self.add_streaming(MEMORY_BYTES)),
            ("l2", (self.l2_bytes / 1024) as f64),
            ("l3", (l3_bytes / 1024) as f64),
        ];
        figures.extend(self.remote(rows).unwrap_or_default());
        figures
    }

    /// Nanoseconds for each KiB copied, where source and destination have `all_bytes` together; likewise below.
    fn copy(&mut self, all_bytes: usize) -> f64 {
        let bytes = all_bytes / 2;
        let (to, from) = (self.result.start(), self.left.start());
        per_kib(time_ns(|| Host.copy(to, from, bytes)), bytes)
    }

    fn copy_streaming(&mut self, all_bytes: usize) -> f64 {
        let bytes = all_bytes / 2;
        let (to, from) = (self.result.start(), self.left.start());
        per_kib(time_ns(|| Host.copy_streaming(to, from, bytes)), bytes)
    }

    fn add(&mut self, all_bytes: usize) -> f64 {
        self.sum(all_bytes, |sum, operands, to, count| Host.reduce(sum, operands, to, Form::Element, count))
    }

    fn add_streaming(&mut self, all_bytes: usize) -> f64 {
        self.sum(all_bytes, |sum, operands, to, count| {
            Host.reduce_streaming(sum, operands, to, Form::Element, count);
        })
    }

    fn sum(&mut self, all_bytes: usize, add: impl Fn(&Reduction, &[Operand], UserPointer, usize)) -> f64 {
        let bytes = all_bytes / 3 / 64 * 64;
        let operand = |start: UserPointer| Operand { start, form: Form::Element, scale: None };
        let operands = [operand(self.left.start()), operand(self.right.start())];
        let sum = Reduction::new(DataType::Float32, ReduceOp::Sum, 2);
        let to = self.result.start();
        per_kib(time_ns(|| add(&sum, &operands, to, bytes / 4)), bytes)
    }

    /// Up to how many bytes copying is nearer to the speed of the shared cache than to that of memory. The size that a
    /// processor tells is of no use: other cores, and other guests of the host, have their share.
    fn l3_bytes(&mut self, l3: f64, memory: f64) -> usize {
        let between = (l3 * memory).sqrt();
        let from = 3 * self.l2_bytes;
        let sizes = std::iter::successors(Some(2 * from), |bytes| Some(bytes * 7 / 5));
        // All of them: what other guests did during one of them says nothing of the next.
        let helped =
            sizes.take_while(|bytes| *bytes < MEMORY_BYTES).filter(|bytes| self.copy(*bytes) < between);
        // There it helps by half; the model has it help in full up to two thirds of that.
        helped.last().map_or(from, |bytes| bytes / 3 * 2)
    }

    /// The kernel's copies, tried on this process: they take the same way as those from another one. `None` where it
    /// refuses.
    fn remote(&mut self, rows: [usize; 3]) -> Option<Figures> {
        let reach = Reach::CrossProcess(process::id());
        let (to, from) = (self.result.start(), self.left.start());
        let source = |at: usize| from.byte_add(at).address() as u64;
        pull(reach, source(0), to, 8).ok()?;
        let call = time_ns(|| {
            let _ = pull(reach, source(0), to, 8);
        });
        let rate = |all_bytes: usize| {
            let bytes = all_bytes / 2;
            let pieces = || (0..bytes).step_by(PIECE_BYTES);
            let all = time_ns(|| {
                for at in pieces() {
                    let _ = pull(reach, source(at), to.byte_add(at), PIECE_BYTES.min(bytes - at));
                }
            });
            per_kib(all - call * pieces().count() as f64, bytes)
        };
        let [l2, l3, memory] = rows.map(rate);
        Some(vec![("remote-call", call), ("remote-l2", l2), ("remote-l3", l3), ("remote-memory", memory)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_quiet_batch_is_enough() {
        let mut samples = [[9.0, 900.0, 80.0], [5.0, 4.0, 1.0], [7.0, 0.0, 6.0]].concat();
        assert_eq!(typical(&mut samples), 4.0);
        assert_eq!(typical(&mut []), f64::INFINITY);
    }
}
