//! Handles that can be checked: a table of entries at an address that never changes, so that any value a program
//! passes is either in range, aligned and alive, or refused, without a look at foreign memory.
//!
//! An entry's word holds its state and how many calls are inside. Whoever closes an entry first makes its state
//! say so (no call enters any more), then waits until those inside have left, then takes the value out. A closed
//! entry keeps its state until [`QUARANTINE`] others have been closed after it, so that late calls with the old
//! handle are told what became of it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;

use accl_core::sync::prim::{AtomicU64, Ordering};
use accl_core::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Closed entries that wait before they are used again.
pub const QUARANTINE: usize = 65_536;

/// Entries of a slab; only those in use take memory.
const CAPACITY: usize = 1 << 20;

const CALLS: u64 = 0xffff_ffff;
const STATE: u64 = !CALLS;

/// What became of an entry; never used is 0, the content of fresh pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum State {
    /// Taken, without a value as yet.
    Reserved = 1 << 32,
    Alive = 2 << 32,
    Destroyed = 3 << 32,
    Aborted = 4 << 32,
}

#[repr(align(64))]
struct Entry<T> {
    word: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

#[derive(Default)]
struct Pool {
    /// Entries from here on were never used.
    next: usize,
    closed: VecDeque<u32>,
}

/// A table of handles to values of one type. `what` names it in texts.
pub(crate) struct Slab<T> {
    base: NonNull<Entry<T>>,
    what: &'static str,
    pool: Mutex<Pool>,
    /// Signalled when the last call has left a closed entry.
    left: Condvar,
    leaving: Mutex<()>,
}

// SAFETY: values are moved in and out under the protocol of the module's head, and shared only by reference.
unsafe impl<T: Send + Sync> Sync for Slab<T> {}
// SAFETY: as above; the table belongs to no thread.
unsafe impl<T: Send + Sync> Send for Slab<T> {}

impl<T> Slab<T> {
    const BYTES: usize = CAPACITY * size_of::<Entry<T>>();

    /// Reserves the addresses; pages come when entries are used.
    pub(crate) fn new(what: &'static str) -> Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no memory of anyone.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), Self::BYTES, protection, flags) };
        let mapped = mapped.map_err(|errno| {
            Error::system(format!("reserving {} bytes of addresses for {what}s", Self::BYTES), errno)
        })?;
        let base = NonNull::new(mapped.cast()).ok_or_else(|| Error::internal("a mapping at address 0"))?;
        Ok(Self { base, what, pool: Mutex::default(), left: Condvar::new(), leaving: Mutex::new(()) })
    }

    /// Takes an entry that has no value yet. Dropping the slot gives it back.
    pub(crate) fn reserve(&self) -> Result<Slot<'_, T>> {
        let mut pool = self.pool.lock();
        let old = if pool.closed.len() > QUARANTINE || pool.next == CAPACITY {
            pool.closed.pop_front()
        } else {
            None
        };
        let index = match old {
            Some(index) => index as usize,
            None if pool.next < CAPACITY => {
                pool.next += 1;
                pool.next - 1
            }
            None => {
                let text =
                    format!("{CAPACITY} {}s are alive, and there can be no more; destroy some", self.what);
                return Err(Error::new(accl_core::ErrorKind::System, text));
            }
        };
        drop(pool);
        set_state(&self.entry(index).word, State::Reserved);
        Ok(Slot { slab: self, index: index as u32 })
    }

    /// A handle to `value`.
    pub(crate) fn insert(&self, value: T) -> Result<*mut c_void> {
        Ok(self.reserve()?.publish(value))
    }

    /// Enters the entry that `handle` means: until the result is dropped the value stays.
    #[inline]
    pub(crate) fn enter(&self, handle: *const c_void) -> Result<Entered<'_, T>> {
        let offset = handle.addr().wrapping_sub(self.base.addr().get());
        if offset >= Self::BYTES || !offset.is_multiple_of(size_of::<Entry<T>>()) {
            return Err(unknown(self.what, handle));
        }
        let index = offset / size_of::<Entry<T>>();
        let entry = self.entry(index);
        // Looking first keeps foreign values from writing, and so from bringing in pages.
        let mut word = entry.word.load(Ordering::Relaxed);
        if word & STATE == State::Alive as u64 {
            word = entry.word.fetch_add(1, Ordering::Acquire);
            let entered = Entered { slab: self, entry, index: index as u32 };
            if word & STATE == State::Alive as u64 {
                return Ok(entered);
            }
        }
        Err(dead(self.what, handle, word & STATE))
    }

    #[inline]
    fn entry(&self, index: usize) -> &Entry<T> {
        debug_assert!(index < CAPACITY);
        // SAFETY: all CAPACITY entries are mapped as long as the slab lives, zero is a valid entry, and everything
        // in it is changed through atomics and cells.
        unsafe { self.base.add(index).as_ref() }
    }

    fn release(&self, index: u32) {
        self.pool.lock().closed.push_back(index);
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whatever borrowed from the slab is gone. Values still inside are
        // leaked: their owners never closed them.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::BYTES) };
    }
}

fn set_state(word: &AtomicU64, state: State) {
    // Refused calls may be on their way out: their count is kept.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| Some(word & CALLS | state as u64));
}

#[cold]
fn unknown(what: &str, handle: *const c_void) -> Error {
    if handle.is_null() {
        return Error::argument(format!("the {what} is NULL; pass a handle that this library made"));
    }
    Error::argument(format!(
        "{handle:p} is not a {what} of this library; pass a handle that it made and that was not freed since"
    ))
}

#[cold]
fn dead(what: &str, handle: *const c_void, state: u64) -> Error {
    const DESTROYED: u64 = State::Destroyed as u64;
    const ABORTED: u64 = State::Aborted as u64;
    match state {
        DESTROYED => Error::argument(format!("{what} {handle:p} has already been destroyed; make a new one")),
        ABORTED => Error::argument(format!("{what} {handle:p} was aborted; make a new one")),
        _ => unknown(what, handle),
    }
}

/// An entry taken, to be given its value.
pub(crate) struct Slot<'a, T> {
    slab: &'a Slab<T>,
    index: u32,
}

impl<T> Slot<'_, T> {
    fn entry(&self) -> &Entry<T> {
        self.slab.entry(self.index as usize)
    }

    /// The handle that [`Self::publish`] will return.
    pub(crate) fn handle(&self) -> *mut c_void {
        std::ptr::from_ref(self.entry()).cast_mut().cast()
    }

    /// Puts the value in; from now on calls can enter.
    pub(crate) fn publish(self, value: T) -> *mut c_void {
        // SAFETY: a reserved entry belongs to its one slot: nobody reads or writes the value but us.
        unsafe { (*self.entry().value.get()).write(value) };
        set_state(&self.entry().word, State::Alive);
        let handle = self.handle();
        std::mem::forget(self);
        handle
    }
}

impl<T> Drop for Slot<'_, T> {
    fn drop(&mut self) {
        set_state(&self.entry().word, State::Destroyed);
        self.slab.release(self.index);
    }
}

/// A call inside an entry.
pub(crate) struct Entered<'a, T> {
    slab: &'a Slab<T>,
    entry: &'a Entry<T>,
    index: u32,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this call was counted while the entry was alive, so whoever closes it waits for us.
        unsafe { (*self.entry.value.get()).assume_init_ref() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let word = self.entry.word.fetch_sub(1, Ordering::Release);
        if word & STATE != State::Alive as u64 && word & CALLS == 1 {
            drop(self.slab.leaving.lock());
            self.slab.left.notify_all();
        }
    }
}

impl<T> Entered<'_, T> {
    /// Refuses further calls, waits until those inside have left, and takes the value. `None` when another call
    /// closed the entry first.
    pub(crate) fn close(self, state: State) -> Option<T> {
        let (slab, entry, index) = (self.slab, self.entry, self.index);
        let closed = entry.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            (word & STATE == State::Alive as u64).then_some(word & CALLS | state as u64)
        });
        drop(self);
        closed.ok()?;
        let mut leaving = slab.leaving.lock();
        while entry.word.load(Ordering::Acquire) & CALLS != 0 {
            slab.left.wait(&mut leaving);
        }
        drop(leaving);
        // SAFETY: the entry was alive, we alone changed that, and no call is inside nor can enter.
        let value = unsafe { (*entry.value.get()).assume_init_read() };
        slab.release(index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn text<T>(result: Result<T>) -> String {
        result.err().map(|error| error.text().to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_handle_lives_until_it_is_closed() {
        let slab = Slab::new("thing").unwrap();
        let handle = slab.insert(String::from("one")).unwrap();
        assert_eq!(slab.enter(handle).unwrap().as_str(), "one");
        assert_eq!(slab.enter(handle).unwrap().close(State::Destroyed).as_deref(), Some("one"));
        assert!(text(slab.enter(handle)).contains("has already been destroyed"));
        let second = slab.insert(String::from("two")).unwrap();
        assert_ne!(handle, second);
        assert!(slab.enter(second).unwrap().close(State::Aborted).is_some());
        assert!(text(slab.enter(second)).contains("was aborted"));
    }

    #[test]
    fn foreign_values_are_refused() {
        let slab = Slab::new("thing").unwrap();
        let handle = slab.insert(7u64).unwrap();
        let base = slab.base.addr().get();
        let inside = [base + 1, base + 8, base + 64, base + Slab::<u64>::BYTES - 64];
        let outside = [1, 8, usize::MAX, base - 64, base + Slab::<u64>::BYTES];
        for value in inside.into_iter().chain(outside) {
            let error = text(slab.enter(std::ptr::without_provenance(value)));
            assert!(error.contains("is not a thing"), "{value:#x}: {error}");
        }
        assert!(text(slab.enter(std::ptr::null())).contains("NULL"));
        assert_eq!(*slab.enter(handle).unwrap(), 7);
    }

    #[test]
    fn closed_entries_wait_long_before_they_are_used_again() {
        let slab = Slab::new("thing").unwrap();
        let first = slab.insert(0).unwrap();
        assert!(slab.enter(first).unwrap().close(State::Destroyed).is_some());
        for value in 0..QUARANTINE {
            let handle = slab.insert(value).unwrap();
            assert_ne!(handle, first);
            assert!(slab.enter(handle).unwrap().close(State::Destroyed).is_some());
        }
        assert_eq!(slab.insert(1).unwrap(), first);
    }

    #[test]
    fn a_slot_given_back_is_no_handle() {
        let slab: Slab<u8> = Slab::new("thing").unwrap();
        let slot = slab.reserve().unwrap();
        let handle = slot.handle();
        assert!(slab.enter(handle).is_err());
        drop(slot);
        assert!(slab.enter(handle).is_err());
    }

    #[test]
    fn closing_waits_for_the_calls_inside_and_happens_once() {
        let slab = Slab::new("thing").unwrap();
        let dropped = Arc::new(());
        let handle = slab.insert(Arc::clone(&dropped)).unwrap();
        let address = handle.addr();
        let inside = slab.enter(handle).unwrap();
        std::thread::scope(|scope| {
            let closers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| match slab.enter(std::ptr::without_provenance(address)) {
                        Ok(entered) => usize::from(entered.close(State::Aborted).is_some()),
                        Err(_) => 0,
                    })
                })
                .collect();
            while slab.enter(std::ptr::without_provenance(address)).is_ok() {
                std::thread::yield_now();
            }
            assert_eq!(Arc::strong_count(&*inside), 2, "closed, but kept for the call inside");
            drop(inside);
            let winners: usize = closers.into_iter().map(|closer| closer.join().unwrap()).sum();
            assert_eq!(winners, 1);
        });
        assert_eq!(Arc::strong_count(&dropped), 1);
    }
}
