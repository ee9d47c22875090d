//! Stream memory operations: streams write a word, or wait until one has a value.

use std::sync::Arc;

use crate::capture::NodeKind;
use crate::error::{Code, Outcome};
use crate::memory::{self, Access};
use crate::stream::Stream;
use crate::{config, raw, time};

/// What is written or waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) address: u64,
    /// 4 or 8.
    pub(crate) width: u64,
    pub(crate) value: u64,
}

/// An operation of a stream on a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Write(Word),
    Wait(Word, Condition),
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// Cyclic: the difference is not negative.
    AtLeast,
    Equal,
    And,
    Nor,
}

impl Word {
    fn check(&self) -> Outcome {
        if !self.address.is_multiple_of(self.width) {
            return Err(Code::INVALID_VALUE);
        }
        memory::check(self.address, self.width, Access::ReadWrite)?.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn meets(&self, condition: Condition) -> bool {
        let now = raw::load(self.address, self.width);
        let mask = if self.width == 4 { 0xFFFF_FFFF } else { u64::MAX };
        match condition {
            Condition::AtLeast if self.width == 4 => (now as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            Condition::AtLeast => now.wrapping_sub(self.value) as i64 >= 0,
            Condition::Equal => now == self.value & mask,
            Condition::And => now & self.value & mask != 0,
            Condition::Nor => !(now | self.value) & mask != 0,
        }
    }
}

impl Operation {
    pub(crate) fn write(word: Word, flags: u32) -> Outcome<Self> {
        if flags > 1 { Err(Code::INVALID_VALUE) } else { Ok(Self::Write(word)) }
    }

    pub(crate) fn wait(word: Word, flags: u32) -> Outcome<Self> {
        let condition = match flags {
            0 => Condition::AtLeast,
            1 => Condition::Equal,
            2 => Condition::And,
            3 => Condition::Nor,
            // Flushing remote writes: the device's attribute says that it can not.
            _ if flags >> 30 == 1 => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_VALUE),
        };
        Ok(Self::Wait(word, condition))
    }

    fn run(&self, stream_has_failed: impl Fn() -> bool) -> Outcome {
        match self {
            Self::Write(word) => {
                word.check().map_err(|_| Code::ILLEGAL_ADDRESS)?;
                raw::store(word.address, word.width, word.value);
            }
            Self::Wait(word, condition) => {
                let mut rounds = 0u32;
                loop {
                    word.check().map_err(|_| Code::ILLEGAL_ADDRESS)?;
                    if word.meets(*condition) || stream_has_failed() {
                        break;
                    }
                    rounds += 1;
                    time::pause_us(if rounds < 100 { 5 } else { 50 });
                }
            }
            Self::Nothing => {}
        }
        Ok(())
    }
}

/// Queues operations that happen in order, as one.
pub(crate) fn submit(stream: &Arc<Stream>, operations: Vec<Operation>) -> Outcome {
    if !config::get().memops {
        return Err(Code::NOT_SUPPORTED);
    }
    stream.context.check()?;
    for operation in &operations {
        match operation {
            Operation::Write(word) | Operation::Wait(word, _) => word.check()?,
            Operation::Nothing => {}
        }
    }
    let context = Arc::clone(&stream.context);
    let work = move || operations.iter().try_for_each(|operation| operation.run(|| context.check().is_err()));
    stream.submit(NodeKind::MemoryOperation, Arc::new(work)).map(drop)
}
