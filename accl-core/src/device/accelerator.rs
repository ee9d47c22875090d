//! Memory of an accelerator, moved and reduced by its driver, on a stream of our own.
//!
//! Work is only queued here; [`Device::is_through`] says when it is done. What a driver refuses is kept, and told there.
//!
//! # Safety
//! Addresses of a device are handed to its driver, and never followed here.
#![allow(unsafe_code)]

use super::kernels::{self, Kernels};
use super::{Device, Operand, UserPointer};
use crate::driver::{Driver, Event, Exported, Stream};
use crate::encryption::Socket;
use crate::error::{Error, Result};
use crate::reduce::{Form, Reduction};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// One stream of one device. The device's context must be the thread's in every call.
#[derive(Debug)]
pub struct Accelerator {
    driver: &'static dyn Driver,
    stream: Stream,
    /// Behind what was queued when it was last recorded.
    event: Event,
    /// What reduces, or why nothing does.
    kernels: Result<Arc<Kernels>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Something was queued behind the event.
    queued: bool,
    /// The event has not passed.
    pending: bool,
    failure: Option<Error>,
}

impl Accelerator {
    /// With a stream of the current context. Loads the kernels if this is the context's first, which may wait for the device.
    pub fn new(driver: &'static dyn Driver) -> Result<Self> {
        let stream = driver.create_stream()?;
        // What fails on the way out concerns nobody.
        let event = driver.create_event().inspect_err(|_| drop(driver.destroy_stream(stream)))?;
        Ok(Self { driver, stream, event, kernels: kernels::of_current(driver), state: Mutex::default() })
    }

    /// True where [`Device::reduce`] works; of elements to elements, that is.
    pub fn has_kernels(&self) -> bool {
        self.kernels.is_ok()
    }

    /// Memory of the current context's device.
    pub fn allocate(driver: &dyn Driver, bytes: usize) -> Result<UserPointer> {
        let address = driver.allocate(bytes)?;
        // SAFETY: the driver has just given it to us, of that length; nobody else has it.
        Ok(unsafe { UserPointer::new(std::ptr::with_exposed_provenance(address)) })
    }

    /// Memory that another process has made by [`Self::allocate`] and exported, until [`Driver::close`]; its owner keeps it as long.
    pub fn open(driver: &dyn Driver, memory: &Exported) -> Result<UserPointer> {
        let address = driver.open(memory)?;
        // SAFETY: the driver maps it as long as this process does not close it.
        Ok(unsafe { UserPointer::new(std::ptr::with_exposed_provenance(address)) })
    }

    fn queue(&self, work: impl FnOnce() -> Result<()>) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            state.failure = work().err();
        }
        state.queued = true;
    }
}

impl Device for Accelerator {
    fn copy(&self, destination: UserPointer, source: UserPointer, bytes: usize) {
        if destination != source && bytes > 0 {
            let (to, from) = (destination.address(), source.address());
            self.queue(|| self.driver.copy(to, from, bytes, self.stream));
        }
    }

    fn reduce(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    ) {
        if let [only] = operands
            && reduction.is_copy(only.form, only.scale.is_some(), form)
        {
            self.copy(destination, only.start, count_elems * reduction.element_bytes());
        } else if count_elems > 0 && !operands.is_empty() {
            self.queue(|| {
                if form != Form::Element || operands.iter().any(|operand| operand.form != form) {
                    return Err(Error::internal("a device reduces elements only, and to elements"));
                }
                let kernels = self.kernels.as_ref().map_err(Clone::clone)?;
                kernels.reduce(self.driver, self.stream, reduction, operands, destination, count_elems)
            });
        }
    }

    fn copy_streaming(&self, destination: UserPointer, source: UserPointer, bytes: usize) {
        self.copy(destination, source, bytes);
    }

    fn reduce_streaming(
        &self,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        form: Form,
        count_elems: usize,
    ) {
        self.reduce(reduction, operands, destination, form, count_elems);
    }

    fn is_through(&self) -> Result<bool> {
        let mut state = self.state.lock();
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        if std::mem::take(&mut state.queued) {
            self.driver.record(self.event, self.stream)?;
            state.pending = true;
        }
        if state.pending {
            state.pending = !self.driver.has_passed(self.event)?;
        }
        Ok(!state.pending)
    }

    fn send(&self, _: &Socket, _: &[u8], _: UserPointer, _: usize) -> io::Result<Option<usize>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn receive(&self, _: &Socket, _: UserPointer, _: usize, _: &mut [u8]) -> io::Result<Option<usize>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
