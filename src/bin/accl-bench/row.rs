//! From what all ranks measured to one row: the time reported, bandwidths, wrong elements, spread.

use crate::message::{CaseReport, Explained, Measured};
use crate::stats::Summary;
use crate::test::Test;

/// One placement of one case.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) time_us: f64,
    /// GB/s, 10^9 bytes.
    pub(crate) algbw: f64,
    /// None for one rank: nothing crosses between ranks.
    pub(crate) busbw: Option<f64>,
    /// None without verification.
    pub(crate) wrong: Option<u64>,
    /// Each rank's own time.
    pub(crate) ranks_us: Vec<f64>,
    /// With -I.
    pub(crate) spread: Option<Spread>,
}

/// What single iterations show.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    /// Over iterations, each as slow as its slowest rank.
    pub(crate) summary: Summary,
    pub(crate) times_us: Vec<f64>,
    pub(crate) skipped: usize,
    /// Each rank's own iterations.
    pub(crate) ranks: Vec<Summary>,
}

impl Spread {
    /// The rank whose tail stands out most, and by how much: its p99 over the median of the ranks' p99.
    pub(crate) fn slowest(&self) -> Option<(usize, f64)> {
        let mut tails: Vec<f64> = self.ranks.iter().map(|rank| rank.p99).collect();
        let (rank, &worst) = tails.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1))?;
        tails.sort_by(f64::total_cmp);
        // The lower median: of two ranks, the other one.
        let typical = tails[(tails.len() - 1) / 2];
        Some((rank, worst / typical.max(1e-9)))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) size_bytes: usize,
    pub(crate) count_elems: usize,
    pub(crate) kind: String,
    pub(crate) op: String,
    pub(crate) root: i32,
    pub(crate) out_of_place: Placement,
    pub(crate) in_place: Option<Placement>,
    /// As rank 0 says; all choose the same.
    pub(crate) explained: Option<Explained>,
    pub(crate) timestamp: String,
}

/// How rows are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) test: Test,
    /// Of the group that works together.
    pub(crate) ranks: usize,
    /// -a: 0 rank 0's time, 1 average, 2 min, 3 max.
    pub(crate) average: u8,
    pub(crate) skip: usize,
}

impl Rule {
    /// The row of a case, from the reports of all ranks, in their order.
    pub(crate) fn row(&self, reports: &[CaseReport], timestamp: String) -> Option<Row> {
        let first = reports.first()?;
        let size = first.size_bytes;
        let out: Vec<&Measured> = reports.iter().map(|report| &report.out_of_place).collect();
        let in_place: Option<Vec<&Measured>> =
            reports.iter().map(|report| report.in_place.as_ref()).collect();
        Some(Row {
            size_bytes: size,
            count_elems: first.count_elems,
            kind: first.kind.clone(),
            op: first.op.clone(),
            root: first.root,
            out_of_place: self.placement(size, &out),
            in_place: in_place.map(|measured| self.placement(size, &measured)),
            explained: first.explained.clone(),
            timestamp,
        })
    }

    fn placement(&self, size_bytes: usize, measured: &[&Measured]) -> Placement {
        let ranks_us: Vec<f64> = measured.iter().map(|one| one.seconds * 1e6).collect();
        let time_us = match self.average {
            0 => ranks_us.first().copied().unwrap_or(0.0),
            1 => ranks_us.iter().sum::<f64>() / ranks_us.len().max(1) as f64,
            2 => ranks_us.iter().copied().fold(f64::INFINITY, f64::min),
            _ => ranks_us.iter().copied().fold(0.0, f64::max),
        };
        // 1 B/µs is 10^6 B/s.
        let algbw = if time_us > 0.0 { size_bytes as f64 / time_us / 1e3 } else { 0.0 };
        let busbw = (self.ranks > 1).then(|| algbw * self.test.factor(self.ranks));
        let wrong = measured.iter().map(|one| one.wrong).sum();
        Placement { time_us, algbw, busbw, wrong, ranks_us, spread: self.spread(measured) }
    }

    fn spread(&self, measured: &[&Measured]) -> Option<Spread> {
        let iterations = measured.iter().map(|one| one.times_us.len()).min()?;
        let slowest = |at: usize| measured.iter().map(|one| one.times_us[at]).fold(0.0, f64::max);
        let times_us: Vec<f64> = (self.skip..iterations).map(slowest).collect();
        let ranks: Option<_> =
            measured.iter().map(|one| Summary::of(one.times_us.get(self.skip..)?)).collect();
        Some(Spread { summary: Summary::of(&times_us)?, times_us, skipped: self.skip, ranks: ranks? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seconds: f64, times_us: Vec<f64>) -> CaseReport {
        let measured = Measured { seconds, times_us, wrong: Some(1) };
        CaseReport {
            number: 0,
            size_bytes: 1_000_000,
            count_elems: 250_000,
            kind: "float".into(),
            op: "sum".into(),
            root: -1,
            out_of_place: measured,
            in_place: None,
            explained: None,
        }
    }

    fn rule(ranks: usize, average: u8) -> Rule {
        Rule { test: Test::AllReduce, ranks, average, skip: 1 }
    }

    #[test]
    fn units_and_averages() {
        let reports = [report(0.001, vec![]), report(0.003, vec![])];
        for (average, time_us) in [(0, 1000.0), (1, 2000.0), (2, 1000.0), (3, 3000.0)] {
            let row = rule(2, average).row(&reports, String::new()).unwrap();
            assert!((row.out_of_place.time_us - time_us).abs() < 1e-9);
            assert!((row.out_of_place.algbw - 1e3 / time_us).abs() < 1e-9);
        }
        let row = rule(2, 1).row(&reports, String::new()).unwrap();
        assert_eq!(row.out_of_place.wrong, Some(2));
        assert!(row.in_place.is_none() && row.out_of_place.spread.is_none());
    }

    #[test]
    fn one_rank_has_no_bus() {
        let row = rule(1, 1).row(&[report(0.001, vec![])], String::new()).unwrap();
        assert_eq!(row.out_of_place.busbw, None);
    }

    #[test]
    fn the_slow_rank_is_found() {
        let reports = [
            report(0.1, vec![99.0, 10.0, 10.0]),
            report(0.1, vec![99.0, 10.0, 15.0]),
            report(0.1, vec![99.0; 3]),
        ];
        let spread = rule(2, 1).row(&reports[..2], String::new()).unwrap().out_of_place.spread.unwrap();
        assert_eq!((spread.times_us.as_slice(), spread.summary.max), (&[10.0, 15.0][..], 15.0));
        assert_eq!(spread.slowest(), Some((1, 1.5)));
    }
}
