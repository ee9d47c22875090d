//! Trees: a reduction goes up and the result comes down in about 2·log₂(n) hops.
//!
//! AllReduce uses two trees for the two halves of the data, so built that a rank is an inner node of at most one
//! of them; then every rank sends and receives about as much as any other (Sanders, Speck, Träff: "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", 2009).

use super::chunk::{segment, segments};
use super::{Buffer, Operand, Plan, Request, Span};
use crate::types::{Collective, Rank};
use std::ops::Range;

/// Segments that go up before their results come down.
const WINDOW: usize = 8;

/// One rank's place in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    parent: Option<Rank>,
    children: [Option<Rank>; 2],
}

impl Node {
    /// The place of `rank` in the tree in which odd ranks are leaves and 0 is the root.
    ///
    /// Ranks are nodes of an in-order binary tree: the height of a node is the number of trailing zeros of its
    /// rank, and nodes that would lie beyond the last rank are passed over.
    pub(super) fn in_order(rank: Rank, ranks: usize) -> Self {
        if rank == 0 {
            let child = (ranks > 1).then(|| 1 << (ranks - 1).ilog2());
            return Self { parent: None, children: [child, None] };
        }
        let bit = rank & rank.wrapping_neg();
        let above = (rank ^ bit) | (bit << 1);
        let parent = Some(if above < ranks { above } else { rank ^ bit });
        let mut below = bit >> 1;
        let first = (below > 0).then(|| rank - below);
        while below > 0 && rank + below >= ranks {
            below >>= 1;
        }
        Self { parent, children: [first, (below > 0).then(|| rank + below)] }
    }

    /// The place in the second tree, whose leaves are the inner nodes of the first.
    fn second(rank: Rank, ranks: usize) -> Self {
        if ranks.is_multiple_of(2) {
            let mirror = |rank: Rank| ranks - 1 - rank;
            Self::in_order(mirror(rank), ranks).renamed(mirror)
        } else {
            Self::in_order((rank + ranks - 1) % ranks, ranks).renamed(|rank| (rank + 1) % ranks)
        }
    }

    fn renamed(self, name: impl Fn(Rank) -> Rank) -> Self {
        Self { parent: self.parent.map(&name), children: self.children.map(|child| child.map(&name)) }
    }

    fn is_leaf(&self) -> bool {
        self.children.iter().all(Option::is_none)
    }

    fn children(&self) -> impl Iterator<Item = Rank> + use<> {
        self.children.into_iter().flatten()
    }
}

pub(super) fn plan(request: &Request, plan: &mut Plan) {
    match request.kind {
        Collective::AllReduce => all_reduce(request, plan),
        Collective::Broadcast => broadcast(request, plan),
        Collective::Reduce => reduce(request, plan),
        _ => super::direct::plan(request, plan),
    }
}

fn all_reduce(request: &Request, plan: &mut Plan) {
    let size = request.segment_elems;
    let halves = request.halves();
    let place = |rank, tree| {
        if tree == 0 { Node::in_order(rank, request.ranks) } else { Node::second(rank, request.ranks) }
    };
    let longest = halves.iter().map(|half| segments(half, size)).max().unwrap_or(0);
    for window in (0..longest).step_by(WINDOW) {
        let indices = window..(window + WINDOW).min(longest);
        for tree in 0..2 {
            let node = place(request.rank, tree);
            if let (true, Some(parent)) = (window > 0, node.parent) {
                plan.drain(parent);
            }
        }
        for index in indices.clone() {
            for (tree, half) in halves.iter().enumerate() {
                let slot = (tree * WINDOW + index - window) * size;
                up(request, plan, segment(half, size, index), slot, |rank| place(rank, tree));
            }
        }
        for index in indices {
            for (tree, half) in halves.iter().enumerate() {
                down(plan, &place(request.rank, tree), segment(half, size, index), Buffer::Output);
            }
        }
    }
}

/// Folds the children's sums and the own input, and sends that up; the root finishes it.
fn up(request: &Request, plan: &mut Plan, part: Range<usize>, slot: usize, place: impl Fn(Rank) -> Node) {
    let node = place(request.rank);
    let own = Span::input(part.clone());
    if let (true, Some(parent)) = (node.is_leaf(), node.parent) {
        plan.send(parent, own);
        return;
    }
    let came = node.children().map(|child| {
        let came_as = if place(child).is_leaf() { Buffer::Input } else { Buffer::Partial };
        Operand::Peer(child, came_as)
    });
    let operands = std::iter::once(Operand::Local(own)).chain(came);
    match node.parent {
        None => plan.reduce(operands, Span::output(part)),
        Some(parent) => {
            let sum = Span::partial(slot..slot + part.len());
            plan.partial_elems = plan.partial_elems.max(slot + request.segment_elems);
            plan.reduce(operands, sum);
            plan.send(parent, sum);
        }
    }
}

/// Hands what the parent sends to the children; the root sends from `source`.
fn down(plan: &mut Plan, node: &Node, part: Range<usize>, source: Buffer) {
    let mut span = Span::output(part);
    match node.parent {
        None => span.buffer = source,
        Some(parent) => plan.recv(parent, span),
    }
    for child in node.children() {
        plan.send(child, span);
    }
}

/// The tree in which the root of the call is the root.
fn rooted(request: &Request) -> impl Fn(Rank) -> Node + use<> {
    let (root, ranks) = (request.root, request.ranks);
    move |rank| Node::in_order((rank + ranks - root) % ranks, ranks).renamed(|place| (place + root) % ranks)
}

fn broadcast(request: &Request, plan: &mut Plan) {
    let all = 0..request.count_elems;
    let node = rooted(request)(request.rank);
    for index in 0..segments(&all, request.segment_elems) {
        down(plan, &node, segment(&all, request.segment_elems, index), Buffer::Input);
    }
    if request.rank == request.root {
        plan.copy(Span::input(all.clone()), Span::output(all));
    }
}

fn reduce(request: &Request, plan: &mut Plan) {
    let (all, size) = (0..request.count_elems, request.segment_elems);
    let place = rooted(request);
    for index in 0..segments(&all, size) {
        if let (true, Some(parent)) = (index > 0 && index % WINDOW == 0, place(request.rank).parent) {
            plan.drain(parent);
        }
        up(request, plan, segment(&all, size, index), index % WINDOW * size, &place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_trees_and_inner_nodes_are_leaves_of_the_other() {
        for ranks in 1..=200 {
            let trees: [Vec<Node>; 2] = [
                (0..ranks).map(|rank| Node::in_order(rank, ranks)).collect(),
                (0..ranks).map(|rank| Node::second(rank, ranks)).collect(),
            ];
            for tree in &trees {
                assert_eq!(tree.iter().filter(|node| node.parent.is_none()).count(), 1);
                for (rank, node) in tree.iter().enumerate() {
                    for child in node.children() {
                        assert_eq!(tree[child].parent, Some(rank));
                    }
                    if let Some(parent) = node.parent {
                        assert!(tree[parent].children().any(|child| child == rank));
                    }
                    let mut top = rank;
                    let mut hops = 0;
                    while let Some(parent) = tree[top].parent {
                        top = parent;
                        hops += 1;
                    }
                    assert!(hops <= ranks.ilog2() + 1, "{ranks} ranks, rank {rank}: {hops} hops");
                }
            }
            let both =
                (0..ranks).filter(|rank| !trees[0][*rank].is_leaf() && !trees[1][*rank].is_leaf()).count();
            assert!(both <= usize::from(ranks > 1), "{ranks} ranks: {both} inner nodes of both");
        }
    }
}
