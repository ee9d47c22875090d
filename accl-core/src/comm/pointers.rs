//! What `NCCL_CHECK_POINTERS` asks for: the buffers of each call are memory of the communicator's device, or such as every device
//! reaches. Ordinary memory of the host is refused too, though calls could do with it: the driver does not know it, and so it
//! can be anything.

use super::Communicator;
use super::group::Work;
use crate::driver::Place;
use crate::engine::{Accelerator, Call};
use crate::error::{Error, Result};
use crate::memory::UserPointer;

impl Communicator {
    /// True if the buffers of calls are to be checked.
    #[inline]
    pub(super) fn checks_pointers(&self) -> bool {
        self.shared.config.checks_pointers
    }

    /// An error (InvalidArgument) if a buffer of the call lies where it must not. In host memory nothing is known of that.
    #[cold]
    pub(super) fn check_pointers(&self, work: &Work) -> Result<()> {
        let Some(device) = &self.shared.device else { return Ok(()) };
        match work {
            Work::Collective(call) => self.check_buffers(device, call),
            Work::OneSided(_) => Ok(()),
            Work::Transfer(transfer) if transfer.bytes == 0 => Ok(()),
            Work::Transfer(transfer) if transfer.send => check(device, "Send: sendbuff", transfer.buffer),
            Work::Transfer(transfer) => check(device, "Recv: recvbuff", transfer.buffer),
        }
    }

    fn check_buffers(&self, device: &Accelerator, call: &Call) -> Result<()> {
        let (ranks, rank) = (self.ranks(), self.rank());
        let buffers = [
            ("sendbuff", call.input_elems(ranks, rank), call.send),
            ("recvbuff", call.output_elems(ranks, rank), call.recv),
        ];
        let mut needed = buffers.into_iter().filter(|(_, elems, _)| *elems > 0);
        needed.try_for_each(|(name, _, buffer)| check(device, format_args!("{}: {name}", call.kind), buffer))
    }
}

fn check(device: &Accelerator, what: impl std::fmt::Display, buffer: UserPointer) -> Result<()> {
    let (address, own) = (buffer.address(), device.context.ordinal);
    let there = match device.driver.locate(address)? {
        Place::Pinned | Place::Managed => return Ok(()),
        Place::Device(ordinal) if ordinal == own => return Ok(()),
        Place::Device(ordinal) => format!("lies in device {ordinal}"),
        Place::Unknown => {
            "is memory that the device's driver does not know: ordinary memory, or freed".into()
        }
    };
    Err(Error::argument(format!(
        "{what} {address:#x} {there}; need memory of the communicator's device {own}, or pinned or managed memory"
    )))
}
