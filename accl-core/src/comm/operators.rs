//! Operators that users make.

use super::{Communicator, Operator, ScalarSource};
use crate::error::{Error, Result};
use crate::sync::prim::{AtomicI32, Ordering};
use crate::types::{DataType, ReduceOp};

/// The first value that is not built in.
const FIRST: i32 = 5;
/// Values of one communicator are equal modulo this, and values of another one are not, so that an operator of
/// another communicator is noticed.
const STRIDE: i32 = 4096;
const MOST: usize = 500_000;

/// The operators of one communicator. A value is 5 + salt + 4096 · index.
#[derive(Debug)]
pub(super) struct Operators {
    salt: i32,
    made: Vec<Option<(DataType, ScalarSource)>>,
}

impl Operators {
    pub(super) fn new() -> Self {
        static NEXT: AtomicI32 = AtomicI32::new(0);
        Self { salt: NEXT.fetch_add(1, Ordering::Relaxed).rem_euclid(STRIDE), made: Vec::new() }
    }

    fn index(&self, value: i32) -> Option<usize> {
        let offset =
            value.checked_sub(FIRST + self.salt).filter(|offset| *offset >= 0 && offset % STRIDE == 0)?;
        usize::try_from(offset / STRIDE)
            .ok()
            .filter(|index| self.made.get(*index).is_some_and(Option::is_some))
    }

    fn insert(&mut self, made: (DataType, ScalarSource)) -> Result<i32> {
        let free = self.made.iter().position(Option::is_none).unwrap_or(self.made.len());
        if free >= MOST {
            return Err(Error::usage(format!("{MOST} operators of one communicator exist; destroy some")));
        }
        if free == self.made.len() {
            self.made.push(None);
        }
        self.made[free] = Some(made);
        Ok(FIRST + self.salt + STRIDE * free as i32)
    }
}

impl Communicator {
    /// What an operator's value means.
    #[inline]
    pub fn operator(&self, value: i32) -> Result<Operator> {
        if let Some(op) = ReduceOp::built_in(value) {
            return Ok(Operator::plain(op));
        }
        let operators = self.shared.operators.lock();
        let made = operators.index(value).and_then(|index| operators.made[index]);
        made.map(|scale| Operator { op: ReduceOp::PreMulSum, scale: Some(scale) })
            .ok_or_else(|| unknown(value))
    }

    /// Makes a pre-multiplied sum for one element type; the value is good for this communicator only.
    pub fn create_pre_mul_sum(&self, dtype: DataType, scalar: ScalarSource) -> Result<i32> {
        self.check_ready()?;
        if let ScalarSource::InMemory(place) = scalar
            && place.is_null()
        {
            return Err(Error::argument(
                "the scalar of a pre-multiplied sum is at NULL; pass the address of one element",
            ));
        }
        self.shared.operators.lock().insert((dtype, scalar))
    }

    /// Forgets an operator; calls that were made with it are not affected.
    pub fn destroy_operator(&self, value: i32) -> Result<()> {
        let mut operators = self.shared.operators.lock();
        let index = operators.index(value).ok_or_else(|| unknown(value))?;
        operators.made[index] = None;
        Ok(())
    }
}

fn unknown(value: i32) -> Error {
    Error::argument(format!(
        "{value} is not an operator of this communicator that could be used here; there are 0 (sum) to 4 (avg), and \
         those that ncclRedOpCreatePreMulSum made for it and that have not been destroyed"
    ))
}
