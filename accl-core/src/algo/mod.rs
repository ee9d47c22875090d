//! Algorithms: pure functions from a request to the plan of one rank. No memory, no links, no clocks.
//!
//! Words: a *chunk* is the share of the data that one rank owns; a *segment* is the piece that a pipeline moves
//! at once. All sizes here are counted in elements.

mod all_to_all;
mod between;
mod choices;
mod chunk;
mod cost;
mod cost_hosts;
mod cost_messages;
mod direct;
mod hierarchical;
mod host_ring;
mod plan;
mod reading;
mod recursive_doubling;
mod ring;
mod select;
mod selection;
mod staging;
mod tree;

#[cfg(test)]
mod check;

pub use choices::{Choices, Forced, sizes};
pub use cost::{BOARD_MOST_BYTES, Pull, Shape, Way, predict};
pub use hierarchical::Layout;
pub use plan::{Buffer, Operand, Plan, Span, Step};
pub use reading::{Folding, reads};
pub(crate) use select::contributed_blocks;
pub use select::{Algorithm, Choice, Facts, select};
pub use selection::{AlgorithmSet, Candidate, Selection};

use crate::types::{Collective, Rank};

/// What an algorithm needs to know of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation.
    pub kind: Collective,
    /// Members of the communicator.
    pub ranks: usize,
    /// Whose plan it is.
    pub rank: Rank,
    /// The rank that gives or gets everything, where there is one.
    pub root: Rank,
    /// The call's count: elements per rank for AllGather, ReduceScatter, AlltoAll, Gather and Scatter, all
    /// elements otherwise.
    pub count_elems: usize,
    /// How many elements a pipeline moves at once.
    pub segment_elems: usize,
    /// Chunks begin at multiples of this many elements.
    pub align_elems: usize,
    /// How many elements a rank's staging area has.
    pub staging_elems: usize,
}

impl Request {
    /// Writes the plan of `algorithm` into `plan`, whose old content is dropped and whose memory is reused.
    pub fn plan(&self, algorithm: Algorithm, plan: &mut Plan) {
        plan.clear();
        match algorithm {
            _ if self.ranks == 1 => direct::alone(self, plan),
            Algorithm::Direct => direct::plan(self, plan),
            Algorithm::Ring => ring::plan(self, plan),
            Algorithm::Tree => tree::plan(self, plan),
            Algorithm::RecursiveDoubling => recursive_doubling::plan(self, plan),
        }
    }

    /// The same for ranks that can all read each other's memory.
    pub fn plan_reading(&self, folding: Folding, plan: &mut Plan) {
        plan.clear();
        reading::plan(self, folding, plan);
    }

    /// The same for ranks on several hosts; `between` is what carries data from host to host.
    pub fn plan_hierarchical(&self, layout: &Layout, between: Algorithm, plan: &mut Plan) {
        plan.clear();
        hierarchical::plan(self, layout, between, plan);
    }

    /// The same for ranks that stage their data for each other.
    pub fn plan_staging(&self, plan: &mut Plan) {
        plan.clear();
        staging::plan(self, plan);
    }

    /// The other ranks, beginning with the next one: everybody begins with somebody else.
    fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    /// The other ranks, beginning with the previous one: the order in which their data comes.
    fn peers_backwards(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |distance| (rank + ranks - distance) % ranks)
    }
}
