//! Who sits where: what one process says of itself, which ranks share a host, and what the machine is like.

mod interfaces;
mod machine;
mod uplink;

pub use interfaces::{
    Candidate, Route, candidates, interface_of, interface_towards, is_link_local, routes, targets,
};
pub use machine::{FIGURES, Figure, Machine, Unit};
pub use uplink::{Uplink, Wire};

use crate::os::{process, random};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::{Error, Result};
use std::sync::OnceLock;

/// What a process tells its peers so that they can find out what they share with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Place {
    /// The running kernel: equal for all processes that could share memory.
    pub kernel: u64,
    /// The network namespace: local sockets reach no further.
    pub network: u64,
    /// The PID namespace: process numbers mean nothing outside.
    pub pid_namespace: u64,
    /// The process number in that namespace.
    pub pid: u32,
    /// A random number: equal only for ranks of one process, and the same each time that process is asked.
    pub process: u64,
}

impl Place {
    /// This process's place. An error (System) if it cannot be found out now, as without a free file descriptor;
    /// nothing is kept of that, and asking again may succeed.
    pub fn here() -> Result<Self> {
        static FACTS: OnceLock<Place> = OnceLock::new();
        let place = match FACTS.get() {
            Some(place) => *place,
            None => {
                let measured = Self::measure()?;
                *FACTS.get_or_init(|| measured)
            }
        };
        Ok(if place.pid == process::id() { place } else { place.of_child() })
    }

    fn measure() -> Result<Self> {
        Ok(Self {
            kernel: boot_identity()?,
            network: process::network_namespace(),
            pid_namespace: process::pid_namespace(),
            pid: process::id(),
            process: u64::from_ne_bytes(random::bytes()?),
        })
    }

    /// The place of a forked child, made from its parent's: it must not pass for the parent, and must say the same
    /// whenever it is asked. No lock is taken: another thread of the parent may have held it.
    fn of_child(&self) -> Self {
        let (pid, pid_namespace) = (process::id(), process::pid_namespace());
        let number = self.process ^ u64::from(pid) ^ pid_namespace.rotate_left(32);
        Self {
            network: process::network_namespace(),
            pid_namespace,
            pid,
            process: fnv1a(&number.to_le_bytes()),
            ..*self
        }
    }

    /// One number for kernel and network namespace: those for whom it is equal meet at local sockets.
    pub fn neighbourhood(&self) -> u64 {
        fnv1a(&[self.kernel.to_le_bytes(), self.network.to_le_bytes()].concat())
    }

    /// The local address of the process's service.
    pub fn service_name(&self) -> String {
        format!("accl-{}-{:016x}", self.pid, self.process)
    }

    /// True if both can map the same nameless file, handed over by a local socket.
    pub fn shares_host(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.network == other.network
    }

    /// True if both are threads of one process.
    pub fn shares_process(&self, other: &Self) -> bool {
        self.process == other.process && self.pid == other.pid && self.kernel == other.kernel
    }

    /// True if process numbers of one mean the same to the other.
    pub fn shares_pids(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.pid_namespace == other.pid_namespace
    }
}

/// A word of this process that holds [`Place::process`]: peers that can read it can read our memory.
pub fn probe_word() -> Result<&'static AtomicU64> {
    static PROBE: AtomicU64 = AtomicU64::new(0);
    PROBE.store(Place::here()?.process, Ordering::Release);
    Ok(&PROBE)
}

/// A hash of the kernel's boot identity, the same for all where `/proc` does not show one.
pub fn boot_identity() -> Result<u64> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = match std::fs::read_to_string(FILE) {
        Err(error) if process::lacks_resources(&error) => {
            return Err(Error::system(format_args!("cannot read {FILE}"), error));
        }
        text => text.unwrap_or_default(),
    };
    Ok(fnv1a(text.trim().as_bytes()))
}

/// A number that is equal where the bytes are; nothing more is asked of it.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_itself_and_not_its_parent() {
        let parent = Place { pid: 0, ..Place::here().unwrap() };
        let child = parent.of_child();
        assert_eq!(child, parent.of_child());
        assert!(!child.shares_process(&parent));
        assert_ne!(child.process, parent.process);
    }
}
