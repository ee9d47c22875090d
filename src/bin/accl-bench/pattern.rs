//! Data that can be checked: inputs that every rank can predict, and the one right answer to each reduction.
//!
//! Inputs are such that every partial result, in any order and grouping, is a value of the type: integers wrap,
//! and floating types get small integers whose absolute values together stay below the type's exact limit (or
//! powers of two, for products). So a right library has one right answer, and the comparison is bitwise. Only an
//! average of floats may differ by its division.
//!
//! The values repeat after [`TILE_ELEMS`] elements. That number is a prime, so that no part, chunk or segment is
//! a multiple of it and misplaced data is seen, and a check of large buffers runs at the speed of a comparison.

use crate::datatype::{DataType, Operator};

/// Elements until the values repeat.
pub(crate) const TILE_ELEMS: usize = 16381;

/// A good mix of 64 bits (the finalizer of splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What the values depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) kind: DataType,
    /// None: the data is only moved, and every bit pattern will do.
    pub(crate) op: Option<Operator>,
    pub(crate) ranks: usize,
    /// Changes from case to case, so that data left over from the one before is seen.
    pub(crate) seed: u64,
}

impl Pattern {
    /// The factor that a rank gives to MulSum.
    pub(crate) fn factor(rank: usize) -> i64 {
        1 + (rank % 2) as i64
    }

    /// The element `index` of the input of `rank`, as bits.
    pub(crate) fn input(&self, rank: usize, index: usize) -> u64 {
        let shared = mix(self.seed ^ index as u64);
        let own = mix(shared ^ (rank as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let Some(op) = self.op else { return own & self.kind.mask() };
        let integral = self.kind.float().is_none();
        match op {
            Operator::Avg => self.kind.bits_of(self.small(rank, shared, own, self.kind.exact_limit()).abs()),
            // Wrapping sums and products are the same in every order; extremes are so in any type.
            _ if integral => own & self.kind.mask(),
            Operator::Prod => self.power_of_two(rank, shared, own),
            Operator::MulSum => self.kind.bits_of(self.small(rank, shared, own, self.kind.exact_limit() / 2)),
            Operator::Sum => self.kind.bits_of(self.small(rank, shared, own, self.kind.exact_limit())),
            Operator::Min | Operator::Max => {
                let limit = self.kind.exact_limit();
                self.kind.bits_of(own as i64 % (limit + 1))
            }
        }
    }

    /// An integer of either sign; over all ranks the absolute values add up to at most `limit`.
    fn small(&self, rank: usize, shared: u64, own: u64, limit: i64) -> i64 {
        let ranks = self.ranks as i64;
        let size = if limit >= ranks {
            (own >> 1) as i64 % (limit / ranks + 1)
        } else {
            // More ranks than that: at each index some of them, in turn, have a 1.
            i64::from(((shared >> 8) as i64 % ranks + rank as i64) % ranks < limit)
        };
        if own >> 63 == 1 { -size } else { size }
    }

    /// ±1, and for at most four ranks ±2 or ±1/2, so that products stay within 2^-4 and 2^4.
    fn power_of_two(&self, rank: usize, shared: u64, own: u64) -> u64 {
        let ranks = self.ranks as u64;
        let turn = ((shared >> 8) % ranks + rank as u64) % ranks < 4;
        let size = match (turn, own & 1) {
            (false, _) => 1.0,
            (true, 0) => 2.0,
            (true, _) => 0.5,
        };
        let value = if own >> 63 == 1 { -size } else { size };
        self.kind.float().map_or(0, |format| format.encode(value))
    }

    /// The element `index` of the reduction of all inputs, as bits.
    pub(crate) fn reduced(&self, index: usize) -> u64 {
        let inputs = (0..self.ranks).map(|rank| self.input(rank, index));
        let Some(op) = self.op else { return 0 };
        match self.kind.float() {
            Some(format) => {
                let mut values = inputs.map(|bits| format.decode(bits));
                let result = match op {
                    Operator::Sum => values.sum(),
                    Operator::Prod => values.product(),
                    Operator::Min => values.fold(f64::INFINITY, f64::min),
                    Operator::Max => values.fold(f64::NEG_INFINITY, f64::max),
                    Operator::Avg => values.sum::<f64>() / self.ranks as f64,
                    Operator::MulSum => (0..self.ranks)
                        .map(|rank| Self::factor(rank) as f64)
                        .zip(&mut values)
                        .map(|(f, v)| f * v)
                        .sum(),
                };
                // An empty sum of floats is -0.0 in this language; nobody adds to that.
                format.encode(if result == 0.0 { 0.0 } else { result })
            }
            None => self.reduced_integers(op, inputs),
        }
    }

    fn reduced_integers(&self, op: Operator, inputs: impl Iterator<Item = u64>) -> u64 {
        let signed = self.kind.signed();
        let least = |left: u64, right: u64| {
            let smaller = if signed {
                self.kind.sign_extend(left) < self.kind.sign_extend(right)
            } else {
                left < right
            };
            if smaller { (left, right) } else { (right, left) }
        };
        let result = match op {
            Operator::Sum => inputs.fold(0, u64::wrapping_add),
            Operator::Prod => inputs.fold(1, u64::wrapping_mul),
            Operator::Min => inputs.reduce(|left, right| least(left, right).0).unwrap_or(0),
            Operator::Max => inputs.reduce(|left, right| least(left, right).1).unwrap_or(0),
            // Inputs of averages are not negative and their sum fits.
            Operator::Avg => inputs.fold(0, u64::wrapping_add) / self.ranks as u64,
            Operator::MulSum => inputs.enumerate().fold(0, |sum: u64, (rank, value)| {
                sum.wrapping_add(value.wrapping_mul(Self::factor(rank) as u64))
            }),
        };
        result & self.kind.mask()
    }

    /// Whether a result may be this far from the predicted one, in units of the last place.
    pub(crate) fn tolerance_ulps(&self) -> u64 {
        if self.op == Some(Operator::Avg) && self.kind.float().is_some() { 2 } else { 0 }
    }
}

/// The first [`TILE_ELEMS`] elements of a pattern, in memory: the rest is this again and again.
#[derive(Debug)]
pub(crate) struct Tile {
    kind: DataType,
    bytes: Vec<u8>,
}

impl Tile {
    /// `count_elems` is how far the pattern will be used at most.
    pub(crate) fn new(kind: DataType, count_elems: usize, element: impl Fn(usize) -> u64) -> Self {
        let mut bytes = Vec::with_capacity(count_elems.min(TILE_ELEMS) * kind.bytes());
        for index in 0..count_elems.min(TILE_ELEMS) {
            bytes.extend_from_slice(&element(index).to_le_bytes()[..kind.bytes()]);
        }
        Self { kind, bytes }
    }

    /// Calls `use_piece(offset_bytes, piece)` for the pieces that make up `count_elems` elements from `start_elem`.
    fn pieces(&self, start_elem: usize, count_elems: usize, mut use_piece: impl FnMut(usize, &[u8])) {
        let size = self.kind.bytes();
        let mut done = 0;
        while done < count_elems {
            let at = (start_elem + done) % TILE_ELEMS;
            let take = (count_elems - done).min(TILE_ELEMS - at);
            use_piece(done * size, &self.bytes[at * size..(at + take) * size]);
            done += take;
        }
    }

    /// Writes the pattern, from its element `start_elem` on, over all of `target`.
    pub(crate) fn fill(&self, target: &mut [u8], start_elem: usize) {
        self.pieces(start_elem, target.len() / self.kind.bytes(), |offset, piece| {
            target[offset..offset + piece.len()].copy_from_slice(piece);
        });
    }

    /// Compares; calls `wrong(index, expected, got)` for each element that is too far off.
    pub(crate) fn check(
        &self,
        data: &[u8],
        start_elem: usize,
        tolerance_ulps: u64,
        mut wrong: impl FnMut(usize, u64, u64),
    ) {
        let size = self.kind.bytes();
        self.pieces(start_elem, data.len() / size, |offset, piece| {
            let got = &data[offset..offset + piece.len()];
            if got == piece {
                return;
            }
            for (index, (expected, got)) in piece.chunks_exact(size).zip(got.chunks_exact(size)).enumerate() {
                let (expected, got) = (bits(expected), bits(got));
                if expected != got && (tolerance_ulps == 0 || self.kind.ulps(expected, got) > tolerance_ulps)
                {
                    wrong(offset / size + index, expected, got);
                }
            }
        });
    }
}

/// The little-endian number in up to eight bytes.
fn bits(element: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
