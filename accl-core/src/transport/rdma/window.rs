//! Which segments are where: the sender's and the receiver's side of one direction of a link. Pure: no memory, no clock.

/// What a receiver has: all segments below the first number, and those of the mask behind it (bit n mod N for segment n).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Have {
    /// How many segments are consumed.
    pub consumed: u64,
    /// Which ones have arrived besides.
    pub arrived: u64,
}

/// By what a segment has gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum By {
    /// It waits.
    #[default]
    Nothing,
    /// The path of this number.
    Path(u8),
    Tcp,
}

/// The top bit of a word: it is a credit.
const CREDIT: u32 = 1 << 31;

/// The number nearest above `from` whose last 31 bits are those of `word`, and how far above.
fn unfold(from: u64, word: u32) -> (u64, u64) {
    let lead = u64::from((word.wrapping_sub(from as u32)) & !CREDIT);
    (from + lead, lead)
}

/// What a word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// A segment, by the last bits of its number.
    Segment(u32),
    /// How many segments the peer has consumed, by the last bits of that.
    Credit(u32),
}

impl Word {
    pub(super) fn of_segment(number: u64) -> u32 {
        number as u32 & !CREDIT
    }

    pub(super) fn of_credit(consumed: u64) -> u32 {
        consumed as u32 | CREDIT
    }

    pub(super) fn read(word: u32) -> Self {
        if word & CREDIT == 0 { Self::Segment(word) } else { Self::Credit(word & !CREDIT) }
    }
}

/// The sender's side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SendWindow<const N: usize> {
    /// The next segment's number.
    next: u64,
    /// All below are consumed.
    consumed: u64,
    bytes: [u32; N],
    by: [By; N],
    /// Segments that wait.
    waiting: usize,
}

impl<const N: usize> SendWindow<N> {
    pub(super) const fn new() -> Self {
        Self { next: 0, consumed: 0, bytes: [0; N], by: [By::Nothing; N], waiting: 0 }
    }

    const fn slot(number: u64) -> usize {
        (number % N as u64) as usize
    }

    /// True if a slot is free.
    pub(super) const fn has_room(&self) -> bool {
        self.next - self.consumed < N as u64
    }

    /// The number that the next segment will have.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Adds a segment, whose slot is filled.
    pub(super) fn push(&mut self, bytes: u32) {
        let slot = Self::slot(self.next);
        (self.bytes[slot], self.by[slot]) = (bytes, By::Nothing);
        self.next += 1;
        self.waiting += 1;
    }

    /// The first segment that waits to go, and its bytes.
    pub(super) fn first_waiting(&self) -> Option<(u64, u32)> {
        if self.waiting == 0 {
            return None;
        }
        let number = (self.consumed..self.next).find(|number| self.by[Self::slot(*number)] == By::Nothing)?;
        Some((number, self.bytes[Self::slot(number)]))
    }

    /// A segment goes.
    pub(super) fn send(&mut self, number: u64, by: By) {
        self.by[Self::slot(number)] = by;
        self.waiting -= 1;
    }

    /// True if segments are under way by that.
    pub(super) fn is_under_way(&self, by: By) -> bool {
        (self.consumed..self.next).any(|number| self.by[Self::slot(number)] == by)
    }

    /// The peer has consumed so many. False if that cannot be; less than before is old news.
    pub(super) fn credit(&mut self, consumed: u64) -> bool {
        if consumed > self.next {
            return false;
        }
        for number in self.consumed..consumed {
            // One that was to be sent again had arrived after all.
            let by = &mut self.by[Self::slot(number)];
            self.waiting -= usize::from(*by == By::Nothing);
            *by = By::Tcp;
        }
        self.consumed = self.consumed.max(consumed);
        true
    }

    /// The same by the last bits of the number.
    pub(super) fn credit_word(&mut self, word: u32) -> bool {
        let (consumed, lead) = unfold(self.consumed, word);
        // One that was overtaken by a later one is behind, which is far ahead modulo the word.
        if lead > N as u64 { lead > u64::from(CREDIT >> 1) } else { self.credit(consumed) }
    }

    /// A path has failed, and nothing can arrive by it any more: what the peer has not got waits again; how many segments. None if the peer
    /// says what cannot be.
    pub(super) fn take_back(&mut self, path: u8, have: Have) -> Option<usize> {
        if !self.credit(have.consumed) {
            return None;
        }
        let mut count = 0;
        for number in self.consumed..self.next {
            let slot = Self::slot(number);
            let arrived =
                number < have.consumed || have.arrived & 1 << slot != 0 && number < have.consumed + N as u64;
            if self.by[slot] == By::Path(path) && !arrived {
                self.by[slot] = By::Nothing;
                self.waiting += 1;
                count += 1;
            }
        }
        Some(count)
    }
}

/// The receiver's side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReceiveWindow<const N: usize> {
    /// All below are consumed.
    consumed: u64,
    arrived: u64,
    bytes: [u32; N],
    /// What the sender was told last.
    told: u64,
}

impl<const N: usize> ReceiveWindow<N> {
    pub(super) const fn new() -> Self {
        Self { consumed: 0, arrived: 0, bytes: [0; N], told: 0 }
    }

    /// The slot of the segment that is to be consumed next.
    pub(super) const fn slot(&self) -> usize {
        (self.consumed % N as u64) as usize
    }

    /// A segment has arrived. False if it could not: it is not due, or has arrived before.
    pub(super) fn arrive(&mut self, number: u64, bytes: u32) -> bool {
        let slot = (number % N as u64) as usize;
        let is_due = number >= self.consumed && number < self.consumed + N as u64;
        if !is_due || self.arrived & 1 << slot != 0 {
            return false;
        }
        self.arrived |= 1 << slot;
        self.bytes[slot] = bytes;
        true
    }

    /// The same by the last bits of its number.
    pub(super) fn arrive_word(&mut self, word: u32, bytes: u32) -> bool {
        self.arrive(unfold(self.consumed, word).0, bytes)
    }

    /// The bytes of the segment that is next, once it is there.
    pub(super) fn first(&self) -> Option<u32> {
        (self.arrived & 1 << self.slot() != 0).then(|| self.bytes[self.slot()])
    }

    /// The first segment's slot is free again.
    pub(super) fn consume(&mut self) {
        self.arrived &= !(1 << self.slot());
        self.consumed += 1;
    }

    pub(super) const fn have(&self) -> Have {
        Have { consumed: self.consumed, arrived: self.arrived }
    }

    /// What the sender should be told, if it is time.
    pub(super) const fn credit_due(&self) -> Option<u64> {
        let quarter = if N >= 4 { N as u64 / 4 } else { 1 };
        if self.consumed - self.told >= quarter { Some(self.consumed) } else { None }
    }

    /// The sender is told.
    pub(super) fn tell(&mut self, consumed: u64) {
        self.told = self.told.max(consumed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_find_their_numbers_also_where_they_wrap() {
        for base in [0u64, 5, (1 << 31) - 3, (1 << 31) + 7, (1 << 40) - 1] {
            let mut window = ReceiveWindow::<4> { consumed: base, arrived: 0, bytes: [0; 4], told: base };
            for ahead in [3, 0, 2, 1] {
                let Word::Segment(word) = Word::read(Word::of_segment(base + ahead)) else { panic!() };
                assert!(window.arrive_word(word, ahead as u32));
                assert!(!window.arrive_word(word, 0), "twice");
            }
            assert!(!window.arrive_word(Word::of_segment(base + 4), 0), "too far ahead");
            assert!(base == 0 || !window.arrive_word(Word::of_segment(base.wrapping_sub(1)), 0), "consumed");
            for ahead in 0..4 {
                assert_eq!(window.first(), Some(ahead));
                window.consume();
            }
            assert_eq!((window.first(), window.credit_due()), (None, Some(base + 4)));
            let mut sender = SendWindow::<4> { next: base + 4, consumed: base, ..SendWindow::new() };
            sender.by = [By::Path(0); 4];
            let Word::Credit(word) = Word::read(Word::of_credit(base + 3)) else { panic!() };
            assert!(sender.credit_word(word) && sender.consumed == base + 3);
            let Word::Credit(old) = Word::read(Word::of_credit(base + 1)) else { panic!() };
            assert!(sender.credit_word(old) && sender.consumed == base + 3, "an old one changes nothing");
            let Word::Credit(wrong) = Word::read(Word::of_credit(base + 5)) else { panic!() };
            assert!(!sender.credit_word(wrong), "more than was sent");
        }
    }

    #[test]
    fn what_a_failed_path_has_not_brought_waits_again() {
        let mut window = SendWindow::<8>::new();
        for number in 0..6 {
            window.push(number as u32 + 10);
            window.send(number, By::Path((number % 2) as u8));
        }
        assert_eq!((window.first_waiting(), window.has_room()), (None, true));
        // Of path 0 had 0 been consumed (with 1), 2 is there, and 4 is not.
        let have = Have { consumed: 2, arrived: 1 << 2 };
        assert_eq!(window.take_back(0, have), Some(1));
        assert_eq!(window.first_waiting(), Some((4, 14)));
        assert_eq!(window.take_back(0, have), Some(0), "it waits already");
        window.send(4, By::Tcp);
        assert_eq!(window.take_back(1, Have { consumed: 2, arrived: 0b11_1100 }), Some(0));
        assert_eq!(window.take_back(1, Have { consumed: 7, arrived: 0 }), None, "more than was sent");
    }

    #[test]
    fn what_waits_and_had_arrived_after_all_waits_no_more() {
        let mut window = SendWindow::<4>::new();
        window.push(1);
        window.send(0, By::Path(0));
        window.push(2);
        assert_eq!(window.take_back(0, Have::default()), Some(1));
        assert!(window.credit(1));
        assert_eq!(window.first_waiting(), Some((1, 2)));
    }
}
