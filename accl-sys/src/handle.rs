//! The handles and pointers of the C interface as Rust values: what every exported function parses with.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

use accl_core::comm::{Communicator, PostedMessage, Stream, Window, group};
use accl_core::driver;
use accl_core::engine::HostStream;
use accl_core::memory::UserPointer;
use accl_core::types::DataType;
use accl_core::{Error, ErrorKind, Result};

use crate::abi::{cudaStream_t, ncclComm_t, ncclDataType_t};
use crate::slab::{Entered, Slab};

static COMMUNICATORS: OnceLock<Slab<Communicator>> = OnceLock::new();
static STREAMS: OnceLock<Slab<HostStream>> = OnceLock::new();
static REQUESTS: OnceLock<Slab<PostedMessage>> = OnceLock::new();
static WINDOWS: OnceLock<Slab<Window>> = OnceLock::new();

/// The table behind `ncclComm_t`.
pub(crate) fn communicators() -> Result<&'static Slab<Communicator>> {
    table(&COMMUNICATORS, "communicator")
}

/// The table behind `acclStream_t`.
pub(crate) fn streams() -> Result<&'static Slab<HostStream>> {
    table(&STREAMS, "host stream")
}

/// The table behind `acclRequest_t`.
pub(crate) fn requests() -> Result<&'static Slab<PostedMessage>> {
    table(&REQUESTS, "request")
}

/// The table behind `ncclWindow_t`.
pub(crate) fn windows() -> Result<&'static Slab<Window>> {
    table(&WINDOWS, "window")
}

#[inline]
fn table<T>(slab: &'static OnceLock<Slab<T>>, what: &'static str) -> Result<&'static Slab<T>> {
    if let Some(slab) = slab.get() {
        return Ok(slab);
    }
    // Two threads may come here at once; the second table is unmapped again.
    let fresh = Slab::new(what)?;
    Ok(slab.get_or_init(|| fresh))
}

/// The communicator of a handle (§5.1 step 1).
#[inline]
pub(crate) fn communicator(handle: ncclComm_t) -> Result<Entered<'static, Communicator>> {
    communicators()?.enter(handle.cast_const().cast())
}

/// The host stream of a handle; NULL is none.
#[inline]
pub(crate) fn host_stream(handle: cudaStream_t) -> Result<Option<Entered<'static, HostStream>>> {
    if handle.is_null() {
        return Ok(None);
    }
    let entered = streams()?.enter(handle.cast_const().cast());
    entered
        .map(Some)
        .map_err(|error| error.within("in host memory the stream must be NULL or made by acclStreamCreate"))
}

/// Where a call is made, for as long as it lasts.
pub(crate) enum StreamHandle {
    None,
    Host(Entered<'static, HostStream>),
    Device(driver::Stream),
}

impl StreamHandle {
    /// The same, borrowed.
    #[inline]
    pub(crate) fn get(&self) -> Stream<'_> {
        match self {
            Self::None => Stream::None,
            Self::Host(stream) => Stream::Host(stream),
            Self::Device(stream) => Stream::Device(*stream),
        }
    }
}

/// The stream of a call of `comm`: one of its device, which only the driver knows, or a host stream.
#[inline]
pub(crate) fn stream(comm: &Communicator, handle: cudaStream_t) -> Result<StreamHandle> {
    if comm.has_device() {
        return Ok(StreamHandle::Device(driver::Stream(handle.expose_provenance())));
    }
    Ok(host_stream(handle)?.map_or(StreamHandle::None, StreamHandle::Host))
}

/// The stream of a collective of `count` elements: with nothing to do it is not looked at (§5.1 step 9).
#[inline]
pub(crate) fn collective_stream(
    comm: &Communicator,
    handle: cudaStream_t,
    count: usize,
) -> Result<StreamHandle> {
    if count == 0 { Ok(StreamHandle::None) } else { stream(comm, handle) }
}

/// Runs the part of a call after step 2 of §5.1: what fails there also fails the group the call is in, and spoils
/// a communicator that does not block.
#[inline]
pub(crate) fn recorded<T>(comm: &Communicator, body: impl FnOnce() -> Result<T>) -> Result<T> {
    grouped(body).inspect_err(|error| {
        if error.kind() != ErrorKind::InProgress && !comm.config().blocking {
            comm.store_error(error);
        }
    })
}

/// What fails in `body` also fails the group the call is in.
#[inline]
pub(crate) fn grouped<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    body().inspect_err(|error| {
        if error.kind() != ErrorKind::InProgress {
            group::fail(error);
        }
    })
}

/// §5.1 step 5: a rank of the communicator. `what` is the argument's name.
#[inline]
pub(crate) fn rank(comm: &Communicator, value: c_int, what: &str) -> Result<usize> {
    match usize::try_from(value) {
        Ok(rank) if rank < comm.ranks() => Ok(rank),
        _ => Err(Error::argument(format!(
            "{what} {value} is not a rank of this communicator of {} ranks; pass 0 to {}",
            comm.ranks(),
            comm.ranks().saturating_sub(1)
        ))),
    }
}

/// §5.1 step 6: an element type.
#[inline]
pub(crate) fn data_type(value: ncclDataType_t) -> Result<DataType> {
    DataType::from_abi(value.cast_signed()).ok_or_else(|| {
        let value = value.cast_signed();
        Error::argument(format!("datatype {value} is unknown; pass one of ncclDataType_t, 0 to 11"))
    })
}

/// A time limit; 0 is none.
pub(crate) fn limit(limit_ms: i64) -> Result<Option<Duration>> {
    let limit = u64::try_from(limit_ms).map_err(|_| {
        Error::argument(format!("the limit of {limit_ms} ms is negative; pass 0 for none, or a positive one"))
    })?;
    Ok((limit > 0).then(|| Duration::from_millis(limit)))
}

/// A buffer of the caller, who promised by calling that it holds what the header says until the call is complete.
#[inline]
pub(crate) fn buffer(ptr: *const c_void) -> UserPointer {
    // SAFETY: that promise is the `# Safety` section of every exported function that takes a buffer.
    unsafe { UserPointer::new(ptr) }
}

fn null(what: &str) -> Error {
    Error::argument(format!("{what} is NULL; pass a valid pointer"))
}

/// `ptr`, unless it is NULL. `what` is the argument's name.
pub(crate) fn required<T>(ptr: *const T, what: &str) -> Result<()> {
    if ptr.is_null() { Err(null(what)) } else { Ok(()) }
}

/// Where the caller wants a result.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

// SAFETY: the caller's promise of `new` holds for any thread; a result is written by one at a time.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    /// `ptr` is NULL or stays writable, and written by us only, until the call (or what it started) is complete.
    pub(crate) unsafe fn new(ptr: *mut T, what: &str) -> Result<Self> {
        NonNull::new(ptr).map(Self).ok_or_else(|| null(what))
    }

    /// Writes the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: promised to `new`. Alignment is not asked for: bindings of other languages pass parts of byte
        // buffers.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}
