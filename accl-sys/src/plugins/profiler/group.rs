//! The event of a group, from its first call until its end, which all events of its calls descend from. A call outside of groups has one
//! of its own, as in NCCL, where it is a group of one.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;

use accl_core::comm::{Communicator, group};

use super::events::Event;
use super::{Context, Handle, Profiler, profiler};

/// States of such an event: `ncclGroupStart` has returned, `ncclGroupEnd` was called.
const STARTED: c_int = 23;
const ENDING: c_int = 24;

/// The event of this thread's group.
#[derive(Clone, Copy)]
struct Open {
    /// NULL if it is not wanted.
    event: Handle,
    /// The key of the communicator under which it was begun.
    key: usize,
}

thread_local! {
    static OPEN: Cell<Option<Open>> = const { Cell::new(None) };
}

/// Ends a group, with its calls, between what the plugin is told of that.
pub(crate) fn around_end<T>(body: impl FnOnce() -> T) -> T {
    let Some(open) = OPEN.get().filter(|_| group::depth() == 1) else { return body() };
    let Some(profiler) = profiler() else { return body() };
    profiler.record(open.event, ENDING);
    let result = body();
    profiler.end();
    result
}

impl Profiler {
    /// The event of the group in which a call is made, which begins with its first one.
    pub(super) fn enter(&self, context: Context, comm: &Communicator, rank: c_int) -> Handle {
        if let Some(open) = OPEN.get() {
            return open.event;
        }
        let depth = crate::management::number(group::depth() + 1);
        let event = self.start(context, &Event::of_group(rank, depth));
        OPEN.set(Some(Open { event, key: comm.key() }));
        self.record(event, STARTED);
        event
    }

    /// A call has been made; outside of groups that is the end.
    pub(super) fn leave(&self) {
        if group::depth() == 0
            && let Some(open) = OPEN.get()
        {
            self.record(open.event, ENDING);
            self.end();
        }
    }

    /// The plugin hears of this communicator for the last time.
    pub(super) fn end_of(&self, comm: &Communicator) {
        if let Some(open) = OPEN.get().filter(|open| open.key == comm.key()) {
            self.stop(open.event);
            // The group goes on, and its other calls have no event above them.
            OPEN.set(Some(Open { event: null_mut(), ..open }));
        }
    }

    fn end(&self) {
        if let Some(open) = OPEN.take() {
            self.stop(open.event);
        }
    }

    fn record(&self, event: Handle, state: c_int) {
        if let Some(record) = self.functions.record.filter(|_| !event.is_null()) {
            // SAFETY: an event of the plugin that has not ended; these states come without anything more.
            unsafe { record(event, state, null_mut()) };
        }
    }
}
