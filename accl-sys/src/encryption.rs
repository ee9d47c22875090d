//! Encryption of the library's connections: a matter of the process, not of a communicator.

use std::ffi::CStr;

use accl_core::{Error, comm};

use crate::abi::*;
use crate::{config, handle};

/// The first release with the struct.
const FIRST_VERSION: u32 = 23203;

face! {
    /// Encrypts what goes over TCP from here on with a key that all processes have, or (NCCL_ENCRYPTION_MODE_NONE) does not.
    fn set[ncclSetEncryption, pncclSetEncryption](config: *const ncclEncryptionConfig_t) {
        handle::required(config, "config")?;
        // SAFETY: not NULL, and the header asks for a valid pointer.
        let head = unsafe { config::head(config) };
        let needed_bytes = size_of::<ncclEncryptionConfig_t>();
        if head.magic != NCCL_API_MAGIC || head.size < needed_bytes || head.version < FIRST_VERSION {
            return Err(Error::argument(format!(
                "the ncclEncryptionConfig_t was not initialized: magic {:#x}, size {} and version {}, needed {NCCL_API_MAGIC:#x}, at least \
                 {needed_bytes} and at least {FIRST_VERSION}; start from NCCL_ENCRYPTION_CONFIG_INITIALIZER",
                head.magic, head.size, head.version
            )));
        }
        // SAFETY: it is as large as it says, and plain data.
        let fields = unsafe { config.read_unaligned() };
        match u32::try_from(fields.mode) {
            Ok(NCCL_ENCRYPTION_MODE_NONE) => comm::set_encryption_key(None),
            Ok(NCCL_ENCRYPTION_MODE_PSK) if fields.psk.is_null() => Err(Error::argument(
                "psk of the ncclEncryptionConfig_t is NULL, and NCCL_ENCRYPTION_MODE_PSK needs a key that all processes of the job have",
            )),
            Ok(NCCL_ENCRYPTION_MODE_PSK) => {
                // SAFETY: not NULL, and the header asks for a string that ends with NUL.
                let key = unsafe { CStr::from_ptr(fields.psk) };
                comm::set_encryption_key(Some(key.to_bytes()))
            }
            _ => Err(Error::argument(format!(
                "mode of the ncclEncryptionConfig_t is {}; NCCL_ENCRYPTION_MODE_NONE and NCCL_ENCRYPTION_MODE_PSK are allowed",
                fields.mode
            ))),
        }
    }
}
