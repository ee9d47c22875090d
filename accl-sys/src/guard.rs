//! The one way into the library: no exported function exists but through `face!`, and a test reads the sources
//! to keep it so.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use accl_core::{Error, Result};

use crate::abi::{ncclResult_t, ncclSuccess};
use crate::error;

/// Makes exported functions. Between the name of the body and its arguments stand the exported names, all of them
/// functions of their own with the same body, so that a tool may take the place of one and call the other:
///
/// ```text
/// face! {
///     /// What it does.
///     fn count[ncclCommCount, pncclCommCount](comm: ncclComm_t, count: *mut c_int) { … a Result<()> … }
///     /// A function without an error code says what it returns after a failure.
///     fn world[ncclTeamWorld, pncclTeamWorld](comm: ncclComm_t) -> ncclTeam_t, or NO_TEAM; { … a Result … }
/// }
/// ```
macro_rules! face {
    () => {};
    ($(#[$doc:meta])* fn $body:ident $names:tt $args:tt $code:block $($rest:tt)*) => {
        face_body!($body $args (()) $code);
        face_names!([$(#[$doc])*] $names $body $args []);
        face! { $($rest)* }
    };
    ($(#[$doc:meta])* fn $body:ident $names:tt $args:tt -> $answer:ty, or $fallback:expr; $code:block $($rest:tt)*) => {
        face_body!($body $args ($answer) $code);
        face_names!([$(#[$doc])*] $names $body $args [$answer, $fallback]);
        face! { $($rest)* }
    };
}

/// The body of `face!`: what all names of a function share.
macro_rules! face_body {
    ($body:ident ($($arg:ident: $kind:ty),* $(,)?) ($answer:ty) $code:block) => {
        unsafe fn $body($($arg: $kind),*) -> accl_core::Result<$answer> $code
    };
}

/// Each of the exported names of `face!`.
macro_rules! face_names {
    ($doc:tt [$name:ident $(, $more:ident)*] $body:ident $args:tt $answer:tt) => {
        face_export!($doc $name $body $args $answer);
        face_names!($doc [$($more),*] $body $args $answer);
    };
    ($doc:tt [] $body:ident $args:tt $answer:tt) => {};
}

/// One exported name of `face!`.
macro_rules! face_export {
    ([$($doc:tt)*] $name:ident $body:ident ($($arg:ident: $kind:ty),* $(,)?) []) => {
        $($doc)*
        ///
        /// # Safety
        /// Pointers that are not NULL must point to what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $crate::abi::ncclResult_t {
            $crate::guard::call(stringify!($name), || {
                // SAFETY: the caller of the exported function made the same promise.
                unsafe { self::$body($($arg),*) }
            })
        }
    };
    ([$($doc:tt)*] $name:ident $body:ident ($($arg:ident: $kind:ty),* $(,)?) [$answer:ty, $fallback:expr]) => {
        $($doc)*
        ///
        /// # Safety
        /// Pointers that are not NULL must point to what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $answer {
            $crate::guard::value(stringify!($name), $fallback, || {
                // SAFETY: the caller of the exported function made the same promise.
                unsafe { self::$body($($arg),*) }
            })
        }
    };
}

/// Runs the body of the exported function `name` and turns its result into a code.
#[inline]
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ncclSuccess,
        Ok(Err(error)) => error::report(name, &error),
        Err(payload) => error::report(name, &panicked(payload)),
    }
}

/// The same for functions that return something else than a code: `fallback` after a failure.
#[inline]
pub(crate) fn value<T>(name: &str, fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(payload) => panicked(payload),
    };
    error::report(name, &error);
    fallback
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
    let error = Error::internal(format!(
        "a defect of this library: {}; the call did not complete, please report it",
        message.as_deref().unwrap_or("a panic without a message")
    ));
    // A payload's destructor is foreign code that may panic again, and nobody would be left to catch that.
    std::mem::forget(payload);
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ncclInternalError, ncclInvalidUsage};

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(call("ncclTest", || panic!("broken {}", 7)), ncclInternalError);
        assert!(error::last_text().contains("broken 7"), "{}", error::last_text());
        assert_eq!(value("ncclTest", 5, || panic!("again")), 5);
    }

    #[test]
    fn an_error_becomes_its_code() {
        assert_eq!(call("ncclTest", || Err(Error::usage("no"))), ncclInvalidUsage);
        assert_eq!(call("ncclTest", || Ok(())), ncclSuccess);
    }

    /// Exported names come from the macro above and nowhere else, so each of them is guarded.
    #[test]
    fn every_export_is_guarded() {
        let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = 0;
        for entry in std::fs::read_dir(sources).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let marker = ["no", "mangle"].join("_");
            let exports = text.matches(&marker).count() + text.matches(&["export", "name"].join("_")).count();
            let expected = if path.ends_with("guard.rs") { 2 } else { 0 };
            assert_eq!(exports, expected, "{}: exported functions are made by face! only", path.display());
            let foreign = ["extern", "\"C\"", "fn"].join(" ");
            assert_eq!(
                text.matches(&foreign).count(),
                expected,
                "{}: no C function but by face!",
                path.display()
            );
            files += 1;
        }
        assert!(files > 10);
    }
}
