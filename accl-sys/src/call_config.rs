//! `ncclCollConfig_t`, the configuration of one collective call, and the options of ours that hang on it.

use std::mem::MaybeUninit;
use std::time::Duration;

use accl_core::comm::Wish;
use accl_core::config::AlgorithmRules;
use accl_core::driver::Event;
use accl_core::engine::TimeLimits;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::config::{head, overlay, string};

/// Whose options of a call are ours ("AC"), and which there are: accl.h.
const VENDOR: i32 = 0x4143;
const TIMEOUT_MS: i32 = 1;
const WARN_AFTER_MS: i32 = 2;
const DETERMINISTIC: i32 = 3;
/// Accepted without an effect: calls of one communicator keep their order, and streams share nothing that could be given to one of them first.
const PRIORITY: i32 = 4;
/// A longer list is taken for one that ends in itself.
const MOST_OPTIONS: usize = 1024;

/// What the configuration of a call asks for.
#[derive(Debug, Default)]
pub(crate) struct CallConfig {
    pub(crate) limits: Option<TimeLimits>,
    pub(crate) wish: Wish,
    /// An event of the program that tells when the call has been launched.
    pub(crate) launched: Option<Event>,
}

/// Reads and checks the configuration of one collective.
///
/// # Safety
/// `config` points to as many bytes as its `size` says, and its strings end with NUL and its list with NULL.
pub(crate) unsafe fn read(config: *const ncclCollConfig_t) -> Result<CallConfig> {
    // 2.31, the first release with this struct, ended it before the event.
    const SMALLEST_BYTES: usize = std::mem::offset_of!(ncclCollConfig_t, launchCompletionEvent);
    // SAFETY: the struct always had a head.
    let head = unsafe { head(config) };
    if head.magic != NCCL_API_MAGIC || head.size < SMALLEST_BYTES {
        return Err(Error::argument(format!(
            "the ncclCollConfig_t was not initialized: magic {:#x} and size {}, needed {NCCL_API_MAGIC:#x} and at \
             least {SMALLEST_BYTES}; start from NCCL_COLL_CONFIG_INITIALIZER",
            head.magic, head.size
        )));
    }
    // SAFETY: all bits zero are a valid value of this plain data.
    let nothing = unsafe { MaybeUninit::<ncclCollConfig_t>::zeroed().assume_init() };
    // SAFETY: the same promise; the struct is plain data.
    let fields = unsafe { overlay(config, nothing) };
    if !(0..=1).contains(&fields.forceAlgSelection) {
        return Err(Error::argument(format!(
            "forceAlgSelection of the ncclCollConfig_t is {}; 0 and 1 are allowed",
            fields.forceAlgSelection
        )));
    }
    let mut read = CallConfig::default();
    if head.version >= 23200 && !fields.launchCompletionEvent.is_null() {
        read.launched = Some(Event(fields.launchCompletionEvent as usize));
    }
    // SAFETY: the same promise: a string or NULL.
    let selection = unsafe { string(fields.algSelection) }.unwrap_or_default();
    read.wish.algorithms = AlgorithmRules::parse(&selection)
        .map_err(|error| error.within(format!("algSelection \"{selection}\" of the ncclCollConfig_t")))?;
    read.wish.forced = fields.forceAlgSelection == 1;
    // SAFETY: promised.
    unsafe { read_options(fields.ext, &mut read) }?;
    Ok(read)
}

/// What a vendor list sets; entries of others are ignored (§3.3).
///
/// # Safety
/// Each entry is a whole one.
unsafe fn read_options(mut entry: *const ncclConfigExt, read: &mut CallConfig) -> Result<()> {
    for _ in 0..MOST_OPTIONS {
        // SAFETY: promised; NULL ends the list.
        let Some(option) = (unsafe { entry.as_ref() }) else { return Ok(()) };
        entry = option.next;
        if option.key.vendorId == VENDOR {
            // SAFETY: all options have whole numbers; any bits are one.
            set(read, option.key.optionId, unsafe { option.val.i })?;
        }
    }
    Err(Error::argument(format!(
        "the list ext of the ncclCollConfig_t has more than {MOST_OPTIONS} entries: end it with NULL"
    )))
}

fn set(read: &mut CallConfig, option: i32, value: i32) -> Result<()> {
    let mut limits = read.limits.unwrap_or_default();
    let limit = match option {
        TIMEOUT_MS => &mut limits.timeout,
        WARN_AFTER_MS => &mut limits.warn_after,
        DETERMINISTIC if (0..=1).contains(&value) => {
            read.wish.deterministic = value == 1;
            return Ok(());
        }
        DETERMINISTIC => {
            return Err(Error::argument(format!(
                "option {option} of ACCL-P (deterministic) has {value}; 0 and 1 are allowed"
            )));
        }
        PRIORITY => return Ok(()),
        other => {
            return Err(Error::argument(format!(
                "ACCL-P has no option {other} of a call; accl.h lists those that there are"
            )));
        }
    };
    let Ok(ms) = u64::try_from(value) else {
        return Err(Error::argument(format!(
            "option {option} of ACCL-P has {value} ms; 0 (no limit) or more is needed"
        )));
    };
    *limit = Some((ms > 0).then(|| Duration::from_millis(ms)));
    read.limits = Some(limits);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UNDEFINED;
    use accl_core::ErrorKind;
    use accl_core::types::Collective;

    fn collective(size: usize, version: u32) -> ncclCollConfig_t {
        ncclCollConfig_t {
            size,
            magic: NCCL_API_MAGIC,
            version,
            ext: std::ptr::null_mut(),
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            nvlsCTAs: UNDEFINED,
            cgaClusterSize: UNDEFINED,
            algSelection: std::ptr::null(),
            forceAlgSelection: 1,
            CTAPolicy: UNDEFINED,
            userProfilerTag: 0,
            launchCompletionEvent: std::ptr::null_mut(),
        }
    }

    /// What a list of one option sets.
    fn with_option(vendor: i32, option: i32, value: i32) -> Result<CallConfig> {
        let mut entry = ncclConfigExt {
            next: std::ptr::null_mut(),
            key: ncclConfigExt__bindgen_ty_1 { vendorId: vendor, optionId: option },
            val: ncclConfigExt__bindgen_ty_2 { i: value },
        };
        // SAFETY: a whole struct, and a list of one entry.
        unsafe { read(&ncclCollConfig_t { ext: &raw mut entry, ..collective(72, 23203) }) }
    }

    fn check(config: &ncclCollConfig_t) -> Option<ErrorKind> {
        // SAFETY: a whole struct, with constant strings.
        unsafe { read(config) }.err().map(|error| error.kind())
    }

    #[test]
    fn a_call_can_set_time_limits() {
        let limits = |vendor, option, value| with_option(vendor, option, value).map(|read| read.limits);
        let timeout = |limit| Some(TimeLimits { timeout: Some(limit), warn_after: None });
        let warn = |limit| Some(TimeLimits { timeout: None, warn_after: Some(limit) });
        assert_eq!(limits(VENDOR, 1, 1500).unwrap(), timeout(Some(Duration::from_millis(1500))));
        assert_eq!(limits(VENDOR, 1, 0).unwrap(), timeout(None));
        assert_eq!(limits(VENDOR, 2, 10).unwrap(), warn(Some(Duration::from_millis(10))));
        // Options of others are theirs.
        assert_eq!(limits(VENDOR + 1, 77, -1).unwrap(), None);
        for (option, value) in [(1, -1), (2, i32::MIN), (0, 5), (3, 5), (3, -1), (5, 0)] {
            let error = limits(VENDOR, option, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn a_call_can_be_deterministic() {
        for (option, value, expected) in [(3, 1, true), (3, 0, false), (4, 7, false), (4, -7, false)] {
            let read = with_option(VENDOR, option, value).unwrap();
            assert_eq!((read.wish.deterministic, read.limits), (expected, None), "{option} {value}");
        }
    }

    #[test]
    fn a_list_without_an_end_is_refused() {
        let mut ring = [ncclConfigExt {
            next: std::ptr::null_mut(),
            key: ncclConfigExt__bindgen_ty_1 { vendorId: 1, optionId: 1 },
            val: ncclConfigExt__bindgen_ty_2 { i: 0 },
        }];
        let first = ring.as_mut_ptr();
        // SAFETY: its own entry.
        unsafe { (*first).next = first };
        assert_eq!(
            check(&ncclCollConfig_t { ext: first, ..collective(72, 23203) }),
            Some(ErrorKind::InvalidArgument)
        );
    }

    #[test]
    fn the_configuration_of_a_call_is_checked() {
        assert_eq!(check(&collective(72, 23203)), None);
        assert_eq!(check(&collective(64, 23102)), None);
        assert_eq!(check(&collective(56, 23102)), Some(ErrorKind::InvalidArgument));
        let magic = ncclCollConfig_t { magic: 1, ..collective(72, 23203) };
        assert_eq!(check(&magic), Some(ErrorKind::InvalidArgument));
        for force in [-1, 2, UNDEFINED] {
            let bad = ncclCollConfig_t { forceAlgSelection: force, ..collective(72, 23203) };
            assert_eq!(check(&bad), Some(ErrorKind::InvalidArgument));
        }
        let event =
            ncclCollConfig_t { launchCompletionEvent: std::ptr::dangling_mut(), ..collective(72, 23203) };
        // SAFETY: a whole struct, with no strings.
        let launched = |config: &ncclCollConfig_t| unsafe { read(config) }.unwrap().launched;
        assert_eq!(launched(&event), Some(Event(event.launchCompletionEvent as usize)));
        assert_eq!(launched(&ncclCollConfig_t { size: 64, version: 23102, ..event }), None);
        assert_eq!(launched(&collective(72, 23203)), None);
    }

    #[test]
    fn algorithms_are_named_as_in_the_setting() {
        let ring = ncclCollConfig_t { algSelection: c"Ring,PAT".as_ptr(), ..collective(72, 23203) };
        // SAFETY: a whole struct, with a constant string.
        let read = unsafe { read(&ring) }.unwrap();
        assert!(read.wish.forced && read.wish.algorithms.allow(Collective::AllReduce, "ring"));
        assert!(!read.wish.algorithms.allow(Collective::AllReduce, "direct"));
        // SAFETY: the same.
        let wish = unsafe { super::read(&ncclCollConfig_t { forceAlgSelection: 0, ..ring }) }.unwrap().wish;
        assert!(!wish.forced && !wish.algorithms.is_open(Collective::AllReduce));
        for nothing in [c"".as_ptr(), std::ptr::null()] {
            // SAFETY: the same.
            let open = unsafe { super::read(&ncclCollConfig_t { algSelection: nothing, ..ring }) }.unwrap();
            assert!(open.wish.algorithms.is_open(Collective::AllReduce));
        }
        for force in [0, 1] {
            let typo = ncclCollConfig_t { algSelection: c"rign".as_ptr(), forceAlgSelection: force, ..ring };
            assert_eq!(check(&typo), Some(ErrorKind::InvalidArgument));
        }
    }
}
