//! Random bytes from the kernel.

use crate::error::{Error, Result};

/// `N` random bytes that nobody can guess.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut buffer = [0u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut buffer[filled..];
        match rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("no random bytes from the kernel", errno)),
        }
    }
    Ok(buffer)
}
