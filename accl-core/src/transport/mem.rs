//! Ranks that are threads of one process: the peer's memory is our memory.
//!
//! Same rings, board and bells as between processes ([`super::shm`]), in memory of this process alone. Messages
//! above a small size are lent: the receiver reads the sender's buffer in place.

use super::shm::{Arena, Geometry, Members};
use crate::error::Result;
use crate::os::mapping::Mapping;
use std::sync::Arc;

/// Messages up to this size are copied through the ring, so that the sender need not wait for the receiver.
pub const LEND_ABOVE_BYTES: usize = 4096;

/// An arena that only this process can see.
pub fn arena(members: impl Into<Members>) -> Result<Arc<Arena>> {
    let members = members.into();
    let geometry = Geometry::for_members(&members);
    Arena::create(Mapping::anonymous(geometry.total_bytes())?, geometry, members)
}
