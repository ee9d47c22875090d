//! Texts: who disagrees, who is missing, and who waits for whom.

use super::call::{choice_of, describe};
use super::endpoint::Endpoint;
use super::seat::Seat;
use crate::error::Error;
use crate::os::process;
use crate::transport::board::{Board, PostedCall};
use crate::transport::shm::{Arena, RankState, Waiting};
use crate::types::{Rank, named_ranks};
use std::fmt::Write;

/// The error of ranks that make different calls: both calls, and who made which, as far as they have come.
pub(super) fn mismatch(board: &mut Board, rank: Rank, ranks: usize, sequence: u64) -> Error {
    let mut sides: Vec<(u64, u64, String, Vec<Rank>)> = Vec::new();
    for peer in 0..ranks {
        if !board.has(peer) || peer != rank && !board.has_posted(peer, sequence) {
            continue;
        }
        let call = board.call(peer, sequence);
        match sides.iter_mut().find(|side| (side.0, side.1) == (call.what, call.count)) {
            Some(side) => side.3.push(peer),
            None => {
                let same_words = sides.iter().any(|side| side.2 == describe(call));
                let mut words = describe(call);
                if same_words {
                    let _ = write!(words, " by algorithm {:#x}: settings differ", choice_of(call));
                }
                sides.push((call.what, call.count, words, vec![peer]));
            }
        }
    }
    let parts: Vec<_> = sides.iter().map(|side| format!("{}: {}", named_ranks(&side.3), side.2)).collect();
    Error::usage(format!(
        "ranks disagree on collective #{sequence}: {}; every rank must make the same calls in the same order",
        parts.join("; ")
    ))
}

/// The error of a rank whose peer on another host makes another call.
pub(super) fn disagreement(
    rank: Rank,
    ours: PostedCall,
    sequence: u64,
    peer: Rank,
    theirs: PostedCall,
    their_sequence: u64,
) -> Error {
    let mut words = format!("rank {rank}: {}; rank {peer}: {}", describe(ours), describe(theirs));
    if sequence != their_sequence {
        let _ = write!(words, ", its collective #{their_sequence}");
    } else if describe(ours) == describe(theirs) {
        let _ = write!(
            words,
            ", by algorithms {:#x} and {:#x}: settings differ",
            choice_of(ours),
            choice_of(theirs)
        );
    }
    Error::usage(format!(
        "ranks disagree on collective #{sequence}: {words}; every rank must make the same calls in the same order"
    ))
}

/// Why `missing` ranks have not come to operation `sequence`, one clause each (at most four).
pub(super) fn missing(seat: &Seat, endpoint: &Endpoint, sequence: u64, missing: &[Rank]) -> String {
    let mut clauses = Vec::new();
    for peer in missing.iter().take(4) {
        let who = &seat.peers[*peer];
        let mut clause = format!("rank {peer} ({})", who.name);
        let Some(arena) = seat.arena.as_ref().filter(|arena| arena.members().has(*peer)) else {
            let gone = seat.arena.as_ref().map_or(RankState::Absent, |arena| arena.state_of(*peer));
            clause.push_str(match gone {
                RankState::Aborted => " has aborted",
                RankState::Left => " has destroyed its communicator",
                RankState::Absent | RankState::Present => " has not sent its part",
            });
            clauses.push(clause);
            continue;
        };
        let latest = endpoint.fabric.as_ref().map_or(0, |fabric| fabric.board.latest(*peer));
        if process::is_stopped(who.pid) {
            clause.push_str(" is alive but stopped, and");
        }
        let _ = match arena.block(*peer).state() {
            RankState::Aborted => write!(clause, " has aborted"),
            RankState::Left => write!(clause, " has destroyed its communicator"),
            _ if latest > sequence => write!(clause, " is ahead, in collective #{latest}"),
            _ if latest == sequence => write!(clause, " has made this call and not finished it"),
            _ if latest == 0 => write!(clause, " has made no collective call yet"),
            _ => write!(clause, " has not made this call, its last was collective #{latest}"),
        };
        if let Some(other) = seat.arena.as_ref().and_then(|arena| waits_for(arena, *peer)) {
            let _ = write!(clause, "; it waits for rank {other} ({})", seat.peers[other].name);
        }
        clauses.push(clause);
    }
    if missing.len() > clauses.len() {
        clauses.push(format!("and {} more", missing.len() - clauses.len()));
    }
    clauses.join(", ")
}

/// For whom a rank of this host waits in a collective, or the one for whom that waits, and so on.
fn waits_for(arena: &Arena, rank: Rank) -> Option<Rank> {
    let (mut current, mut found) = (rank, None);
    for _ in 0..arena.members().ranks() {
        if !arena.members().has(current) {
            break;
        }
        let Waiting::Collective(_, Some(next)) = arena.block(current).waiting() else { break };
        if next == rank || next >= arena.members().ranks() {
            break;
        }
        (current, found) = (next, Some(next));
    }
    found
}

/// Who waits for whom, from `rank` on, until somebody waits for nobody or the circle closes.
pub(super) fn chain(arena: &Arena, rank: Rank) -> Option<String> {
    let mut seen = vec![rank];
    let mut clauses = Vec::new();
    let mut current = rank;
    while arena.members().has(current) {
        let (peer, what) = match arena.block(current).waiting() {
            Waiting::Send(peer, number) => (peer, format!("send #{number}")),
            Waiting::Recv(peer, number) => (peer, format!("recv #{number}")),
            Waiting::Collective(..) | Waiting::No => break,
        };
        if peer >= arena.members().ranks() {
            break;
        }
        clauses.push(format!("{current} waits for {peer} in {what}"));
        if seen.contains(&peer) {
            return Some(format!("cycle: {}", clauses.join(", ")));
        }
        seen.push(peer);
        current = peer;
    }
    (clauses.len() > 1).then(|| clauses.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mem;

    #[test]
    fn a_circle_is_shown() {
        let arena = mem::arena(3).unwrap();
        arena.block(0).set_waiting(Waiting::Send(1, 1));
        arena.block(1).set_waiting(Waiting::Send(0, 1));
        let text = chain(&arena, 0).unwrap();
        assert_eq!(text, "cycle: 0 waits for 1 in send #1, 1 waits for 0 in send #1");
        arena.block(1).set_waiting(Waiting::Collective(4, None));
        assert_eq!(chain(&arena, 0), None);
    }
}
