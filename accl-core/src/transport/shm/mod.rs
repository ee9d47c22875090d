//! Ranks of one host: rings, a board and doorbells in one nameless file that all of them map.
//!
//! The same structures serve threads of one process ([`super::mem`]); what differs is how lent memory is read
//! ([`Reach`]).

mod arena;
mod lent;
mod link;
mod pull;

pub use arena::{
    Arena, BOARD_AHEAD, BOARD_BYTES, BOARD_DATA_DEPTH, BOARD_DEPTH, BOARD_INLINE_BYTES, Geometry, Lane,
    RankBlock, RankState, Waiting,
};
pub use lent::LentMemory;
pub use link::{RingReceiver, RingSender};
pub use pull::{Reach, can_read, copy as pull};

use crate::error::Result;
use crate::os::mapping::{Mapping, nameless_file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Messages up to this size are copied through the ring even where the peer could read our memory: below it two
/// copies cost less than a system call.
pub const LEND_ABOVE_BYTES: usize = 48 << 10;

/// Makes an arena for `ranks`, and the file by which other processes can map it.
pub fn create(ranks: usize) -> Result<(Arc<Arena>, OwnedFd)> {
    let geometry = Geometry::for_ranks(ranks);
    let file = nameless_file("accl-arena", geometry.total_bytes())?;
    let mapping = Mapping::of_file(file.as_fd(), geometry.total_bytes())?;
    Ok((Arena::create(mapping, geometry)?, file))
}

/// Maps an arena that another process made for `ranks`.
pub fn open(file: BorrowedFd<'_>, ranks: usize) -> Result<Arc<Arena>> {
    let geometry = Geometry::for_ranks(ranks);
    let bytes = crate::os::mapping::file_bytes(file)?;
    if bytes < geometry.total_bytes() {
        return Err(crate::Error::internal(format!(
            "a shared memory file of {bytes} bytes, need {} for {ranks} ranks",
            geometry.total_bytes()
        )));
    }
    Arena::open(Mapping::of_file(file, geometry.total_bytes())?, geometry)
}
