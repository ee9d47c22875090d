//! What there is to know about this machine.

use std::time::Instant;

pub(crate) fn host() -> String {
    let mut name = [0u8; 256];
    // SAFETY: The buffer has that many bytes; the last stays zero.
    let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let text = String::from_utf8_lossy(&name).trim_end_matches('\0').to_string();
    if code != 0 || text.is_empty() { "localhost".into() } else { text }
}

/// The processor's model, as the kernel calls it.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches(['\t', ' ', ':']).to_string());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// Bytes that new memory can take: of the machine, and of the control group we are in.
pub(crate) fn available_bytes() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<usize>().ok()?.saturating_mul(1024);
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .map(|limit| limit.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(group.map_or(machine, |group| group.min(machine)))
}

/// Bytes of this process that are in memory.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU seconds of all threads of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: Writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The local time of day, "2026-01-31 23:59:59".
pub(crate) fn timestamp() -> String {
    // SAFETY: Null means: only return it.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: Both pointers are valid; zeroes are a valid struct should the call fail.
    let parts = unsafe {
        libc::localtime_r(&now, parts.as_mut_ptr());
        parts.assume_init()
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec
    )
}

/// Bytes a second that one core copies from memory to memory: the best of some tries, after the pages are there.
pub(crate) fn copy_bytes_per_second(bytes: usize) -> f64 {
    let source = vec![1u8; bytes];
    let mut target = vec![0u8; bytes];
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        let begin = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        best = best.min(begin.elapsed().as_secs_f64());
    }
    bytes as f64 / best.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_there() {
        assert!(!host().is_empty() && !processor().is_empty());
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
        assert!(resident_bytes() > 0);
        assert_eq!(timestamp().len(), 19);
        assert!(copy_bytes_per_second(1 << 16) > 0.0);
    }
}
