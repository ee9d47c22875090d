//! The eleven tests: names, element counts, what counts as size, and the published bandwidth factors.

use std::ffi::CStr;

use crate::datatype::DataType;

/// One of nccl-tests' programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    AllReduce,
    AllGather,
    Broadcast,
    ReduceScatter,
    Reduce,
    AlltoAll,
    AlltoAllv,
    Scatter,
    Gather,
    SendRecv,
    Hypercube,
}

/// Element counts of one rank's buffers, and the count that the library is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) send_elems: usize,
    pub(crate) recv_elems: usize,
    /// The per-rank count: the argument of the call, and the table's second column.
    pub(crate) param_elems: usize,
}

impl Test {
    pub(crate) const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::AllGather,
        Self::Broadcast,
        Self::ReduceScatter,
        Self::Reduce,
        Self::AlltoAll,
        Self::AlltoAllv,
        Self::Scatter,
        Self::Gather,
        Self::SendRecv,
        Self::Hypercube,
    ];

    /// The library's name of the operation that the test consists of, if it is one.
    pub(crate) fn operation(self) -> Option<&'static CStr> {
        match self {
            Self::AllReduce => Some(c"allreduce"),
            Self::AllGather => Some(c"allgather"),
            Self::Broadcast => Some(c"broadcast"),
            Self::ReduceScatter => Some(c"reducescatter"),
            Self::Reduce => Some(c"reduce"),
            Self::AlltoAll => Some(c"alltoall"),
            Self::Scatter => Some(c"scatter"),
            Self::Gather => Some(c"gather"),
            Self::AlltoAllv | Self::SendRecv | Self::Hypercube => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::ReduceScatter => "reduce_scatter",
            Self::Reduce => "reduce",
            Self::AlltoAll => "alltoall",
            Self::AlltoAllv => "alltoallv",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::SendRecv => "sendrecv",
            Self::Hypercube => "hypercube",
        }
    }

    /// With or without nccl-tests' ending `_perf`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let name = name.strip_suffix("_perf").unwrap_or(name);
        Self::ALL.into_iter().find(|test| test.name() == name)
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    pub(crate) fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather)
    }

    pub(crate) fn in_place(self) -> bool {
        !matches!(self, Self::AlltoAll | Self::AlltoAllv | Self::SendRecv)
    }

    /// Whether each rank has a part of the whole, so that counts are divided among the ranks.
    fn in_parts(self) -> bool {
        !matches!(self, Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv)
    }

    /// The counts for a size of `bytes`. Parts are rounded down to multiples of 16 bytes.
    pub(crate) fn counts(self, bytes: usize, kind: DataType, ranks: usize) -> Counts {
        let elems = bytes / kind.bytes();
        let param_elems = if self.in_parts() {
            let line = 16 / kind.bytes();
            elems / ranks / line * line
        } else {
            elems
        };
        let (send_parts, recv_parts) = match self {
            Self::AllGather | Self::Gather | Self::Hypercube => (1, ranks),
            Self::ReduceScatter | Self::Scatter => (ranks, 1),
            Self::AlltoAll | Self::AlltoAllv => (ranks, ranks),
            _ => (1, 1),
        };
        Counts { send_elems: param_elems * send_parts, recv_elems: param_elems * recv_parts, param_elems }
    }

    /// What counts as the size S of the operation, in bytes; alltoallv's depends on its matrix.
    pub(crate) fn size_bytes(self, param_elems: usize, kind: DataType, ranks: usize) -> usize {
        let one = param_elems * kind.bytes();
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => one,
            Self::Hypercube => one * (ranks - 1),
            _ => one * ranks,
        }
    }

    /// busbw = algbw · factor: what crosses the slowest link, whatever the number of ranks.
    pub(crate) fn factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Hypercube => 1.0,
            _ => (n - 1.0) / n,
        }
    }
}

/// Element counts between all pairs of an alltoallv.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    ranks: usize,
    elems: Vec<usize>,
}

impl Matrix {
    /// Equal parts of `part_elems`, each shortened by up to the share `spread` in a pattern that all ranks know.
    pub(crate) fn new(part_elems: usize, kind: DataType, ranks: usize, spread: f64) -> Self {
        let line = 16 / kind.bytes();
        let elems = (0..ranks * ranks)
            .map(|pair| {
                let share = (crate::pattern::mix(pair as u64) >> 11) as f64 / (1u64 << 53) as f64;
                (part_elems as f64 * (1.0 - spread * share)) as usize / line * line
            })
            .collect();
        Self { ranks, elems }
    }

    pub(crate) fn elems(&self, from: usize, to: usize) -> usize {
        self.elems[from * self.ranks + to]
    }

    /// Where the part for `to` starts in the send buffer of `from`.
    pub(crate) fn send_offset(&self, from: usize, to: usize) -> usize {
        (0..to).map(|before| self.elems(from, before)).sum()
    }

    /// Where the part of `from` starts in the receive buffer of `to`.
    pub(crate) fn recv_offset(&self, from: usize, to: usize) -> usize {
        (0..from).map(|before| self.elems(before, to)).sum()
    }

    /// The most that one rank sends or receives.
    pub(crate) fn largest_total(&self) -> usize {
        let sent = (0..self.ranks).map(|rank| self.send_offset(rank, self.ranks));
        let received = (0..self.ranks).map(|rank| self.recv_offset(self.ranks, rank));
        sent.chain(received).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_ending() {
        for test in Test::ALL {
            assert_eq!(Test::parse(test.name()), Some(test));
            assert_eq!(Test::parse(&format!("{}_perf", test.name())), Some(test));
        }
        assert_eq!(Test::parse("allreduce"), None);
    }

    #[test]
    fn published_factors() {
        let close = |test: Test, ranks, factor: f64| assert!((test.factor(ranks) - factor).abs() < 1e-12);
        close(Test::AllReduce, 2, 1.0);
        close(Test::AllReduce, 8, 1.75);
        for test in [
            Test::AllGather,
            Test::ReduceScatter,
            Test::AlltoAll,
            Test::AlltoAllv,
            Test::Gather,
            Test::Scatter,
        ] {
            close(test, 4, 0.75);
        }
        for test in [Test::Broadcast, Test::Reduce, Test::SendRecv, Test::Hypercube] {
            close(test, 5, 1.0);
        }
    }

    #[test]
    fn parts_are_multiples_of_16_bytes() {
        for test in Test::ALL {
            for kind in DataType::ALL {
                for ranks in [1, 2, 3, 5, 8] {
                    for bytes in [0, 1, 15, 16, 100, 1000, 4096] {
                        let counts = test.counts(bytes, kind, ranks);
                        if test.in_parts() {
                            assert_eq!(counts.param_elems * kind.bytes() % 16, 0);
                        }
                        assert!(counts.send_elems.max(counts.recv_elems) * kind.bytes() <= bytes);
                    }
                }
            }
        }
        let counts = Test::AllGather.counts(1000, DataType::Float32, 3);
        assert_eq!(counts, Counts { send_elems: 80, recv_elems: 240, param_elems: 80 });
        assert_eq!(Test::AllGather.size_bytes(80, DataType::Float32, 3), 960);
        assert_eq!(Test::Hypercube.size_bytes(80, DataType::Float32, 4), 960);
        assert_eq!(Test::AllReduce.counts(1001, DataType::Float64, 3).param_elems, 125);
    }

    #[test]
    fn a_matrix_is_consistent_and_within_the_buffers() {
        let matrix = Matrix::new(1000, DataType::Float32, 5, 0.5);
        for rank in 0..5 {
            assert!(matrix.send_offset(rank, 5) <= 5000 && matrix.recv_offset(5, rank) <= 5000);
            assert!((0..5).all(|to| (500 - 4..=1000).contains(&matrix.elems(rank, to))));
        }
        assert!(matrix.largest_total() < 5000);
        assert_eq!(Matrix::new(1000, DataType::Float32, 5, 0.0).largest_total(), 5000);
    }
}
