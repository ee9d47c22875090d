//! Operators that programs make.

use std::ffi::c_void;

use accl_core::Error;
use accl_core::comm::ScalarSource;
use accl_core::types::Scalar;

use crate::abi::*;
use crate::handle::{self, Out};

face! {
    /// An operator: each rank's input times that rank's scalar, then summed.
    fn create_pre_mul_sum[ncclRedOpCreatePreMulSum, pncclRedOpCreatePreMulSum](
        op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t,
        residence: ncclScalarResidence_t, comm: ncclComm_t,
    ) {
        let comm = handle::communicator(comm)?;
        comm.check_ready()?;
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(op, "op") }?;
        handle::required(scalar, "scalar")?;
        let data_type = handle::data_type(datatype)?;
        let bytes = data_type.size_bytes();
        let source = match residence {
            // SAFETY: the header asks for a pointer to one element.
            ncclScalarHostImmediate => ScalarSource::Immediate(unsafe { element(scalar, bytes) }),
            ncclScalarDevice => ScalarSource::InMemory(handle::buffer(scalar)),
            _ => return Err(Error::argument(format!(
                "residence {} is unknown; pass ncclScalarDevice or ncclScalarHostImmediate",
                residence.cast_signed()
            ))),
        };
        out.set(comm.create_pre_mul_sum(data_type, source)?.cast_unsigned());
        Ok(())
    }

    /// Forgets an operator.
    fn destroy_operator[ncclRedOpDestroy, pncclRedOpDestroy](op: ncclRedOp_t, comm: ncclComm_t) {
        let comm = handle::communicator(comm)?;
        comm.destroy_operator(op.cast_signed())
    }
}

/// # Safety
/// `scalar` points to `bytes` readable bytes, at most 8.
unsafe fn element(scalar: *const c_void, bytes: usize) -> Scalar {
    let mut element = Scalar::default();
    // SAFETY: promised; the element has room for the widest type.
    unsafe { std::ptr::copy_nonoverlapping(scalar.cast::<u8>(), element.0.as_mut_ptr(), bytes) };
    element
}
