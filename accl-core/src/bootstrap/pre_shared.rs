//! The key with which this process encrypts its connections, if it does.
//!
//! It comes from a file (the setting ENCRYPTION_KEY_FILE, which goes before) or from the program, and is the same for all communicators: it is
//! settled by the first connection, or the first communicator, and does not change afterwards.

use crate::config::Network;
use crate::encryption::Key;
use crate::error::{Error, Result};
use crate::os::network;
use crate::os::process;
use crate::telemetry;
use parking_lot::Mutex;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

/// A key of fewer bytes can be guessed.
const GOOD_BYTES: usize = 16;
/// A key file is no longer than this.
const MOST_BYTES: u64 = 4096;

/// What is known of the key.
#[derive(Debug)]
struct State {
    of_file: Option<Key>,
    of_program: Option<Key>,
    /// It has been used, or it has been used that there is none.
    is_settled: bool,
}

static STATE: Mutex<State> = Mutex::new(State { of_file: None, of_program: None, is_settled: false });

/// Has this process encrypt its connections with the key of these bytes, or not at all, unless the setting names a file. An error (InvalidUsage)
/// once there is a communicator, or a connection for one.
pub fn set_key(bytes: Option<&[u8]>) -> Result<()> {
    let key = bytes.map(|bytes| key_of(bytes, "the pre-shared key")).transpose()?;
    let mut state = STATE.lock();
    if state.is_settled {
        return Err(Error::usage(
            "encryption is chosen for a process as a whole, and this one has made connections already; call ncclSetEncryption before the \
             first communicator",
        ));
    }
    state.of_program = key;
    Ok(())
}

/// Settles whether this process encrypts its connections.
pub fn encrypts(settings: &Network) -> Result<bool> {
    read_key(settings)?;
    Ok(key().is_some())
}

/// True if this process encrypts its connections, which is settled from here on.
pub fn is_encrypted() -> bool {
    key().is_some()
}

/// Reads the key's file, if the settings name one and that was not done before.
pub(super) fn read_key(settings: &Network) -> Result<()> {
    let Some(path) = &settings.key_file else { return Ok(()) };
    let mut state = STATE.lock();
    if state.of_file.is_some() {
        return Ok(());
    }
    if state.is_settled {
        return Err(Error::usage(format!(
            "ACCL_ENCRYPTION_KEY_FILE={path} was set when this process had made connections without it; set it before the process starts"
        )));
    }
    state.of_file = Some(key_in(path)?);
    Ok(())
}

/// The key, which is settled from here on. None without encryption.
pub(super) fn key() -> Option<Key> {
    let mut state = STATE.lock();
    state.is_settled = true;
    state.of_file.as_ref().or(state.of_program.as_ref()).cloned()
}

/// This process, for texts about keys.
pub(super) fn here() -> String {
    format!("process {} on host {}", process::id(), network::host_name())
}

fn key_in(path: &str) -> Result<Key> {
    let what = format!("cannot read ACCL_ENCRYPTION_KEY_FILE={path}");
    let refused = |error| Error::system(&what, error);
    let file = std::fs::File::open(path).map_err(refused)?;
    let mode = file.metadata().map_err(refused)?.permissions().mode();
    if mode & 0o077 != 0 {
        telemetry::warn(&format!(
            "ACCL_ENCRYPTION_KEY_FILE={path} has mode {:04o}: other users may learn the key; chmod 600 keeps it to its owner",
            mode & 0o7777
        ));
    }
    let mut bytes = Vec::with_capacity(MOST_BYTES as usize + 1);
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(refused)?;
    let key = if bytes.len() as u64 > MOST_BYTES {
        Err(Error::argument(format!(
            "{what}: need at most {MOST_BYTES} bytes, as `openssl rand -hex 32` writes them"
        )))
    } else {
        key_of(bytes.trim_ascii_end(), &format!("the key in ACCL_ENCRYPTION_KEY_FILE={path}"))
    };
    bytes.fill(0);
    black_box(&bytes);
    key
}

fn key_of(bytes: &[u8], what: &str) -> Result<Key> {
    if bytes.is_empty() {
        return Err(Error::argument(format!(
            "{what} is empty; need some that nobody can guess, as `openssl rand -hex 32` writes them"
        )));
    }
    if bytes.len() < GOOD_BYTES {
        telemetry::warn(&format!(
            "{what} has {} bytes: who records connections may find it by trying; use {GOOD_BYTES} bytes of chance or more, as `openssl rand -hex \
             32` writes them",
            bytes.len()
        ));
    }
    Ok(Key::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_have_no_key_are_refused_and_say_why() {
        let directory = std::env::temp_dir().join(format!("accl-key-{}", process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("key").display().to_string();
        let refused = |words: &str| {
            let error = key_in(&path).unwrap_err();
            assert!(error.text().contains(&path) && error.text().contains(words), "{error}");
        };
        refused("cannot read");
        std::fs::write(&path, " \n").unwrap();
        refused("is empty");
        std::fs::write(&path, vec![b'x'; MOST_BYTES as usize + 1]).unwrap();
        refused("at most 4096 bytes");
        std::fs::write(&path, "the key of a test\n").unwrap();
        let (read, given) = (key_in(&path).unwrap(), Key::new(b"the key of a test"));
        let end = crate::encryption::End::Dialler;
        assert_eq!(read.prove(end, b""), given.prove(end, b""), "the end of the line is none of it");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
