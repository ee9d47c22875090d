//! Statistics of repeated times.

/// What a list of times says, in the unit of its entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) avg: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) stdev: f64,
    /// Standard deviation in percent of the average.
    pub(crate) cv_pct: f64,
}

impl Summary {
    /// None for no times at all.
    pub(crate) fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len() as f64;
        let avg = sorted.iter().sum::<f64>() / count;
        let stdev = (sorted.iter().map(|time| (time - avg).powi(2)).sum::<f64>() / count).sqrt();
        let middle = sorted.len() / 2;
        let p50 =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        let cv_pct = if avg > 0.0 { 100.0 * stdev / avg } else { 0.0 };
        Some(Self { min, max, avg, p50, p95: tail(&sorted, 0.95), p99: tail(&sorted, 0.99), stdev, cv_pct })
    }
}

/// The value that at least the share 1−p of all times reaches: what happens once in a hundred calls is in p99.
fn tail(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).floor() as usize;
    sorted[at.min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&times).unwrap();
        assert_eq!((summary.min, summary.max, summary.avg), (1.0, 100.0, 50.5));
        assert_eq!((summary.p50, summary.p95, summary.p99), (50.5, 96.0, 100.0));
        assert!((summary.stdev - 28.866).abs() < 1e-3);
    }

    #[test]
    fn one_slow_call_in_a_hundred_is_in_the_tail_only() {
        let mut times = vec![10.0; 198];
        times.extend([15.0, 15.0]);
        let summary = Summary::of(&times).unwrap();
        assert_eq!((summary.p50, summary.p95, summary.p99, summary.max), (10.0, 10.0, 15.0, 15.0));
    }

    #[test]
    fn of_one_and_of_none() {
        assert_eq!(Summary::of(&[3.0]).unwrap().p99, 3.0);
        assert_eq!(Summary::of(&[]), None);
    }
}
