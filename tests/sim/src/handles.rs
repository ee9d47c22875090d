//! Handles are numbers that stand for objects. A number is never given twice, so that a handle which was destroyed is known as such.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use crate::error::{Code, Outcome};

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    objects: OnceLock<RwLock<HashMap<u64, Arc<T>>>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self { objects: OnceLock::new() }
    }

    fn objects(&self) -> &RwLock<HashMap<u64, Arc<T>>> {
        self.objects.get_or_init(|| RwLock::new(HashMap::new()))
    }

    /// Adds an object that knows its handle.
    pub(crate) fn add(&self, make: impl FnOnce(u64) -> T) -> Arc<T> {
        self.add_shared(|handle| Arc::new(make(handle)))
    }

    /// As [`Self::add`], for objects that are shared from the start.
    pub(crate) fn add_shared(&self, make: impl FnOnce(u64) -> Arc<T>) -> Arc<T> {
        let handle = fresh();
        let object = make(handle);
        write(self.objects()).insert(handle, Arc::clone(&object));
        object
    }

    /// The object, or "invalid handle".
    pub(crate) fn get(&self, handle: u64) -> Outcome<Arc<T>> {
        read(self.objects()).get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    /// Takes the object away from its handle.
    pub(crate) fn remove(&self, handle: u64) -> Outcome<Arc<T>> {
        write(self.objects()).remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        read(self.objects()).values().cloned().collect()
    }
}

fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5A00_0000_0000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// A list of a thread's own that is never destroyed: programs call the API from destructors that run after those of threads.
pub(crate) struct Own<T>(ManuallyDrop<RefCell<Vec<T>>>);

impl<T> Own<T> {
    pub(crate) const fn new() -> Self {
        Self(ManuallyDrop::new(RefCell::new(Vec::new())))
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Vec<T>) -> R) -> R {
        change(&mut self.0.borrow_mut())
    }
}

/// A lock is taken whether or not somebody panicked under it: state is changed in single steps.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}
