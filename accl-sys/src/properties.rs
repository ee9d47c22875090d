//! `ncclCommQueryProperties`: a struct of the client that must not be filled beyond its end, told by its version.

use std::mem::offset_of;

use accl_core::Error;

use crate::abi::*;
use crate::handle;
use crate::{config, management};

face! {
    /// What the communicator can do.
    fn query[ncclCommQueryProperties, pncclCommQueryProperties](
        comm: ncclComm_t, props: *mut ncclCommProperties_t,
    ) {
        let comm = handle::communicator(comm)?;
        handle::required(props, "props")?;
        comm.check_ready()?;
        // SAFETY: not NULL, and the header asks for a valid pointer.
        let head = unsafe { config::head(props) };
        if head.magic != NCCL_API_MAGIC {
            return Err(Error::usage(format!(
                "the ncclCommProperties_t was not initialized: magic {:#x}, needed {NCCL_API_MAGIC:#x}; start from \
                 NCCL_COMM_PROPERTIES_INITIALIZER", head.magic
            )));
        }
        let mut known = without_device_code(management::number(comm.rank()), management::number(comm.ranks()));
        known.hostRmaSupport = !comm.has_device();
        let (start, end) = (offset_of!(ncclCommProperties_t, rank), end_for(head.version));
        let source = (&raw const known).cast::<u8>();
        // SAFETY: a client of that version has a struct at least up to `end`, and ours is longer than any. The
        // bytes were all written: `known` began as zeros.
        unsafe { std::ptr::copy_nonoverlapping(source.add(start), props.cast::<u8>().add(start), end - start) };
        Ok(())
    }
}

/// Where the struct of a client of `version` ends, in bytes.
fn end_for(version: u32) -> usize {
    match version {
        ..=22903 => offset_of!(ncclCommProperties_t, nLsaTeams),
        22904..23100 => offset_of!(ncclCommProperties_t, commHash),
        23100..23200 => offset_of!(ncclCommProperties_t, cftSupport),
        _ => size_of::<ncclCommProperties_t>(),
    }
}

/// Nothing that device code could do: false and none, all zero, is the truth for the rest.
fn without_device_code(rank: i32, ranks: i32) -> ncclCommProperties_t {
    // SAFETY: all bits zero are a valid value of this plain data.
    let mut known = unsafe { std::mem::MaybeUninit::<ncclCommProperties_t>::zeroed().assume_init() };
    known.rank = rank;
    known.nRanks = ranks;
    known.cudaDev = -1;
    known.nvmlDev = -1;
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_filled_beyond_its_end() {
        let ends =
            [(22902, 40), (22903, 40), (22907, 56), (23007, 56), (23102, 144), (23203, 152), (29999, 152)];
        for (version, end) in ends {
            assert_eq!(end_for(version), end, "{version}");
        }
    }
}
