//! Ranks of one host: rings, a board and doorbells in one nameless file that all of them map.
//!
//! The same structures serve threads of one process ([`super::mem`]); what differs is how lent memory is read
//! ([`Reach`]).

mod arena;
mod block;
mod lent;
mod link;
mod members;
mod pull;

pub use arena::{
    Arena, BOARD_AHEAD, BOARD_BYTES, BOARD_DATA_DEPTH, BOARD_DEPTH, BOARD_INLINE_BYTES, Geometry, Lane,
};
pub use block::{MOST_NEEDS, RankBlock, RankState, Waiting, Word};
pub use lent::{LentMemory, PeerMemory, Place, Window};
pub use link::{RingReceiver, RingSender};
pub use members::Members;
pub use pull::{Reach, can_read, copy as pull};

use crate::error::Result;
use crate::os::mapping::{Mapping, nameless_file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Messages up to this size are copied through the ring even where the peer could read our memory: below it two
/// copies cost less than a system call.
pub const LEND_ABOVE_BYTES: usize = 48 << 10;

/// Makes an arena for the ranks of this host, and the file by which other processes can map it.
pub fn create(members: impl Into<Members>) -> Result<(Arc<Arena>, OwnedFd)> {
    let members = members.into();
    let geometry = Geometry::for_members(&members);
    let file = nameless_file("accl-arena", geometry.total_bytes())?;
    let mapping = Mapping::of_file(file.as_fd(), geometry.total_bytes())?;
    Ok((Arena::create(mapping, geometry, members)?, file))
}

/// Maps an arena that another process made for the same ranks.
pub fn open(file: BorrowedFd<'_>, members: impl Into<Members>) -> Result<Arc<Arena>> {
    let members = members.into();
    let geometry = Geometry::for_members(&members);
    let bytes = crate::os::mapping::file_bytes(file)?;
    if bytes < geometry.total_bytes() {
        return Err(crate::Error::internal(format!(
            "a shared memory file of {bytes} bytes, need {} for {} ranks",
            geometry.total_bytes(),
            members.local()
        )));
    }
    Arena::open(Mapping::of_file(file, geometry.total_bytes())?, geometry, members)
}
