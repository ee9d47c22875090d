//! Texts: who disagrees, who is missing, and who waits for whom.

use super::blame::{Late, Verdict};
use super::call::{choice_of, describe};
use super::endpoint::Endpoint;
use super::seat::Seat;
use crate::error::Error;
use crate::transport::board::{Board, PostedCall};
use crate::transport::shm::{RankState, Waiting, Word};
use crate::types::{Rank, named_ranks};
use std::fmt::Write;

/// Why ranks choose different algorithms for the same call.
const DIFFERENCE: &str = "settings differ, or what calls (algSelection) or a tuner plugin ask for";

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
                    let _ = write!(words, " by algorithm {:#x}: {DIFFERENCE}", choice_of(call));
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
            ", by algorithms {:#x} and {:#x}: {DIFFERENCE}",
            choice_of(ours),
            choice_of(theirs)
        );
    }
    Error::usage(format!(
        "ranks disagree on collective #{sequence}: {words}; every rank must make the same calls in the same order"
    ))
}

/// How many ranks a text explains, and how much it shows of a path of waits, and of a circle.
const MOST_CLAUSES: usize = 4;
const MOST_PATH: usize = 5;
const MOST_CIRCLE: usize = 16;

/// What keeps operation `sequence` waiting, as was judged; `question` is the one that other hosts were asked, if they were.
pub(super) fn verdict(
    seat: &Seat,
    endpoint: &Endpoint,
    sequence: u64,
    verdict: &Verdict,
    question: Option<u64>,
) -> String {
    let late = match verdict {
        Verdict::Circle(links) => return circle(links),
        Verdict::Late(late) if late.is_empty() => return "it is not known for whom".to_string(),
        Verdict::Late(late) => late,
    };
    let explain = |late: &Late| {
        let whom = &seat.peers[late.rank];
        let is_local = seat.arena.as_ref().is_some_and(|arena| arena.members().has(late.rank));
        let what = if is_local {
            of_neighbour(seat, endpoint, sequence, late)
        } else {
            of_stranger(seat, late, question)
        };
        format!("rank {} ({}){what}{}", late.rank, whom.name, waiters(&late.path))
    };
    let mut clauses: Vec<_> = late.iter().take(MOST_CLAUSES).map(explain).collect();
    if late.len() > clauses.len() {
        clauses.push(format!("and {} more", late.len() - clauses.len()));
    }
    clauses.join(", ")
}

/// What this host's memory says of one of its ranks.
fn of_neighbour(seat: &Seat, endpoint: &Endpoint, sequence: u64, late: &Late) -> String {
    let latest = endpoint.fabric.as_ref().map_or(0, |fabric| fabric.board.latest(late.rank));
    let stopped = if late.word == Word::Stopped { " is alive but stopped, and" } else { "" };
    let state = seat.arena.as_ref().map_or(RankState::Absent, |arena| arena.state_of(late.rank));
    let own = seat.arena.as_ref().map_or(Waiting::No, |arena| arena.block(seat.rank).waiting());
    let is_direct = late.path.len() == 2;
    let has = match state {
        RankState::Aborted => "has aborted".to_string(),
        RankState::Left => "has destroyed its communicator".to_string(),
        _ if is_direct && matches!(own, Waiting::Recv(..)) => "has not sent it".to_string(),
        _ if is_direct && matches!(own, Waiting::Send(..)) => "has not received it".to_string(),
        _ if latest > sequence => format!("is ahead, in collective #{latest}"),
        _ if latest == sequence => "has made this call and not finished it".to_string(),
        _ if latest == 0 => "has made no collective call yet".to_string(),
        _ => format!("has not made this call, its last was collective #{latest}"),
    };
    format!("{stopped} {has}")
}

/// What is known of a rank of another host.
fn of_stranger(seat: &Seat, late: &Late, question: Option<u64>) -> String {
    const SILENT: &str =
        " has not sent its part, and does not answer: is its process stopped, or its host out of reach?";
    let state = seat.arena.as_ref().map_or(RankState::Absent, |arena| arena.state_of(late.rank));
    let speaker = seat.peers[late.rank].speaker;
    // A leader that is silent keeps its whole host so.
    let is_silent = |question| {
        let word = seat.arena.as_ref().map(|arena| arena.heard_of(speaker, question));
        speaker != late.rank && word == Some(Word::Unheard)
    };
    match (state, &late.word, question) {
        (RankState::Aborted, ..) => " has aborted".to_string(),
        (RankState::Left, ..) => " has destroyed its communicator".to_string(),
        (_, Word::Stopped, _) => " is alive but stopped, and has not sent its part".to_string(),
        (_, Word::Free, _) => " has not sent its part, and waits for nobody".to_string(),
        (_, Word::Waits(waiting, _), _) => format!(" has not sent its part: it waits {}", place(*waiting)),
        (_, Word::Unheard, None) => " has not sent its part".to_string(),
        (_, Word::Unheard, Some(question)) if is_silent(question) => {
            let name = &seat.peers[speaker].name;
            format!("{SILENT} Nor does rank {speaker} ({name}), which speaks for its host")
        }
        (_, Word::Unheard, Some(_)) => SILENT.to_string(),
    }
}

/// Who waits for a rank that others wait for, where it is not the one that explains alone.
fn waiters(path: &[Rank]) -> String {
    let mut links: Vec<_> = path.windows(2).map(|pair| format!("{} for {}", pair[0], pair[1])).collect();
    if links.len() < 2 {
        return String::new();
    }
    if links.len() > MOST_PATH {
        let last = links.split_off(links.len() - 2);
        links.truncate(2);
        links.push("\u{2026}".to_string());
        links.extend(last);
    }
    format!(" (rank {})", links.join(", ").replacen(" for", " waits for", 1))
}

fn circle(links: &[(Rank, Waiting, Rank)]) -> String {
    let show = |(rank, waiting, need): &(Rank, Waiting, Rank)| {
        format!("{rank} waits for {need} {}", place(*waiting))
    };
    let mut clauses: Vec<_> = links.iter().take(MOST_CIRCLE).map(show).collect();
    if links.len() > clauses.len() {
        clauses.push(format!("and {} more", links.len() - clauses.len()));
    }
    format!("cycle: {}", clauses.join(", "))
}

fn place(waiting: Waiting) -> String {
    match waiting {
        Waiting::No => "in a call".to_string(),
        Waiting::Collective(number, _) => format!("in collective #{number}"),
        Waiting::Send(_, number) => format!("in send #{number}"),
        Waiting::Recv(_, number) => format!("in recv #{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_shown() {
        let links = [(0, Waiting::Send(1, 1), 1), (1, Waiting::Collective(4, None), 0)];
        let expected = "cycle: 0 waits for 1 in send #1, 1 waits for 0 in collective #4";
        assert_eq!(circle(&links), expected);
        let many: Vec<_> = (0..100).map(|rank| (rank, Waiting::Send(rank + 1, 1), rank + 1)).collect();
        assert!(circle(&many).ends_with(", and 84 more"), "{}", circle(&many));
    }

    #[test]
    fn a_path_is_shown_where_there_is_one() {
        assert_eq!(waiters(&[0, 2]), "");
        assert_eq!(waiters(&[0, 2, 1]), " (rank 0 waits for 2, 2 for 1)");
        let long: Vec<_> = (0..20).collect();
        assert_eq!(waiters(&long), " (rank 0 waits for 1, 1 for 2, \u{2026}, 17 for 18, 18 for 19)");
    }
}
