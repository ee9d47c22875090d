//! The environment switches, read once.
//!
//! | variable | what |
//! | --- | --- |
//! | `ACCL_SIM_DEVICES` | number of devices (2) |
//! | `ACCL_SIM_CAPACITY_MB` | memory of each device in MiB (8192) |
//! | `ACCL_SIM_COMPUTE` | compute capability, ten times major plus minor (90) |
//! | `ACCL_SIM_DRIVER_VERSION` | what the version functions say (13020) |
//! | `ACCL_SIM_TRACE` | a line for each call goes to this file (`-`: standard error) |
//! | `ACCL_SIM_COUNTS` | how often each function was called, and what was not freed (`live.…`), goes to this file at exit |
//! | `ACCL_SIM_FAIL` | `function:nth:code`, more of them after commas: that call fails so (nth counts from 1, `*` is each one); `kernel`, `copy` and `fill` fail in their stream, and take their context with them |
//! | `ACCL_SIM_DELAY_US` | each copy, fill and kernel takes that much longer |
//! | `ACCL_SIM_RANDOM_DELAY` | seed: stream threads dawdle, copies come in parts and kernels' threads take turns at random, which brings bugs of order to light |
//! | `ACCL_SIM_QUEUE` | how much a stream's queue holds (1024): whoever puts more on it waits until the device has done some; 0: no bound |
//! | `ACCL_SIM_POISON` | `1`: fresh device memory is full of 0xA5 |
//! | `ACCL_SIM_NO_MEMOPS` | `1`: devices say that they have no stream memory operations, and refuse them |
//! | `ACCL_SIM_NO_PEER` | `1`: devices can not access each other |
//! | `ACCL_SIM_NO_VMM` | `1`: devices have no virtual memory management |

use std::sync::OnceLock;

/// The switches.
#[derive(Debug)]
pub struct Config {
    /// Number of devices.
    pub devices: usize,
    /// Memory of each device.
    pub capacity_bytes: u64,
    /// Compute capability, major and minor.
    pub compute: (i32, i32),
    /// 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// File for calls.
    pub trace: Option<String>,
    /// File for counts of calls.
    pub counts: Option<String>,
    /// Calls that shall fail.
    pub failures: Vec<Failure>,
    /// Longer copies, fills and kernels.
    pub delay_us: u64,
    /// Seed of random delays.
    pub random_delay: Option<u64>,
    /// How many items a stream's queue holds; 0: any number.
    pub queue: usize,
    /// Fill fresh memory?
    pub poison: bool,
    /// Have stream memory operations?
    pub memops: bool,
    /// Can devices access each other?
    pub peer: bool,
    /// Have virtual memory management?
    pub vmm: bool,
}

/// One injected failure.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the function.
    pub function: String,
    /// Which call of it, from 1; `None` is each.
    pub nth: Option<u64>,
    /// What it returns.
    pub code: i32,
}

/// The switches of this process.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(Config::read)
}

impl Config {
    fn read() -> Self {
        let compute = number("ACCL_SIM_COMPUTE", 90) as i32;
        Self {
            devices: number("ACCL_SIM_DEVICES", 2) as usize,
            capacity_bytes: number("ACCL_SIM_CAPACITY_MB", 8192) << 20,
            compute: (compute / 10, compute % 10),
            driver_version: number("ACCL_SIM_DRIVER_VERSION", 13020) as i32,
            trace: std::env::var("ACCL_SIM_TRACE").ok(),
            counts: std::env::var("ACCL_SIM_COUNTS").ok(),
            failures: std::env::var("ACCL_SIM_FAIL").map_or_else(|_| Vec::new(), |text| failures(&text)),
            delay_us: number("ACCL_SIM_DELAY_US", 0),
            random_delay: std::env::var("ACCL_SIM_RANDOM_DELAY").ok().and_then(|text| text.parse().ok()),
            queue: number("ACCL_SIM_QUEUE", 1024) as usize,
            poison: number("ACCL_SIM_POISON", 0) != 0,
            memops: number("ACCL_SIM_NO_MEMOPS", 0) == 0,
            peer: number("ACCL_SIM_NO_PEER", 0) == 0,
            vmm: number("ACCL_SIM_NO_VMM", 0) == 0,
        }
    }
}

/// A wrong number is said aloud, for a test that believes to have set something else tests nothing.
fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| {
        eprintln!("accl-sim: {name}={text} is no number; {default} is used");
        default
    })
}

fn failures(text: &str) -> Vec<Failure> {
    let parsed = text.split(',').filter(|item| !item.is_empty()).map(|item| {
        let mut parts = item.split(':');
        let function = parts.next()?.to_owned();
        let nth = match parts.next()? {
            "*" => None,
            nth => Some(nth.parse().ok()?),
        };
        Some(Failure { function, nth, code: parts.next()?.parse().ok()? })
    });
    parsed.collect::<Option<Vec<_>>>().unwrap_or_else(|| {
        eprintln!("accl-sim: ACCL_SIM_FAIL={text} is not understood (function:nth:code,...)");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_parsed() {
        let expected = vec![
            Failure { function: "cuMemAlloc_v2".into(), nth: Some(3), code: 2 },
            Failure { function: "cuInit".into(), nth: None, code: 100 },
        ];
        assert_eq!(failures("cuMemAlloc_v2:3:2,cuInit:*:100"), expected);
        assert_eq!(failures("cuInit"), vec![]);
    }
}
