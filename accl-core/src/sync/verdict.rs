//! A cell that takes one text and keeps it: the first failure of a communicator, seen by all of its ranks.

use super::prim::{AtomicU8, AtomicU32, Ordering};

const EMPTY: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const THERE: u32 = 2;

/// A code and a text of at most `N` bytes, in memory that all ranks can reach. All bytes zero is an empty cell.
#[derive(Debug)]
#[repr(C)]
pub struct Verdict<const N: usize> {
    state: AtomicU32,
    code: AtomicU32,
    bytes: AtomicU32,
    text: [AtomicU8; N],
}

impl<const N: usize> Verdict<N> {
    /// An empty cell.
    pub fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            code: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            text: std::array::from_fn(|_| AtomicU8::new(0)),
        }
    }

    /// Takes the cell for this writer; false if somebody was first.
    pub(crate) fn begin(&self) -> bool {
        // Relaxed: nothing is read of what an earlier writer wrote.
        self.state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Stores `code` and the first `N` bytes of `text`, unless somebody was first; true if this call was.
    pub fn set(&self, code: u32, text: &[u8]) -> bool {
        if !self.begin() {
            return false;
        }
        let text = &text[..text.len().min(N)];
        for (place, byte) in self.text.iter().zip(text) {
            place.store(*byte, Ordering::Relaxed);
        }
        self.bytes.store(text.len() as u32, Ordering::Relaxed);
        self.code.store(code, Ordering::Relaxed);
        // Release: pairs with `get`.
        self.state.store(THERE, Ordering::Release);
        true
    }

    /// True once code and text are complete.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Acquire: pairs with `set`.
        self.state.load(Ordering::Acquire) == THERE
    }

    /// The code and the text, once they are complete.
    pub fn get(&self) -> Option<(u32, Vec<u8>)> {
        if !self.is_set() {
            return None;
        }
        let length = (self.bytes.load(Ordering::Relaxed) as usize).min(N);
        let text = self.text[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some((self.code.load(Ordering::Relaxed), text))
    }
}

impl<const N: usize> Default for Verdict<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_and_the_first_one_stays() {
        let cell = Verdict::<4>::new();
        assert_eq!(cell.get(), None);
        assert!(cell.set(3, b"first"));
        assert!(!cell.set(4, b"last"));
        assert_eq!(cell.get(), Some((3, b"firs".to_vec())));
    }
}
