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
#[macro_export]
macro_rules! face {
    () => {};
    ($(#[$doc:meta])* fn $body:ident $names:tt $args:tt $code:block $($rest:tt)*) => {
        $crate::face_body!([$(#[$doc])*] $body $args (()) $code);
        $crate::face_names!([$(#[$doc])*] $names $body $args []);
        $crate::face! { $($rest)* }
    };
    ($(#[$doc:meta])* fn $body:ident $names:tt $args:tt -> $answer:ty, or $fallback:expr; $code:block $($rest:tt)*) => {
        $crate::face_body!([$(#[$doc])*] $body $args ($answer) $code);
        $crate::face_names!([$(#[$doc])*] $names $body $args [$answer, $fallback]);
        $crate::face! { $($rest)* }
    };
}

/// The body of `face!`: what all names of a function share, also those of another face.
#[doc(hidden)]
#[macro_export]
macro_rules! face_body {
    ([$($doc:tt)*] $body:ident ($($arg:ident: $kind:ty),* $(,)?) ($answer:ty) $code:block) => {
        $($doc)*
        ///
        /// # Safety
        /// Pointers that are not NULL must point to what the header says.
        pub unsafe fn $body($($arg: $kind),*) -> accl_core::Result<$answer> $code
    };
}

/// The exported names of `face!`: of two the first is weak, and gives way to a tool's function of that name; the second, by which
/// the tool goes on, is not.
#[doc(hidden)]
#[macro_export]
macro_rules! face_names {
    ($doc:tt [$weak:ident, $strong:ident] $body:ident $args:tt $answer:tt) => {
        $crate::face_function!($doc [#[cfg_attr(not(weak_names), unsafe(no_mangle))]] $weak $body $args $answer);
        #[cfg(weak_names)]
        $crate::weak_name!($weak);
        $crate::face_function!($doc [#[unsafe(no_mangle)]] $strong $body $args $answer);
    };
    ($doc:tt [$strong:ident] $body:ident $args:tt $answer:tt) => {
        $crate::face_function!($doc [#[unsafe(no_mangle)]] $strong $body $args $answer);
    };
}

/// One function of `face!`.
#[doc(hidden)]
#[macro_export]
macro_rules! face_function {
    ([$($doc:tt)*] [$($export:tt)*] $name:ident $body:ident ($($arg:ident: $kind:ty),* $(,)?) []) => {
        $($doc)*
        ///
        /// # Safety
        /// Pointers that are not NULL must point to what the header says.
        $($export)*
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $crate::abi::ncclResult_t {
            $crate::guard::call(stringify!($name), || {
                // SAFETY: the caller of the exported function made the same promise.
                unsafe { self::$body($($arg),*) }
            })
        }
    };
    ([$($doc:tt)*] [$($export:tt)*] $name:ident $body:ident ($($arg:ident: $kind:ty),* $(,)?) [$answer:ty, $fallback:expr]) => {
        $($doc)*
        ///
        /// # Safety
        /// Pointers that are not NULL must point to what the header says.
        $($export)*
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $answer {
            $crate::guard::value(stringify!($name), $fallback, || {
                // SAFETY: the caller of the exported function made the same promise.
                unsafe { self::$body($($arg),*) }
            })
        }
    };
}

/// A weak symbol at which the function of the same name begins. Rust has no other way to say weak.
#[doc(hidden)]
#[macro_export]
macro_rules! weak_name {
    ($name:ident) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "jmp {function}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            function = sym $name,
        );
    };
}

/// Runs the body of the exported function `name` and turns its result into a code.
#[inline]
pub fn call(name: &str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ncclSuccess,
        Ok(Err(error)) => error::report(name, &error),
        Err(payload) => error::report(name, &panicked(payload)),
    }
}

/// The same for functions that return something else than a code: `fallback` after a failure.
#[inline]
pub fn value<T>(name: &str, fallback: T, body: impl FnOnce() -> Result<T>) -> T {
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
        let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let sources = ["src", "lib/pccl/src"].map(|place| std::fs::read_dir(package.join(place)).unwrap());
        let mut files = 0;
        for entry in sources.into_iter().flatten() {
            let path = entry.unwrap().path();
            // What plugins call is no export.
            if path.ends_with("plugins") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let marker = ["no", "mangle"].join("_");
            let exports = text.matches(&marker).count() + text.matches(&["export", "name"].join("_")).count();
            // Strong ones, and weak ones that cannot be.
            let expected = if path.ends_with("guard.rs") { 3 } else { 0 };
            // The variables of PCCL's face.
            let variables = if path.ends_with("variables.rs") { 3 } else { 0 };
            assert_eq!(
                exports,
                expected + variables,
                "{}: exported functions are made by face! only",
                path.display()
            );
            let foreign = ["extern", "\"C\"", "fn"].join(" ");
            assert_eq!(
                text.matches(&foreign).count(),
                if path.ends_with("guard.rs") { 2 } else { 0 },
                "{}: no C function but by face!",
                path.display()
            );
            files += 1;
        }
        assert!(files > 10);
    }
}
