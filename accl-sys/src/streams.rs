//! Host streams: the extension of `accl.h`.

use accl_core::engine::HostStream;
use accl_core::{Error, ErrorKind};

use crate::abi::*;
use crate::handle::{self, Out};
use crate::slab::State;

face! {
    /// Makes a stream.
    fn create[acclStreamCreate](stream: *mut cudaStream_t) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(stream, "stream") }?;
        out.set(handle::streams()?.insert(HostStream::create()?)?.cast());
        Ok(())
    }

    /// Waits until everything given to the stream is done.
    fn synchronize[acclStreamSynchronize](stream: cudaStream_t) {
        handle::host_stream(stream)?.map_or(Ok(()), |stream| stream.synchronize())
    }

    /// Success when everything given to the stream is done, "in progress" while it is not.
    fn query[acclStreamQuery](stream: cudaStream_t) {
        match handle::host_stream(stream)? {
            Some(stream) if !stream.query()? => Err(Error::new(ErrorKind::InProgress, "the stream is busy")),
            _ => Ok(()),
        }
    }

    /// Waits, then frees the stream.
    fn destroy[acclStreamDestroy](stream: cudaStream_t) {
        // A call that lost the race against another destroy has nothing left to do.
        handle::host_stream(stream)?.and_then(|stream| stream.close(State::Destroyed)).map_or(Ok(()), HostStream::destroy)
    }
}
