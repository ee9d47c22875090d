//! Models for loom: each piece of this module in the situation it was made for, in every interleaving and under
//! every order that the memory model allows. Run by `ci/loom`.
//!
//! Plain data is a loom cell, which reports accesses that nothing orders; so "nobody reads what is being written"
//! needs no assertion. Bodies are small, since the number of interleavings grows with each step.
//!
//! # Safety
//! Cells are accessed as the pieces under test allow; where that is not enough, loom says so.
#![allow(unsafe_code)]

use super::bell::Bell;
use super::cursor::{Consumer, Head, Producer, Tail};
use super::lease::Lease;
use super::postings::Postings;
use super::prim::{AtomicU32, AtomicU64, Ordering};
use super::progress::Progress;
use super::verdict::Verdict;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The kernel's side of a futex: the comparison and falling asleep are one step.
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Self {
        Self { lock: Mutex::new(()), woken: Condvar::new() }
    }

    fn wait(&self, word: &AtomicU32, expected: u32) {
        let guard = self.lock.lock().unwrap();
        if word.load(Ordering::Relaxed) == expected {
            // A wake-up that never comes would be a deadlock, which loom reports.
            drop(self.woken.wait(guard).unwrap());
        }
    }

    fn wake_all(&self) {
        let _guard = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

#[derive(Clone)]
struct Doorbell {
    bell: Arc<Bell>,
    futex: Arc<Futex>,
}

impl Doorbell {
    fn new() -> Self {
        Self { bell: Arc::new(Bell::new()), futex: Arc::new(Futex::new()) }
    }

    fn ring(&self) {
        if self.bell.must_wake() {
            self.futex.wake_all();
        }
    }

    /// The waiter as in `engine/drive.rs`: arm, look once more, sleep; until the look says that it is time.
    fn wait_until(&self, look: impl Fn() -> bool) {
        while !look() {
            let rings = self.bell.arm();
            if !look() {
                self.futex.wait(self.bell.word(), rings);
            }
            self.bell.disarm();
        }
    }
}

#[test]
fn no_ring_is_lost() {
    loom::model(|| {
        let (door, flag) = (Doorbell::new(), Arc::new(AtomicU32::new(0)));
        let ringer = {
            let (door, flag) = (door.clone(), flag.clone());
            thread::spawn(move || {
                flag.store(1, Ordering::Release);
                door.ring();
            })
        };
        door.wait_until(|| flag.load(Ordering::Acquire) == 1);
        ringer.join().unwrap();
    });
}

#[test]
fn no_ring_is_lost_between_two_ringers() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let door = Doorbell::new();
        let flags: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
        let ringers = flags.clone().map(|flag| {
            let door = door.clone();
            thread::spawn(move || {
                flag.store(1, Ordering::Release);
                door.ring();
            })
        });
        for flag in &flags {
            door.wait_until(|| flag.load(Ordering::Acquire) == 1);
        }
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

#[test]
fn who_waits_for_everything_hears_of_the_last() {
    loom::model(|| {
        let (progress, futex) = (Arc::new(Progress::default()), Arc::new(Futex::new()));
        let result = Arc::new(UnsafeCell::new(0));
        progress.queue();
        let completer = {
            let (progress, futex, result) = (progress.clone(), futex.clone(), result.clone());
            thread::spawn(move || {
                // SAFETY: nobody looks before it is complete.
                result.with_mut(|place| unsafe { *place = 7 });
                if progress.must_wake(1) {
                    futex.wake_all();
                }
            })
        };
        // As in `Progress::wait`.
        while !progress.is_idle() {
            let rings = progress.idle().arm();
            if !progress.is_idle() {
                futex.wait(progress.idle().word(), rings);
            }
            progress.idle().disarm();
        }
        // SAFETY: complete.
        assert_eq!(result.with(|place| unsafe { *place }), 7);
        completer.join().unwrap();
    });
}

#[test]
fn a_launch_that_waits_behind_another_needs_no_ring() {
    // What `submit_call` relies on: it rings only if the thread sleeps and nothing is before the launch.
    loom::model(|| {
        let (door, progress) = (Doorbell::new(), Arc::new(Progress::default()));
        let full = Arc::new(AtomicU32::new(0));
        // The one before it is under way.
        progress.queue();
        let submitter = {
            let (door, progress, full) = (door.clone(), progress.clone(), full.clone());
            thread::spawn(move || {
                let before = progress.queue();
                full.store(1, Ordering::Release);
                if door.bell.is_armed() && progress.done() == before {
                    door.ring();
                }
            })
        };
        progress.must_wake(1);
        door.wait_until(|| full.load(Ordering::Acquire) == 1);
        submitter.join().unwrap();
    });
}

/// A ring of cells in place of bytes.
struct Ring<const N: usize> {
    tail: Tail,
    head: Head,
    cells: [UnsafeCell<u64>; N],
}

impl<const N: usize> Ring<N> {
    fn new() -> Self {
        Self {
            tail: Tail::default(),
            head: Head::default(),
            cells: std::array::from_fn(|_| UnsafeCell::new(0)),
        }
    }

    fn cell(&self, position: u64) -> &UnsafeCell<u64> {
        &self.cells[position as usize % N]
    }
}

/// Pushes 1, 2, … `last` through a ring of `N` cells, `step` at a time.
fn through_a_ring<const N: usize>(last: u64, step: u64) {
    let ring = Arc::new(Ring::<N>::new());
    let producing = ring.clone();
    let producer = thread::spawn(move || {
        let mut producer = Producer::new(N as u64);
        let mut value = 0;
        while value < last {
            if producer.free(&producing.head, step) < step {
                thread::yield_now();
                continue;
            }
            for offset in 0..step {
                value += 1;
                let cell = producing.cell(producer.position() + offset);
                // SAFETY: the free cells are the producer's.
                cell.with_mut(|place| unsafe { *place = value });
            }
            producer.publish(&producing.tail, step);
        }
    });
    let mut consumer = Consumer::new();
    let mut value = 0;
    while value < last {
        if !consumer.has_data(&ring.tail) {
            thread::yield_now();
            continue;
        }
        value += 1;
        // SAFETY: published cells are the consumer's.
        let got = ring.cell(consumer.position()).with(|place| unsafe { *place });
        assert_eq!(got, value);
        consumer.release(&ring.head, 1);
        consumer.finish_message(&ring.head);
    }
    producer.join().unwrap();
    assert_eq!(ring.head.messages(), last);
}

#[test]
fn a_ring_of_one_place_alternates() {
    loom::model(|| through_a_ring::<1>(2, 1));
}

#[test]
fn a_ring_wraps_around() {
    loom::model(|| through_a_ring::<2>(3, 1));
}

#[test]
fn a_ring_publishes_several_at_once() {
    loom::model(|| through_a_ring::<2>(4, 2));
}

#[test]
fn a_message_that_is_finished_is_no_longer_read() {
    // What `Outgoing::is_done` relies on: after the count of messages, the lent memory is the sender's again.
    loom::model(|| {
        let lent = Arc::new((Head::default(), UnsafeCell::new(7)));
        let reading = lent.clone();
        let receiver = thread::spawn(move || {
            // SAFETY: lent until the message is finished.
            assert_eq!(reading.1.with(|place| unsafe { *place }), 7);
            Consumer::new().finish_message(&reading.0);
        });
        if lent.0.messages() == 1 {
            // SAFETY: the receiver has finished.
            lent.1.with_mut(|place| unsafe { *place = 8 });
        }
        receiver.join().unwrap();
    });
}

#[test]
fn closed_memory_is_not_read() {
    loom::model(|| {
        let lent = Arc::new((Lease::default(), UnsafeCell::new(7)));
        let reading = lent.clone();
        let reader = thread::spawn(move || {
            for _ in 0..2 {
                if reading.0.begin_reading() {
                    // SAFETY: announced, and the lease lasts until we are through.
                    assert_eq!(reading.1.with(|place| unsafe { *place }), 7);
                    reading.0.end_reading();
                }
            }
        });
        lent.0.close(|| false, thread::yield_now);
        // SAFETY: nobody reads any more.
        lent.1.with_mut(|place| unsafe { *place = 8 });
        reader.join().unwrap();
    });
}

#[test]
fn a_copy_of_closed_memory_is_noticed() {
    loom::model(|| {
        // An atomic stands for memory that the kernel copies: it may change under the copy.
        let lent = Arc::new((Lease::default(), AtomicU64::new(7)));
        let reading = lent.clone();
        let reader = thread::spawn(move || {
            let copy = reading.1.load(Ordering::Relaxed);
            if reading.0.lasts() {
                assert_eq!(copy, 7);
            }
        });
        lent.0.close(|| false, thread::yield_now);
        lent.1.store(8, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// The places of one rank on a board.
struct Places<const DEPTH: usize> {
    numbers: [AtomicU64; DEPTH],
    data: [UnsafeCell<u64>; DEPTH],
}

impl<const DEPTH: usize> Places<DEPTH> {
    fn new() -> Self {
        Self {
            numbers: std::array::from_fn(|_| AtomicU64::new(0)),
            data: std::array::from_fn(|_| UnsafeCell::new(0)),
        }
    }
}

/// Two ranks post `last` operations each. Rank 0 reads what rank 1 posts; if `both`, rank 1 does so, too, as in an
/// all-reduce. Otherwise it runs ahead as far as the rule lets it, as in a reduction to root 0.
fn on_a_board<const DEPTH: usize>(last: u64, both: bool) {
    let board: Arc<[Places<DEPTH>; 2]> = Arc::new(std::array::from_fn(|_| Places::new()));
    let take_part = move |board: Arc<[Places<DEPTH>; 2]>, rank: usize| {
        let place = |sequence: u64| sequence as usize % DEPTH;
        let number = |rank: usize, sequence: u64| &board[rank].numbers[place(sequence)];
        let mut postings = Postings::new(rank, 2);
        let peer = 1 - rank;
        for sequence in 1..=last {
            while !postings.can_post(sequence, DEPTH, number) {
                thread::yield_now();
            }
            // SAFETY: the rule says that nobody reads this place any more.
            board[rank].data[place(sequence)].with_mut(|data| unsafe { *data = sequence });
            postings.post(sequence, number(rank, sequence));
            if !both && rank == 1 {
                continue;
            }
            while !postings.has_posted(peer, sequence, number) {
                thread::yield_now();
            }
            // SAFETY: posted, and unchanged until this rank posts its next.
            assert_eq!(board[peer].data[place(sequence)].with(|data| unsafe { *data }), sequence);
        }
    };
    let other = board.clone();
    let thread = thread::spawn(move || take_part(other, 1));
    take_part(board, 0);
    thread.join().unwrap();
}

/// Two ranks post `last` operations each, up to `ahead` of them before they read the peer's first.
fn ahead_on_a_board<const DEPTH: usize>(last: u64, ahead: u64) {
    let board: Arc<[Places<DEPTH>; 2]> = Arc::new(std::array::from_fn(|_| Places::new()));
    let take_part = move |board: Arc<[Places<DEPTH>; 2]>, rank: usize| {
        let place = |sequence: u64| sequence as usize % DEPTH;
        let number = |rank: usize, sequence: u64| &board[rank].numbers[place(sequence)];
        let (mut postings, peer) = (Postings::new(rank, 2), 1 - rank);
        let lead = DEPTH - ahead as usize + 1;
        let (mut posted, mut read) = (0, 0);
        while read < last {
            if posted < last && posted - read < ahead && postings.can_post(posted + 1, lead, number) {
                posted += 1;
                // SAFETY: the rule says that nobody reads this place any more.
                board[rank].data[place(posted)].with_mut(|data| unsafe { *data = posted });
                postings.post(posted, number(rank, posted));
            } else if read < posted && postings.has_posted(peer, read + 1, number) {
                read += 1;
                // SAFETY: posted, and unchanged until this rank has posted `ahead` more.
                assert_eq!(board[peer].data[place(read)].with(|data| unsafe { *data }), read);
            } else {
                thread::yield_now();
            }
        }
    };
    let other = board.clone();
    let thread = thread::spawn(move || take_part(other, 1));
    take_part(board, 0);
    thread.join().unwrap();
}

#[test]
fn a_board_is_used_again_in_time_by_ranks_that_post_before_they_read() {
    for (last, bound) in [(4, 2), (3, 3)] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(bound);
        model.check(move || ahead_on_a_board::<3>(last, 2));
    }
}

#[test]
fn a_board_is_used_again_in_time_by_ranks_that_wait_for_each_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| on_a_board::<2>(3, true));
}

#[test]
fn a_board_is_used_again_in_time_by_a_rank_that_runs_ahead() {
    for bound in [2, 3] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(bound);
        model.check(move || if bound == 2 { on_a_board::<3>(4, false) } else { on_a_board::<2>(3, false) });
    }
}

#[test]
fn the_first_verdict_is_everybodys() {
    loom::model(|| {
        let cell = Arc::new(Verdict::<2>::new());
        let setters = [1u32, 2].map(|code| {
            let cell = cell.clone();
            thread::spawn(move || cell.set(code, &[code as u8; 2]))
        });
        let seen = cell.get();
        if let Some((code, text)) = &seen {
            assert_eq!(text, &[*code as u8; 2]);
        }
        let first = setters.map(|setter| setter.join().unwrap());
        assert_eq!(first.iter().filter(|first| **first).count(), 1);
        let settled = cell.get().unwrap();
        assert_eq!(settled.0 == 1, first[0]);
        assert!(seen.is_none_or(|seen| seen == settled));
    });
}
