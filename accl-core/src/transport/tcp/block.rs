//! How a message is cut into blocks, which may travel on any of a link's connections.
//!
//! Every message is cut at the multiples of [`BLOCK_BYTES`]. The only block of a short one follows the message's head, on the
//! first connection. Longer ones have their heads there, too, alone; their blocks go in runs, each with a head of its own:
//! ```text
//! run:  0: "ACLB" | message u32       8: block u32 | blocks u32       16: the bytes
//! ```
//! Numbers are little-endian. `message` counts the messages of the link from 0 on, and wraps around; `block` is the first block's place
//! within the message, from 0 on, and `blocks` says how many follow each other there. The sender gives blocks away in order, each run
//! to a connection that has room; a link with one connection sends all of them in one run.

/// Bytes of every block of a message but the last, which has what is left. Large enough that its head, and a system call for
/// it, cost little; small enough that a segment of a pipeline is several blocks, for connections of different speed.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a block's head.
pub const BLOCK_HEAD_BYTES: usize = 16;
/// How many blocks may have begun behind one that has not, and how many a run has at most.
pub(super) const WINDOW: u64 = 1024;
const MAGIC: u32 = u32::from_le_bytes(*b"ACLB");

/// What the head of a block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHead {
    /// The message that it belongs to.
    pub message: u32,
    /// The place of the first one in it.
    pub block: u64,
    /// How many there are: one at least.
    pub blocks: u64,
}

impl BlockHead {
    /// The head as bytes.
    pub fn encode(&self) -> [u8; BLOCK_HEAD_BYTES] {
        let mut bytes = [0; BLOCK_HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.message.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.block as u32).to_le_bytes());
        bytes[12..].copy_from_slice(&(self.blocks as u32).to_le_bytes());
        bytes
    }

    /// None if it is not one.
    pub fn decode(head: &[u8; BLOCK_HEAD_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (message, block, blocks) = (number(4), number(8).into(), number(12).into());
        (number(0) == MAGIC && blocks > 0).then_some(Self { message, block, blocks })
    }
}

/// How many blocks a message has: one at least.
pub(super) fn blocks_of(bytes: usize) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).max(1) as u64
}

/// Where a run of blocks of a message of so many bytes begins, and its bytes. The message must have them.
pub(super) fn span_of(bytes: usize, block: u64, blocks: u64) -> (usize, usize) {
    let offset = block as usize * BLOCK_BYTES;
    (offset, (bytes - offset).min(blocks as usize * BLOCK_BYTES))
}

/// Which blocks of a message have begun to come.
#[derive(Clone, Debug)]
pub struct Arrivals {
    bytes: usize,
    /// The first that has not begun.
    next: u64,
    /// Of those behind it, at their number modulo the window.
    ahead: [u64; WINDOW as usize / 64],
}

/// What became of the attempt to begin a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beginning {
    /// It begins there, and has so many bytes.
    At(usize, usize),
    /// Too many before it have not begun.
    Later,
    /// The message has no such block, or it has come before.
    Wrong,
}

impl Arrivals {
    /// Those of a message of so many bytes, before the first.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, next: 0, ahead: [0; WINDOW as usize / 64] }
    }

    /// The first block that has not begun.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins a run of blocks; each block begins once.
    pub fn begin(&mut self, block: u64, blocks: u64) -> Beginning {
        let end = block.saturating_add(blocks);
        if blocks == 0 || blocks > WINDOW || end > blocks_of(self.bytes) || block < self.next {
            return Beginning::Wrong;
        }
        let place = |block: u64| ((block % WINDOW / 64) as usize, 1u64 << (block % 64));
        let window_end = self.next + WINDOW;
        let begun = |block: u64| self.ahead[place(block).0] & place(block).1 != 0;
        if (block..end.min(window_end)).any(begun) {
            return Beginning::Wrong;
        }
        if end > window_end {
            return Beginning::Later;
        }
        for block in block..end {
            let (word, bit) = place(block);
            self.ahead[word] |= bit;
        }
        loop {
            let (word, bit) = place(self.next);
            if self.ahead[word] & bit == 0 {
                break;
            }
            self.ahead[word] &= !bit;
            self.next += 1;
        }
        let (offset, bytes) = span_of(self.bytes, block, blocks);
        Beginning::At(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_come_out_as_they_went_in() {
        let head = BlockHead { message: 0x0102_0304, block: 1 << 20, blocks: 7 };
        assert_eq!(BlockHead::decode(&head.encode()), Some(head));
        assert_eq!(BlockHead::decode(&[0; BLOCK_HEAD_BYTES]), None);
    }

    #[test]
    fn blocks_cover_a_message() {
        for (bytes, blocks) in [(0, 1), (1, 1), (BLOCK_BYTES, 1), (BLOCK_BYTES + 1, 2), (5 * BLOCK_BYTES, 5)]
        {
            assert_eq!(blocks_of(bytes), blocks);
            let mut end = 0;
            for block in 0..blocks {
                let (offset, length) = span_of(bytes, block, 1);
                assert_eq!(offset, end);
                end += length;
            }
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn what_is_too_far_ahead_waits_and_what_is_wrong_is_seen() {
        let bytes = 3000 * BLOCK_BYTES + 5;
        let mut arrivals = Arrivals::new(bytes);
        assert_eq!(arrivals.begin(WINDOW, 1), Beginning::Later);
        assert_eq!(
            arrivals.begin(WINDOW - 1, 1),
            Beginning::At((WINDOW as usize - 1) * BLOCK_BYTES, BLOCK_BYTES)
        );
        assert_eq!(arrivals.begin(WINDOW - 1, 1), Beginning::Wrong, "twice");
        assert_eq!(arrivals.begin(0, 1), Beginning::At(0, BLOCK_BYTES));
        assert_eq!((arrivals.begin(0, 1), arrivals.next()), (Beginning::Wrong, 1));
        assert!(matches!(arrivals.begin(WINDOW, 1), Beginning::At(..)));
        assert_eq!(arrivals.begin(3001, 1), Beginning::Wrong, "beyond the message");
        assert_eq!(arrivals.begin(u64::MAX, 1), Beginning::Wrong);
        let mut runs = Arrivals::new(bytes);
        assert_eq!(runs.begin(2, 4), Beginning::At(2 * BLOCK_BYTES, 4 * BLOCK_BYTES));
        assert_eq!(
            (runs.begin(0, 3), runs.begin(5, 9), runs.begin(0, 0)),
            (Beginning::Wrong, Beginning::Wrong, Beginning::Wrong)
        );
        assert_eq!((runs.begin(1020, 5), runs.begin(6, 1025)), (Beginning::Later, Beginning::Wrong));
        assert_eq!((runs.begin(0, 2), runs.next()), (Beginning::At(0, 2 * BLOCK_BYTES), 6));
        assert_eq!(runs.begin(3000, 2), Beginning::Wrong, "beyond the message");
        assert_eq!(Arrivals::new(5).begin(0, 1), Beginning::At(0, 5));
    }

    proptest! {
        #[test]
        fn each_block_begins_once_in_any_order(count in 1u64..1000, swaps in prop::collection::vec(any::<(u16, u16)>(), 0..200)) {
            let bytes = count as usize * BLOCK_BYTES - 3;
            let mut order: Vec<u64> = (0..count).collect();
            for (one, other) in swaps {
                order.swap(usize::from(one) % count as usize, usize::from(other) % count as usize);
            }
            let mut arrivals = Arrivals::new(bytes);
            let mut total = 0;
            for block in &order {
                let Beginning::At(offset, length) = arrivals.begin(*block, 1) else { panic!("{block}") };
                prop_assert_eq!((offset, length), span_of(bytes, *block, 1));
                prop_assert_eq!(arrivals.begin(*block, 1), Beginning::Wrong);
                total += length;
            }
            prop_assert_eq!((total, arrivals.next()), (bytes, count));
        }
    }
}
