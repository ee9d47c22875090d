//! Processors: how many there are for this process, and on which one a thread runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors in this process's affinity mask, at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processors for ranks that are processes like this one: those of its mask; those of the machine if the mask has just
/// one, since launchers give each rank one of its own.
pub fn shared_cores() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let online = || text.ok().and_then(|text| count_of_ranges(text.trim()));
    if allowed().len() > 1 { available_cores() } else { online().unwrap_or(1) }
}

/// How many numbers a list such as "0-3,8" names.
fn count_of_ranges(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').map(count).try_fold(0, |sum: usize, count| sum.checked_add(count?))
}

/// The numbers of the processors that the calling thread may use; empty where the kernel does not say.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Has the calling thread run on these processors only; false where that is not possible.
pub fn run_on(cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).is_ok()
}

/// Bytes of one core's second-level cache, if the kernel says.
pub fn level2_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").ok()?;
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Lets another thread run, when spinning has lasted too long.
pub fn yield_now() {
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        let expected = [("0", Some(1)), ("0-3,8", Some(5)), ("", None), ("3-1", None), ("0-x", None)];
        for (list, count) in expected {
            assert_eq!(count_of_ranges(list), count, "{list}");
        }
    }

    #[test]
    fn a_thread_runs_where_it_is_told_to() {
        let thread = std::thread::spawn(|| {
            let all = allowed();
            assert!(run_on(&all[..1]));
            let one = allowed();
            assert!(!run_on(&[]), "nowhere");
            (all, one)
        });
        let (all, one) = thread.join().unwrap();
        assert_eq!(one, all[..1]);
        assert!(shared_cores() >= 1 && available_cores() <= all.len());
    }
}
