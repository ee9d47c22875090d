//! Processors: how many there are for this process, on which one a thread runs, and giving way.
#![allow(unsafe_code)]

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors in this process's affinity mask, at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The processor that the calling thread runs on; none where the system does not say.
pub fn current_core() -> Option<u32> {
    // SAFETY: the call takes nothing and only returns a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Processors for ranks that are processes like this one: those of its mask; those of the machine if the mask has just
/// one, since launchers give each rank one of its own.
pub fn shared_cores() -> usize {
    if allowed().len() > 1 { available_cores() } else { listed("online").map_or(1, |cpus| cpus.len()).max(1) }
}

/// Two processors that the calling thread may use, of different cores if possible.
pub fn pair() -> Option<[usize; 2]> {
    let all = allowed();
    let first = *all.first()?;
    let siblings = listed(&format!("cpu{first}/topology/thread_siblings_list")).unwrap_or_default();
    let second = all.iter().find(|cpu| **cpu != first && !siblings.contains(cpu)).or_else(|| all.get(1))?;
    Some([first, *second])
}

/// The numbers in one of the kernel's lists of processors.
fn listed(file: &str) -> Option<Vec<usize>> {
    numbers_of(std::fs::read_to_string(format!("/sys/devices/system/cpu/{file}")).ok()?.trim())
}

/// The numbers that a list such as "0-3,8" names, as far as an affinity mask could have them.
fn numbers_of(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        numbers.extend(first..=last.min(CpuSet::MAX_CPU));
    }
    Some(numbers)
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
    fn lists_of_processors_are_read() {
        assert_eq!(numbers_of("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(numbers_of("3-1"), Some(vec![]));
        assert_eq!(numbers_of("0-99999999999").map(|numbers| numbers.len()), Some(CpuSet::MAX_CPU + 1));
        assert_eq!([numbers_of(""), numbers_of("0-x")], [None, None]);
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
        assert_eq!(pair().map(|pair| pair[0]), all.get(1).map(|_| all[0]));
        assert!(shared_cores() >= 1 && available_cores() <= all.len());
    }
}
