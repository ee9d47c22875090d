//! Element-wise reduction: many rows of numbers become one.
//!
//! A [`Reduction`] is a type, an operator and a number of ranks, with the loops that suit this CPU. It takes
//! [`Source`]s in either of two [`Form`]s and makes a row in either: *elements*, as users pass them, and
//! *accumulators*, the wider partial results that one rank sends to the next. What the numbers are is told in
//! `docs/numbers.md`; the short of it: sources are folded in the order given, in the accumulator's type, and rounded
//! once, when elements are made.
//!
//! | types | operator | accumulator |
//! | --- | --- | --- |
//! | float16, bfloat16, both float8 | sum, prod, avg, premulsum | `f32` |
//! | integers of 8 and 32 bits | avg | `i64` |
//! | integers of 64 bits | avg | `i128` |
//! | all others | | the type itself |
//!
//! Layers: `format` converts numbers, `division` divides integers, `kernel` treats one element, `body` has the loops, this file cuts the work
//! into blocks that stay in the first-level cache, `x86` has loops written by hand where the compiler's were slow.
//!
//! # Safety
//!
//! Unsafe is [`Reduction::reduce`], which takes raw pointers because rows lie in memory of other processes and of users,
//! and the calls of the tables' functions, whose conditions it establishes.

#![allow(unsafe_code)]

mod body;
mod division;
mod format;
mod kernel;
#[cfg(test)]
mod oracle;
mod path;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::mem::MaybeUninit;
use std::ptr;

use crate::types::{DataType, ReduceOp, Scalar};
use body::Table;
use kernel::{Avg, Extreme, Float, Integer, Kernel, Mean, PreMulSum, Prod, Sum};
pub use path::Path;
pub use stream::copy_streaming;

/// In which form elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As users pass them.
    Element,
    /// As partial results: wider for some types, see [`Reduction::accumulator_bytes`].
    Accumulator,
}

/// One row of input.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The first byte, of any alignment.
    pub start: *const u8,
    /// What lies there.
    pub form: Form,
    /// The factor of a [`ReduceOp::PreMulSum`] for [`Form::Element`]; ignored otherwise.
    pub scale: Option<Scalar>,
}

/// One reduction: element type, operator, and how many ranks take part (the divisor of an average).
#[derive(Clone, Copy)]
pub struct Reduction {
    dtype: DataType,
    op: ReduceOp,
    ranks: usize,
    path: Path,
    table: &'static Table,
}

/// Bytes of accumulators per block when they cannot lie in the destination: few enough that they and the rows' shares stay
/// in a first-level cache, many enough that a call per source and block costs nothing.
const BLOCK_BYTES: usize = 4096;

/// The same when accumulators do lie in the destination.
const DIRECT_BYTES: usize = 8192;

/// More sources than this are folded block by block, since each one is a stream that the CPU must prefetch.
const STREAMS: usize = 16;

#[repr(align(64))]
struct Block(#[expect(dead_code, reason = "reached by pointer")] [u8; BLOCK_BYTES]);

impl Reduction {
    /// The reduction of `dtype` with `op` on the fastest path of this CPU. `ranks` divides an average, and has no
    /// other effect.
    pub fn new(dtype: DataType, op: ReduceOp, ranks: usize) -> Self {
        let path = Path::best();
        Self { dtype, op, ranks, path, table: table(dtype, op, path) }
    }

    /// The same on a given path, for tests and benches. A path that this CPU lacks is replaced by the portable one.
    #[doc(hidden)]
    pub fn with_path(dtype: DataType, op: ReduceOp, ranks: usize, path: Path) -> Self {
        let path = if Path::available().contains(&path) { path } else { Path::Portable };
        Self { dtype, op, ranks, path, table: table(dtype, op, path) }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// How they are combined.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// What divides an average.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Bytes of one element.
    pub fn element_bytes(&self) -> usize {
        self.table.element_bytes
    }

    /// Bytes of one accumulator.
    pub fn accumulator_bytes(&self) -> usize {
        self.table.accumulator_bytes
    }

    /// `destination[i]` = the fold of all `sources[..][i]` in order. With [`Form::Element`] it is finished (an average
    /// is divided) and rounded; with [`Form::Accumulator`] it is not, and may be a source of another call.
    ///
    /// A single source that needs no conversion, factor or division is copied, bit by bit. Otherwise a NaN in the
    /// result is always the format's canonical one. No sources leave the destination as it is.
    ///
    /// # Safety
    ///
    /// Each source must be readable for `count_elems` elements or accumulators, as its form says, and the destination
    /// writable likewise; nobody else may write the former or touch the latter meanwhile. The destination may be
    /// exactly one (or several) of the sources, with the same start and the same form; otherwise it must not overlap any.
    pub unsafe fn reduce(&self, sources: &[Source], dst: *mut u8, dst_form: Form, count_elems: usize) {
        if count_elems == 0 {
            return;
        }
        // SAFETY: every function called has the conditions of this one, and the path was tested for by `with_path`.
        unsafe {
            match sources {
                [] => {}
                [source] if self.is_copy(source.form, source.scale.is_some(), dst_form) => {
                    ptr::copy(source.start, dst, count_elems * self.bytes(dst_form));
                }
                [left, right] if self.is_plain(sources, dst_form) => {
                    self.pair(left.start, right.start, dst, count_elems);
                }
                _ => match self.table.streams {
                    Some(streams) if sources.len() <= STREAMS && self.is_plain(sources, dst_form) => {
                        streams(dst, sources, count_elems, self.ranks);
                    }
                    _ => self.by_blocks(sources, dst, dst_form, count_elems),
                },
            }
        }
    }

    fn bytes(&self, form: Form) -> usize {
        match form {
            Form::Element => self.table.element_bytes,
            Form::Accumulator => self.table.accumulator_bytes,
        }
    }

    /// True where one source, of this form and with a factor or without, is the result.
    pub fn is_copy(&self, form: Form, has_scale: bool, dst_form: Form) -> bool {
        let same_bits = self.table.same || form == dst_form;
        let scaled = self.table.scales && form == Form::Element && has_scale;
        let divided = self.op == ReduceOp::Avg && dst_form == Form::Element && self.ranks > 1;
        // An element of an average that stays one was never widened, so a division by one is no change either.
        same_bits && !scaled && !divided
    }

    /// True where all are elements, without factors, and the result is finished.
    fn is_plain(&self, sources: &[Source], dst_form: Form) -> bool {
        let elements = |form| form == Form::Element || self.table.same;
        let finished = dst_form == Form::Element || (self.table.same && self.op != ReduceOp::Avg);
        finished
            && sources.iter().all(|source| {
                elements(source.form)
                    && !(self.table.scales && source.form == Form::Element && source.scale.is_some())
            })
    }

    /// Two plain sources.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`].
    unsafe fn pair(&self, left: *const u8, right: *const u8, dst: *mut u8, count: usize) {
        let in_left = ptr::eq(left, dst);
        let in_right = ptr::eq(right, dst);
        // SAFETY: the conditions of `reduce`. A destination equal to one source goes where that source is not named
        // again; operands may be swapped there, as every operator gives the same bits either way. With both equal to
        // the destination, `streams` or blocks read a group before they write it.
        unsafe {
            match (in_left, in_right) {
                (false, false) => (self.table.pair)(dst, left, right, count, self.ranks),
                (true, false) => (self.table.pair_in_place)(dst, right, count, self.ranks),
                (false, true) => (self.table.pair_in_place)(dst, left, count, self.ranks),
                (true, true) => {
                    let source = Source { start: left, form: Form::Element, scale: None };
                    self.in_stack(&[source, source], dst, Form::Element, count);
                }
            }
        }
    }

    /// The general case, block by block, so that accumulators stay in the first-level cache.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`].
    unsafe fn by_blocks(&self, sources: &[Source], dst: *mut u8, dst_form: Form, count: usize) {
        let fits = dst_form == Form::Accumulator || self.table.same;
        let aliased = |source: &Source| ptr::eq(source.start, dst);
        // SAFETY: the conditions of `reduce`; the destination is apart from all sources on the direct way, as only the
        // first may be equal to it, and is then not read again.
        unsafe {
            match sources {
                [first, rest @ ..] if fits && !rest.iter().any(aliased) => {
                    let in_place = aliased(first);
                    if in_place && self.table.scales && first.scale.is_some() {
                        self.in_stack(sources, dst, dst_form, count);
                    } else {
                        self.in_destination(sources, in_place, dst, dst_form, count);
                    }
                }
                _ => self.in_stack(sources, dst, dst_form, count),
            }
        }
    }

    /// Accumulates in the destination, which holds the first source already if `in_place`.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`]; moreover, the destination has room for accumulators and is none of the other sources.
    unsafe fn in_destination(
        &self,
        sources: &[Source],
        in_place: bool,
        dst: *mut u8,
        dst_form: Form,
        count: usize,
    ) {
        let table = self.table;
        let step = DIRECT_BYTES / table.accumulator_bytes;
        let mut at = 0;
        while at < count {
            let n = step.min(count - at);
            // SAFETY: `at + n <= count`, within which the caller vouches for all rows and their being apart.
            unsafe {
                let memory = dst.add(at * table.accumulator_bytes);
                self.accumulate(sources, at, memory, n, in_place);
                if dst_form == Form::Element {
                    (table.finish_in_place)(memory, n, self.ranks);
                } else {
                    (table.settle)(memory, n, self.ranks);
                }
            }
            at += n;
        }
    }

    /// Accumulates in a block on the stack.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`].
    unsafe fn in_stack(&self, sources: &[Source], dst: *mut u8, dst_form: Form, count: usize) {
        let table = self.table;
        // Uninitialised, or a call for one element would spend most of its time on zeros.
        let mut block = MaybeUninit::<Block>::uninit();
        let memory = block.as_mut_ptr().cast::<u8>();
        let step = BLOCK_BYTES / table.accumulator_bytes;
        let mut at = 0;
        while at < count {
            let n = step.min(count - at);
            // SAFETY: `at + n <= count`, within which the caller vouches for all rows; the block holds `step`
            // accumulators and is apart from everything. All sources of these `n` are read before the destination is
            // written, so that it may be one of them.
            unsafe {
                self.accumulate(sources, at, memory, n, false);
                let out = dst.add(at * self.bytes(dst_form));
                if dst_form == Form::Element {
                    (table.finish)(out, memory, n, self.ranks);
                } else {
                    (table.settle)(memory, n, self.ranks);
                    ptr::copy_nonoverlapping(memory, out, n * table.accumulator_bytes);
                }
            }
            at += n;
        }
    }

    /// Folds `count` elements of each source from element `at` on into `memory`, whose old values count as the first
    /// source if `in_place`.
    ///
    /// # Safety
    ///
    /// Rows readable up to `at + count`, `memory` apart from all that are read.
    unsafe fn accumulate(
        &self,
        sources: &[Source],
        at: usize,
        memory: *mut u8,
        count: usize,
        in_place: bool,
    ) {
        let table = self.table;
        for (index, source) in sources.iter().enumerate() {
            // SAFETY: the caller's promise, handed on.
            unsafe {
                let start = source.start.add(at * self.bytes(source.form));
                match (index, source.form) {
                    (0, _) if in_place => {}
                    (0, Form::Element) => (table.load)(memory, start, count, source.scale),
                    (_, Form::Element) => (table.fold)(memory, start, count, source.scale),
                    (0, Form::Accumulator) => {
                        ptr::copy_nonoverlapping(start, memory, count * table.accumulator_bytes);
                    }
                    (_, Form::Accumulator) => (table.fold_memory)(memory, start, count),
                }
            }
        }
    }
}

impl PartialEq for Reduction {
    fn eq(&self, other: &Self) -> bool {
        (self.dtype, self.op, self.ranks, self.path) == (other.dtype, other.op, other.ranks, other.path)
    }
}

impl Eq for Reduction {}

impl std::fmt::Debug for Reduction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reduction")
            .field("dtype", &self.dtype)
            .field("op", &self.op)
            .field("ranks", &self.ranks)
            .field("path", &self.path)
            .finish()
    }
}

macro_rules! integer_table {
    ($int:ty, $op:expr, $path:expr) => {
        match $op {
            ReduceOp::Sum => on::<Integer<$int, Sum>>($path),
            ReduceOp::Prod => on::<Integer<$int, Prod>>($path),
            ReduceOp::Max => on::<Extreme<$int, true>>($path),
            ReduceOp::Min => on::<Extreme<$int, false>>($path),
            ReduceOp::Avg => on::<Mean<$int>>($path),
            ReduceOp::PreMulSum => on::<Integer<$int, PreMulSum>>($path),
        }
    };
}

macro_rules! float_table {
    ($format:ident, $op:expr, $path:expr) => {
        match $op {
            ReduceOp::Sum => on::<Float<kernel::$format, Sum>>($path),
            ReduceOp::Prod => on::<Float<kernel::$format, Prod>>($path),
            ReduceOp::Max => on::<Extreme<kernel::$format, true>>($path),
            ReduceOp::Min => on::<Extreme<kernel::$format, false>>($path),
            ReduceOp::Avg => on::<Float<kernel::$format, Avg>>($path),
            ReduceOp::PreMulSum => on::<Float<kernel::$format, PreMulSum>>($path),
        }
    };
}

fn table(dtype: DataType, op: ReduceOp, path: Path) -> &'static Table {
    #[cfg(target_arch = "x86_64")]
    if let Some(table) = x86::table(dtype, op, path) {
        return table;
    }
    match dtype {
        DataType::Int8 => integer_table!(i8, op, path),
        DataType::Uint8 => integer_table!(u8, op, path),
        DataType::Int32 => integer_table!(i32, op, path),
        DataType::Uint32 => integer_table!(u32, op, path),
        DataType::Int64 => integer_table!(i64, op, path),
        DataType::Uint64 => integer_table!(u64, op, path),
        DataType::Float16 => float_table!(Float16, op, path),
        DataType::Float32 => float_table!(Float32, op, path),
        DataType::Float64 => float_table!(Float64, op, path),
        DataType::Bfloat16 => float_table!(Bfloat16, op, path),
        DataType::Float8e4m3 => float_table!(Float8e4m3, op, path),
        DataType::Float8e5m2 => float_table!(Float8e5m2, op, path),
    }
}

/// The table of one kernel on one path.
fn on<K: Kernel>(path: Path) -> &'static Table {
    match path {
        Path::Portable => &body::portable::Tables::<K>::TABLE,
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => &body::avx2::Tables::<K>::TABLE,
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 | Path::Avx512Fp16 => &body::avx512::Tables::<K>::TABLE,
    }
}
