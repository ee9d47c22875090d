//! Stub, to be replaced at the merge.
use crate::{Error, Result};
use std::cell::RefCell;

thread_local! {
    static DEPTH: RefCell<(usize, Option<Error>)> = const { RefCell::new((0, None)) };
}

/// Opens.
pub fn start() {
    DEPTH.with_borrow_mut(|state| state.0 += 1);
}

/// Closes.
pub fn end() -> Result<()> {
    DEPTH.with_borrow_mut(|state| {
        if state.0 == 0 {
            return Err(Error::usage("a group ended that was not started"));
        }
        state.0 -= 1;
        if state.0 == 0 { state.1.take().map_or(Ok(()), Err) } else { Ok(()) }
    })
}

/// Remembers.
pub fn fail(error: &Error) {
    DEPTH.with_borrow_mut(|state| {
        if state.0 > 0 {
            state.1 = Some(error.clone());
        }
    });
}
