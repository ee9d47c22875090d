//! How far each rank of this process is, and the watchdog that ends calls which take too long.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Exit, Failure};
use crate::library::Library;
use crate::link::Link;
use crate::message::ToHub;

/// What a rank's thread tells the watchdog. Stores only: the timed loop pays next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Advances with every call that returned.
    steps: AtomicU64,
    /// Whether the thread is inside the library.
    calling: AtomicBool,
    /// The communicator to abort; null before it exists and after it is gone.
    comm: AtomicPtr<c_void>,
    aborted: AtomicBool,
}

impl Progress {
    /// One call is done. Only the rank's own thread calls this.
    pub(crate) fn advance(&self) {
        self.steps.store(self.steps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn set_calling(&self, calling: bool) {
        self.advance();
        self.calling.store(calling, Ordering::Release);
    }

    pub(crate) fn set_comm(&self, comm: *mut c_void) {
        self.comm.store(comm, Ordering::Release);
    }

    /// Whether the communicator is gone by the watchdog's hand: it may not be used any more.
    pub(crate) fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}

/// A rank in the watchdog's care.
#[allow(missing_debug_implementations, reason = "holds a link")]
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) rank: usize,
    pub(crate) progress: Arc<Progress>,
    pub(crate) link: Arc<Link>,
}

/// Creating a communicator may take longer than one operation.
const INIT_LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const BEAT_EVERY: u32 = 4;

/// Watches until the process ends.
pub(crate) fn watch(library: Arc<Library>, ranks: Vec<Watched>, limit: Duration) -> std::io::Result<()> {
    std::thread::Builder::new().name("bench-watch".into()).spawn(move || {
        let mut seen: Vec<(u64, Instant)> = ranks.iter().map(|_| (0, Instant::now())).collect();
        for look in 0u32.. {
            std::thread::sleep(LOOK_EVERY);
            for (watched, seen) in ranks.iter().zip(&mut seen) {
                if look % BEAT_EVERY == 0 {
                    watched.link.send(&ToHub::Beat);
                }
                check(&library, watched, seen, limit);
            }
        }
    })?;
    Ok(())
}

fn check(library: &Library, watched: &Watched, seen: &mut (u64, Instant), limit: Duration) {
    let progress = &watched.progress;
    let steps = progress.steps.load(Ordering::Relaxed);
    if steps != seen.0 || !progress.calling.load(Ordering::Acquire) || progress.aborted() {
        *seen = (steps, Instant::now());
        return;
    }
    let comm = progress.comm.load(Ordering::Acquire);
    let limit = if comm.is_null() { limit.max(INIT_LIMIT) } else { limit };
    if seen.1.elapsed() < limit {
        return;
    }
    progress.aborted.store(true, Ordering::Release);
    let state = async_state(library, comm);
    let text =
        format!("rank {}: a call has not returned for {:.1} s ({state})", watched.rank, limit.as_secs_f64());
    // First the news, then the abort, which may itself take its time.
    watched.link.send(&ToHub::Failed(Failure::new(Exit::Timeout, text)));
    if let (Some(abort), false) = (library.functions.comm_abort.pointer, comm.is_null()) {
        // SAFETY: The communicator lives: its thread is inside a call, and does not use it again once `aborted`.
        unsafe { abort(comm) };
    }
}

/// What the library itself says of the communicator, in words.
fn async_state(library: &Library, comm: *mut c_void) -> String {
    if comm.is_null() {
        return "while the communicator is made".into();
    }
    let Some(ask) = library.functions.comm_get_async_error.pointer else { return "no state known".into() };
    let mut state = 0;
    // SAFETY: As for the abort; writes one integer.
    let code = unsafe { ask(comm, &mut state) };
    match library.check("its state", if code == 0 { state } else { code }) {
        Ok(()) => "the library reports no error".into(),
        Err(failure) => failure.text,
    }
}
