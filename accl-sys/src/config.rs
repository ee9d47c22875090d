//! `ncclConfig_t`, a struct that grew with the releases, written by clients of any age; `call_config` has that of a call.
//!
//! A client's struct is as long as it says, and holds what its release knew: fields that are younger than the
//! stamp are undefined even where padding let their bytes be copied.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use accl_core::comm::CommConfig;
use accl_core::types::Face;
use accl_core::{Error, Result};

use crate::abi::*;

/// `NCCL_CONFIG_UNDEF_INT`: the client did not set the field. (INT_MIN is beyond what bindgen evaluates.)
pub(crate) const UNDEFINED: i32 = i32::MIN;

/// The release of NCCL whose `ncclConfig_t` is laid out as the `pcclConfig_t` of `include/pccl.h`.
const PCCL_CONFIG_LEVEL: u32 = 22703;

/// The first `ncclConfig_t` ended after `blocking`.
const SMALLEST_CONFIG_BYTES: usize = 24;

/// The configuration of a communicator that is made from nothing.
///
/// # Safety
/// `config` is NULL or points to as many bytes as its `size` says, and its strings end with NUL.
pub unsafe fn for_init(face: Face, config: *const ncclConfig_t) -> Result<CommConfig> {
    crate::plugins::offer_networks();
    // SAFETY: the same promise.
    let given = unsafe { for_child(face, config) }?;
    Ok(given.unwrap_or_else(|| CommConfig { face, ..CommConfig::default() }))
}

/// The configuration of a communicator that is made from another: `None` means the parent's.
///
/// # Safety
/// As for [`for_init`].
pub unsafe fn for_child(face: Face, config: *const ncclConfig_t) -> Result<Option<CommConfig>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: the same promise.
    let fields = unsafe { fields(face, config) }?;
    validate(&fields)?;
    let parsed = CommConfig {
        blocking: fields.blocking != 0,
        face,
        // SAFETY: the same promise: a string or NULL.
        name: unsafe { string(fields.commName) },
        // SAFETY: the same.
        network: unsafe { string(fields.netName) }.filter(|name| !name.is_empty()),
        ..CommConfig::default()
    };
    Ok(Some(parsed))
}

/// # Safety
/// `text` is NULL or a string that ends with NUL.
pub(crate) unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a string.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

const NOTHING_SET: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: NCCL_STRUCT_VERSION_CODE,
    blocking: UNDEFINED,
    cgaClusterSize: UNDEFINED,
    minCTAs: UNDEFINED,
    maxCTAs: UNDEFINED,
    netName: std::ptr::null(),
    splitShare: UNDEFINED,
    trafficClass: UNDEFINED,
    commName: std::ptr::null(),
    collnetEnable: UNDEFINED,
    CTAPolicy: UNDEFINED,
    shrinkShare: UNDEFINED,
    nvlsCTAs: UNDEFINED,
    nChannelsPerNetPeer: UNDEFINED,
    nvlinkCentricSched: UNDEFINED,
    graphUsageMode: UNDEFINED,
    numRmaCtx: UNDEFINED,
    maxP2pPeers: UNDEFINED,
    graphStreamOrdering: UNDEFINED,
    launchOrderImplicit: UNDEFINED,
    numRmaSig: UNDEFINED,
    rmaEagerInit: UNDEFINED,
    hostCftMode: UNDEFINED,
    nvlsHostMode: UNDEFINED,
};

/// The head that all structs with a version have in common, and that decides how much of the rest is there.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
}

/// # Safety
/// `config` is not NULL and points to at least a head.
pub(crate) unsafe fn head<T>(config: *const T) -> Head {
    // SAFETY: just promised.
    unsafe { config.cast::<Head>().read_unaligned() }
}

/// Lays what the client has of a struct over `whole`, its state with nothing set.
///
/// # Safety
/// `config` points to as many bytes as its head says, `T` is plain data that starts with a head.
pub(crate) unsafe fn overlay<T>(config: *const T, whole: T) -> T {
    // SAFETY: promised.
    let bytes = unsafe { head(config) }.size.min(size_of::<T>());
    let mut whole = MaybeUninit::new(whole);
    // SAFETY: `bytes` fit both; the client's struct and ours do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(config.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), bytes) };
    // SAFETY: it was whole before, and any bytes are a valid value of plain data.
    unsafe { whole.assume_init() }
}

/// What the client set: nothing beyond its size, nothing younger than its version (§3.2, steps 2 to 4).
///
/// # Safety
/// `config` is not NULL; otherwise as for [`for_init`].
unsafe fn fields(face: Face, config: *const ncclConfig_t) -> Result<ncclConfig_t> {
    // SAFETY: every ncclConfig_t that ever was has a head.
    let head = unsafe { head(config) };
    if head.magic != NCCL_API_MAGIC || head.size < SMALLEST_CONFIG_BYTES {
        return Err(Error::argument(format!(
            "the {}Config_t was not initialized: magic {:#x} and size {}, needed {NCCL_API_MAGIC:#x} and at least \
             {SMALLEST_CONFIG_BYTES}; start from {}_CONFIG_INITIALIZER of this library's header",
            face.prefix(),
            head.magic,
            head.size,
            face.library()
        )));
    }
    // SAFETY: the same promise; ncclConfig_t is plain data.
    let mut fields = unsafe { overlay(config, NOTHING_SET) };
    if face == Face::Pccl {
        // PCCL has numbers of its own; pccl.h gives the struct the fields of this release.
        fields.version = PCCL_CONFIG_LEVEL;
    }
    forget_younger(&mut fields);
    Ok(fields)
}

/// Undefines the fields that came after the client's release.
fn forget_younger(fields: &mut ncclConfig_t) {
    let version = fields.version;
    if version < 21700 {
        fields.netName = std::ptr::null();
    }
    let since = [
        (21400, &mut fields.blocking),
        (21700, &mut fields.cgaClusterSize),
        (21700, &mut fields.minCTAs),
        (21700, &mut fields.maxCTAs),
        // NCCL says 2.25, but headers before 2.26 have padding there, with whatever was on the stack.
        (22600, &mut fields.trafficClass),
        (22700, &mut fields.collnetEnable),
        (22700, &mut fields.CTAPolicy),
        (22700, &mut fields.shrinkShare),
        (22700, &mut fields.nvlsCTAs),
        (22800, &mut fields.nChannelsPerNetPeer),
        (22800, &mut fields.nvlinkCentricSched),
        (22900, &mut fields.graphUsageMode),
        (22900, &mut fields.numRmaCtx),
        (23000, &mut fields.maxP2pPeers),
        (23005, &mut fields.graphStreamOrdering),
        (23100, &mut fields.launchOrderImplicit),
        (23100, &mut fields.numRmaSig),
        (23100, &mut fields.rmaEagerInit),
        (23100, &mut fields.hostCftMode),
        (23200, &mut fields.nvlsHostMode),
    ];
    for (first_version, field) in since {
        if version < first_version {
            *field = UNDEFINED;
        }
    }
}

/// Refuses values out of range (§3.2, step 5). Fields without an effect in host memory are checked all the same:
/// a program that is wrong on a device should hear it here.
fn validate(fields: &ncclConfig_t) -> Result<()> {
    let ranges = [
        ("blocking", fields.blocking, 0, 1),
        ("cgaClusterSize", fields.cgaClusterSize, 0, i32::MAX),
        ("minCTAs", fields.minCTAs, 1, i32::MAX),
        ("maxCTAs", fields.maxCTAs, 1, i32::MAX),
        ("splitShare", fields.splitShare, 0, 1),
        ("collnetEnable", fields.collnetEnable, 0, 1),
        ("CTAPolicy", fields.CTAPolicy, 0, (NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO).cast_signed()),
        ("shrinkShare", fields.shrinkShare, 0, 1),
        ("nvlsCTAs", fields.nvlsCTAs, 1, i32::MAX),
        ("nChannelsPerNetPeer", fields.nChannelsPerNetPeer, 1, 64),
        ("nvlinkCentricSched", fields.nvlinkCentricSched, 0, 1),
        ("graphUsageMode", fields.graphUsageMode, 0, 2),
        ("numRmaCtx", fields.numRmaCtx, 0, i32::MAX),
        ("maxP2pPeers", fields.maxP2pPeers, 1, i32::MAX),
        ("graphStreamOrdering", fields.graphStreamOrdering, 0, 1),
        ("hostCftMode", fields.hostCftMode, ncclHostCftEnable, ncclHostCftFallback),
    ];
    for (name, value, low, high) in ranges {
        if value != UNDEFINED && !(low..=high).contains(&value) {
            return Err(Error::argument(format!(
                "{name} of the configuration is {value}; {low} to {high} are allowed, or leave it undefined"
            )));
        }
    }
    let both_set = fields.minCTAs != UNDEFINED && fields.maxCTAs != UNDEFINED;
    if both_set && fields.minCTAs > fields.maxCTAs {
        return Err(Error::argument(format!(
            "minCTAs of the configuration is {} and maxCTAs {}; the smaller must not be larger",
            fields.minCTAs, fields.maxCTAs
        )));
    }
    let both_parts = ncclNvlsHostModeDisableTransport | ncclNvlsHostModeDisableSymmetricMultimem;
    let ends = [ncclNvlsHostModeDefault, ncclNvlsHostModeDisable];
    if !ends.contains(&fields.nvlsHostMode) && !(0..=both_parts).contains(&fields.nvlsHostMode) {
        return Err(Error::argument(format!(
            "nvlsHostMode of the configuration is {}; pass a mask of ncclNvlsHostMode_t",
            fields.nvlsHostMode
        )));
    }
    Ok(())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
