//! The two cursors of a ring with one producer and one consumer.
//!
//! The ring's bytes lie elsewhere; this file only says who may touch which of them. Both cursors count bytes
//! since the beginning and never go back. `tail` belongs to the producer, `head` to the consumer; each side
//! keeps a copy of the other's cursor and looks again only when the copy does not suffice.

use super::prim::{AtomicU64, Ordering};
use std::ops::Range;

/// The producer's published cursor, alone on its cache lines.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Tail(AtomicU64);

/// The consumer's published cursors, alone on their cache lines.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Head {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Tail {
    /// Bytes that the producer has published. Acquire: pairs with [`Producer::publish`].
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Head {
    /// Bytes that the consumer has given back. Acquire: pairs with [`Consumer::release`], so that the
    /// consumer's reads of those bytes are over before the producer writes them again.
    fn load(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Whole messages consumed. Acquire: pairs with [`Consumer::finish_message`].
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Acquire)
    }
}

/// The offsets in a ring of `capacity` bytes that hold nothing which the consumer still needs, in two parts. For the producer alone.
pub fn free_parts(tail: &Tail, head: &Head, capacity: usize) -> [Range<usize>; 2] {
    // The producer's own cursor stands still meanwhile; the consumer's only frees more.
    let (head, tail) = (head.load(), tail.load());
    let (first, end) = (head as usize % capacity, tail as usize % capacity);
    match tail - head {
        0 => [0..capacity, 0..0],
        unread if unread as usize >= capacity => [0..0, 0..0],
        _ if first < end => [end..capacity, 0..first],
        _ => [end..first, 0..0],
    }
}

/// The producer's side.
#[derive(Debug)]
pub struct Producer {
    capacity: u64,
    tail: u64,
    seen_head: u64,
}

impl Producer {
    /// The producer of an empty ring of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, tail: 0, seen_head: 0 }
    }

    /// Where the next byte goes, counted since the beginning.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Bytes that may be written now; looks at the consumer's cursor if fewer than `wanted` are known.
    pub fn free(&mut self, head: &Head, wanted: u64) -> u64 {
        if self.capacity - (self.tail - self.seen_head) < wanted {
            self.seen_head = head.load();
        }
        self.capacity - (self.tail - self.seen_head)
    }

    /// Hands `bytes` more to the consumer. Release: pairs with `Tail::load`.
    pub fn publish(&mut self, tail: &Tail, bytes: u64) {
        self.tail += bytes;
        tail.0.store(self.tail, Ordering::Release);
    }
}

/// The consumer's side.
#[derive(Debug)]
pub struct Consumer {
    head: u64,
    seen_tail: u64,
    messages: u64,
}

impl Consumer {
    /// The consumer of an empty ring.
    pub fn new() -> Self {
        Self { head: 0, seen_tail: 0, messages: 0 }
    }

    /// Where the next byte lies, counted since the beginning.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// True if there is at least one byte to read.
    pub fn has_data(&mut self, tail: &Tail) -> bool {
        if self.seen_tail == self.head {
            self.seen_tail = tail.load();
        }
        self.seen_tail != self.head
    }

    /// Gives `bytes` back to the producer. Release: pairs with `Head::load`.
    pub fn release(&mut self, head: &Head, bytes: u64) {
        self.head += bytes;
        head.bytes.store(self.head, Ordering::Release);
    }

    /// Says that a whole message has been read, also where its bytes never went through the ring.
    /// Release: pairs with [`Head::messages`].
    pub fn finish_message(&mut self, head: &Head) {
        self.messages += 1;
        head.messages.store(self.messages, Ordering::Release);
    }

    /// Messages finished so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

impl Default for Consumer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn what_is_free_is_all_but_what_is_unread() {
        let of = |head: u64, tail: u64| {
            let (own, other) = (Tail::default(), Head::default());
            own.0.store(tail, Ordering::Relaxed);
            other.bytes.store(head, Ordering::Relaxed);
            free_parts(&own, &other, 100)
        };
        assert_eq!(of(0, 0), [0..100, 0..0]);
        assert_eq!(of(250, 250), [0..100, 0..0]);
        assert_eq!(of(210, 230), [30..100, 0..10]);
        assert_eq!(of(290, 320), [20..90, 0..0]);
        assert_eq!(of(290, 300), [0..90, 0..0]);
        assert_eq!(of(130, 230), [0..0, 0..0]);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Publish(u64),
        Release(u64),
        FinishMessage,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..9).prop_map(Step::Publish),
            (1u64..9).prop_map(Step::Release),
            Just(Step::FinishMessage)
        ]
    }

    proptest! {
        /// A ring of numbered places against a queue: what comes out is what went in, and no place is handed
        /// out while it is in use.
        #[test]
        fn a_ring_is_a_queue(capacity in 1u64..9, steps in prop::collection::vec(step(), 0..200)) {
            let (tail, head) = (Tail::default(), Head::default());
            let (mut producer, mut consumer) = (Producer::new(capacity), Consumer::new());
            let mut places = vec![None; capacity as usize];
            let mut model = VecDeque::new();
            let (mut next, mut finished) = (0u64, 0u64);
            for step in steps {
                let used = model.len() as u64;
                match step {
                    Step::Publish(wanted) => {
                        let free = producer.free(&head, wanted);
                        // It may know of less than there is, but not if that is too little.
                        prop_assert!(free <= capacity - used);
                        prop_assert!(free >= wanted.min(capacity - used));
                        for offset in 0..wanted.min(free) {
                            let place = &mut places[((producer.position() + offset) % capacity) as usize];
                            prop_assert_eq!(place.replace(next), None, "a place in use");
                            model.push_back(next);
                            next += 1;
                        }
                        producer.publish(&tail, wanted.min(free));
                    }
                    Step::Release(wanted) => {
                        let mut released = 0;
                        while released < wanted && consumer.has_data(&tail) {
                            let place = &mut places[(consumer.position() % capacity) as usize];
                            prop_assert_eq!(place.take(), model.pop_front());
                            consumer.release(&head, 1);
                            released += 1;
                        }
                        prop_assert_eq!(released, wanted.min(used));
                    }
                    Step::FinishMessage => {
                        consumer.finish_message(&head);
                        finished += 1;
                    }
                }
                prop_assert_eq!(head.messages(), finished);
                prop_assert_eq!(consumer.messages(), finished);
            }
        }
    }
}
