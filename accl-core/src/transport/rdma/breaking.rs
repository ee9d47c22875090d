//! Queue pairs that break, for tests of what becomes of paths then: the setting IB_BREAK_EVERY.

use crate::config::subsystem;
use crate::driver::verbs::{Connection, QueuePair, Write};
use crate::error::Result;
use crate::os::clock;
use crate::telemetry::log;

/// A queue pair that is put into error at a random write.
#[derive(Debug)]
pub(super) struct Breaking {
    pair: Box<dyn QueuePair>,
    /// Writes until then.
    left: u64,
}

impl Breaking {
    /// Breaks `pair` after about `every` writes, and not before the packet that its path is tried with.
    pub(super) fn new(pair: Box<dyn QueuePair>, every: u32) -> Self {
        // The clock's last bits serve as well as any random number.
        let random = clock::wall_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Self { pair, left: 3 + random % (2 * u64::from(every)) }
    }
}

impl QueuePair for Breaking {
    fn number(&self) -> u32 {
        self.pair.number()
    }

    fn inline_bytes(&self) -> u32 {
        self.pair.inline_bytes()
    }

    fn connect(&mut self, with: &Connection) -> Result<()> {
        self.pair.connect(with)
    }

    fn write(&mut self, write: &Write) -> Result<()> {
        self.pair.write(write)?;
        self.left = self.left.saturating_sub(1);
        if self.left == 1 {
            let number = self.pair.number();
            log::info(subsystem::NET, format_args!("IB_BREAK_EVERY: queue pair {number} is put into error"));
            // Behind the write, which may arrive or not.
            self.pair.fail()?;
        }
        Ok(())
    }

    fn expect(&mut self, count: u32) -> Result<()> {
        self.pair.expect(count)
    }

    fn fail(&mut self) -> Result<()> {
        self.pair.fail()
    }
}
