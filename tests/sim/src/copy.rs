//! Copies and fills. Addresses are checked when the call is made, and again when the stream comes to it.

use std::sync::Arc;

use crate::capture::{self, NodeKind};
use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::memory::{self, Access};
use crate::stream::{Stream, Work};
use crate::{abi, config, raw, time};

/// Where the program says that an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Device,
    Any,
}

/// Rows of bytes; a plain copy is one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) width: u64,
    pub(crate) rows: u64,
    pub(crate) to_pitch: u64,
    pub(crate) from_pitch: u64,
    pub(crate) to_side: Side,
    pub(crate) from_side: Side,
}

/// Host memory up to this size is read during the call.
const STAGED_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Pinned,
    Pageable,
}

/// What an address is, if the whole span may be used so.
fn place(address: u64, bytes: u64, side: Side, access: Access) -> Outcome<Place> {
    let place = match memory::check(address, bytes, access)? {
        Some(range) if range.on_device() => Place::Device,
        Some(_) => Place::Pinned,
        None if side == Side::Device => return Err(Code::INVALID_VALUE),
        None => Place::Pageable,
    };
    if place == Place::Device && side == Side::Host {
        let is_managed = memory::find(address).is_some_and(|range| range.kind == memory::Kind::Managed);
        return if is_managed { Ok(place) } else { Err(Code::INVALID_VALUE) };
    }
    Ok(place)
}

impl Copy {
    pub(crate) fn flat(to: u64, from: u64, bytes: u64, to_side: Side, from_side: Side) -> Self {
        Self { to, from, width: bytes, rows: 1, to_pitch: bytes, from_pitch: bytes, to_side, from_side }
    }

    fn span(&self, pitch: u64) -> u64 {
        pitch * (self.rows - 1) + self.width
    }

    fn places(&self) -> Outcome<(Place, Place)> {
        let to = place(self.to, self.span(self.to_pitch), self.to_side, Access::ReadWrite)?;
        let from = place(self.from, self.span(self.from_pitch), self.from_side, Access::Read)?;
        Ok((to, from))
    }

    fn run(&self) -> Outcome {
        abi::injected("copy")?;
        self.places().map_err(|_| Code::ILLEGAL_ADDRESS)?;
        time::pause_us(config::get().delay_us);
        // With random delays a copy comes in two parts, so that who reads too early may see one of them.
        let half = if config::get().random_delay.is_some() { self.width / 2 } else { 0 };
        for row in 0..self.rows {
            let (to, from) = (self.to + row * self.to_pitch, self.from + row * self.from_pitch);
            if half > 0 {
                raw::copy(to, from, half);
                time::pause_us(50);
            }
            raw::copy(to + half, from + half, self.width - half);
        }
        Ok(())
    }

    /// Copies in a stream. It returns early unless pageable memory takes part.
    pub(crate) fn submit(self, stream: &Arc<Stream>) -> Outcome {
        stream.context.check()?;
        if self.width == 0 || self.rows == 0 {
            return Ok(());
        }
        if self.rows > 1 && (self.to_pitch < self.width || self.from_pitch < self.width) {
            return Err(Code::INVALID_VALUE);
        }
        let (to, from) = self.places()?;
        if capture::of(stream)?.is_some() {
            return stream.submit(NodeKind::Memcpy, Arc::new(move || self.run())).map(drop);
        }
        if from == Place::Pageable && to != Place::Pageable && self.rows == 1 && self.width <= STAGED_BYTES {
            let staged = raw::bytes(self.from, self.width as usize);
            let copy = Self { from: staged.as_ptr() as u64, from_side: Side::Any, ..self };
            let work: Work = Arc::new(move || {
                // The closure owns what the copy reads.
                let _keep = &staged;
                copy.run()
            });
            return stream.submit(NodeKind::Memcpy, work).map(drop);
        }
        let point = stream.submit(NodeKind::Memcpy, Arc::new(move || self.run()))?;
        if to == Place::Pageable || from == Place::Pageable {
            point.wait();
            stream.context.check()?;
        }
        Ok(())
    }

    /// A copy that the caller waits for, unless it is between devices.
    pub(crate) fn synchronous(self, context: &Arc<Context>) -> Outcome {
        capture::forbid_unsafe()?;
        let stream = context.legacy();
        self.submit(&stream)?;
        if self.width == 0 || self.places()? == (Place::Device, Place::Device) {
            return Ok(());
        }
        stream.tail().wait();
        context.check()
    }
}

/// Fills rows of `count` elements of `width` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) to: u64,
    pub(crate) value: u32,
    pub(crate) width: u64,
    pub(crate) count: u64,
    pub(crate) rows: u64,
    pub(crate) pitch: u64,
}

impl Fill {
    pub(crate) fn flat(to: u64, value: u32, width: u64, count: u64) -> Self {
        Self { to, value, width, count, rows: 1, pitch: 0 }
    }

    fn check(&self) -> Outcome {
        let bytes = self.pitch * (self.rows - 1) + self.width * self.count;
        memory::check(self.to, bytes, Access::ReadWrite)?.map(drop).ok_or(Code::INVALID_VALUE)
    }

    /// Fills in a stream; it never waits, as on a device.
    pub(crate) fn submit(self, stream: &Arc<Stream>) -> Outcome {
        stream.context.check()?;
        if self.count == 0 || self.rows == 0 {
            return Ok(());
        }
        if !self.to.is_multiple_of(self.width) {
            return Err(Code::INVALID_VALUE);
        }
        self.check()?;
        let work = move || {
            abi::injected("fill")?;
            self.check().map_err(|_| Code::ILLEGAL_ADDRESS)?;
            time::pause_us(config::get().delay_us);
            for row in 0..self.rows {
                raw::fill(self.to + row * self.pitch, self.value, self.width, self.count);
            }
            Ok(())
        };
        stream.submit(NodeKind::Memset, Arc::new(work)).map(drop)
    }
}
