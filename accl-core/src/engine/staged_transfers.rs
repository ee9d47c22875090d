//! Sends and receives of a launch in device memory: what is sent is copied to the host, goes between ranks from there, and what was
//! received is copied to the device.

use super::Poll;
use super::call::Transfer;
use super::drive::Job;
use super::endpoint::Endpoint;
use super::staging::Staging;
use super::transfer::TransferOp;
use crate::driver::Driver;
use crate::error::Result;
use crate::memory::Scratch;

/// How far the sends and receives are.
#[derive(Debug)]
enum Stage {
    /// What is sent comes to the host.
    Fetch,
    /// It is on its way between ranks.
    Run,
    /// What was received goes to the device.
    Return,
}

/// The sends and receives of a launch, with host memory in place of their buffers.
#[derive(Debug)]
pub(super) struct StagedTransfers {
    staged: Vec<Transfer>,
    _memory: Scratch,
    stage: Stage,
}

impl StagedTransfers {
    /// Begins with what a launch sends, receives, and copies.
    pub(super) fn begin(job: &Job<'_>, driver: &dyn Driver, staging: &Staging) -> Result<Self> {
        let stream = staging.input.stream;
        // What is received may be sent on by nobody in the same launch, so that the order of these does not matter.
        for copy in job.copies.iter().filter(|copy| copy.from != copy.to && copy.bytes > 0) {
            driver.copy(copy.to.address(), copy.from.address(), copy.bytes, stream)?;
        }
        let mut memory = Scratch::default();
        let start = memory.ensure(job.transfers.iter().map(|transfer| transfer.bytes).sum())?;
        let mut at = 0;
        let mut staged = Vec::with_capacity(job.transfers.len());
        for transfer in job.transfers {
            let buffer = start.byte_add(at);
            at += transfer.bytes;
            if transfer.send && transfer.bytes > 0 {
                driver.copy(buffer.address(), transfer.buffer.address(), transfer.bytes, stream)?;
            }
            staged.push(Transfer { buffer, ..*transfer });
        }
        driver.record(staging.transfers, stream)?;
        Ok(Self { staged, _memory: memory, stage: Stage::Fetch })
    }

    /// True while something is on its way between device and host.
    pub(super) fn awaits_device(&self) -> bool {
        !matches!(self.stage, Stage::Run)
    }

    /// Makes what progress it can; `running` is what goes between ranks.
    pub(super) fn poll(
        &mut self,
        job: &Job<'_>,
        running: &mut Option<TransferOp>,
        endpoint: &mut Endpoint,
        driver: &dyn Driver,
        staging: &Staging,
    ) -> Result<Poll> {
        match self.stage {
            Stage::Fetch => {
                if !driver.has_passed(staging.transfers)? {
                    return Ok(Poll::Blocked);
                }
                if !self.staged.is_empty() {
                    *running = Some(TransferOp::begin(&self.staged, endpoint)?);
                }
                self.stage = Stage::Run;
                Ok(Poll::Advanced)
            }
            Stage::Run => {
                if let Some(op) = running {
                    match op.poll(endpoint)? {
                        Poll::Done => *running = None,
                        polled => return Ok(polled),
                    }
                }
                self.give_back(job, driver, staging)?;
                self.stage = Stage::Return;
                Ok(Poll::Advanced)
            }
            Stage::Return => {
                if !driver.has_passed(staging.transfers)? {
                    return Ok(Poll::Blocked);
                }
                Ok(Poll::Done)
            }
        }
    }

    /// Has what was received copied to the device.
    fn give_back(&self, job: &Job<'_>, driver: &dyn Driver, staging: &Staging) -> Result<()> {
        let received = |(_, whole): &(&Transfer, &Transfer)| !whole.send && whole.bytes > 0;
        for (host, whole) in self.staged.iter().zip(job.transfers).filter(received) {
            let (to, from) = (whole.buffer.address(), host.buffer.address());
            driver.copy(to, from, whole.bytes, staging.output.stream)?;
        }
        driver.record(staging.transfers, staging.output.stream)
    }
}
