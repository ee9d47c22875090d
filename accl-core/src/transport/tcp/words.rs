//! What hosts tell each other of ranks that wait, so that whoever has waited too long can follow the chain of waits to its end.
//!
//! A rank that nears its limit *asks*. Its host's leader then tells of each of its ranks what that waits for, in records that ask; whoever
//! hears such a one tells the same of its own ranks. All of it floods around the ring both ways: a leader passes on what is new to it. Nothing is told
//! as long as nobody nears a limit, and at most every [`PACE`] by one host: who asks goes on asking, so what was not answered once
//! is answered the next time.
//!
//! No sockets here, and no clock: `control.rs` has them.

use super::record::Telling;
use crate::transport::shm::Word;
use crate::types::Rank;
use std::time::{Duration, Instant};

/// How often a host tells at most.
const PACE: Duration = Duration::from_millis(50);

/// What one leader knows of what was told.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The last serial of each rank that was told of.
    heard: Vec<Option<u32>>,
    serial: u32,
    told: Option<Instant>,
    /// How many questions of its own host it has passed on.
    passed_on: u64,
    /// Another host has asked.
    wanted: bool,
    /// What is to be passed on, and by whose line it has come.
    relayed: Vec<(Rank, Telling)>,
}

impl Words {
    /// For a ring in which `ranks` ranks are told of.
    pub(super) fn new(ranks: usize) -> Self {
        Self { heard: vec![None; ranks], ..Self::default() }
    }

    /// Takes in what has come by the line to `from`; true if it is new. `is_own` tells ranks of this host, of whom nobody
    /// else knows anything.
    pub(super) fn hear(&mut self, from: Rank, telling: &Telling, is_own: impl Fn(Rank) -> bool) -> bool {
        let rank = telling.rank as Rank;
        let Some(last) = self.heard.get_mut(rank).filter(|_| !is_own(rank)) else { return false };
        // Serials go around; what is less than half way round ahead is later.
        let is_new = |last: u32| (1..1 << 31).contains(&telling.serial.wrapping_sub(last));
        if !last.is_none_or(is_new) {
            return false;
        }
        *last = Some(telling.serial);
        self.wanted |= telling.asks;
        self.relayed.push((from, telling.clone()));
        true
    }

    /// If this host is to tell now: the serial, and whether it asks. `asked` counts the questions of its ranks.
    pub(super) fn due(&mut self, now: Instant, asked: u64) -> Option<(u32, bool)> {
        let asks = asked != self.passed_on;
        let wanted = std::mem::take(&mut self.wanted) || asks;
        if !wanted || self.told.is_some_and(|told| now.saturating_duration_since(told) < PACE) {
            return None;
        }
        self.told = Some(now);
        self.passed_on = asked;
        self.serial = self.serial.wrapping_add(1);
        Some((self.serial, asks))
    }

    /// What is to be passed on, by all lines but the one by which it has come.
    pub(super) fn take_relayed(&mut self) -> Vec<(Rank, Telling)> {
        std::mem::take(&mut self.relayed)
    }
}

/// What is told of this host's ranks.
pub(super) fn tellings(
    words: impl Iterator<Item = (Rank, Word)>,
    (serial, asks): (u32, bool),
) -> impl Iterator<Item = Telling> {
    words.map(move |(rank, word)| Telling { rank: rank as u32, serial, asks, word })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock;
    use crate::transport::shm::Waiting;

    fn telling(rank: u32, serial: u32, asks: bool) -> Telling {
        Telling { rank, serial, asks, word: Word::Waits(Waiting::Collective(1, Some(0)), vec![0]) }
    }

    #[test]
    fn nothing_is_told_unasked_and_an_answer_asks_nothing() {
        let mut words = Words::new(4);
        let now = clock::now();
        assert_eq!(words.due(now, 0), None);
        assert!(words.hear(3, &telling(2, 5, false), |rank| rank == 0));
        assert_eq!(words.due(now, 0), None, "what was heard did not ask");
        assert!(words.hear(3, &telling(3, 5, true), |rank| rank == 0));
        assert_eq!(words.due(now, 0), Some((1, false)));
        assert_eq!(words.due(now + PACE, 0), None, "one question, one answer");
        assert_eq!(words.due(now + PACE, 1), Some((2, true)));
        assert_eq!(words.due(now + 2 * PACE, 1), None);
    }

    #[test]
    fn hosts_tell_no_more_often_than_they_may() {
        let mut words = Words::new(2);
        let now = clock::now();
        assert_eq!(words.due(now, 1), Some((1, true)));
        assert_eq!(words.due(now + PACE / 2, 2), None);
        assert_eq!(words.due(now + PACE, 2), Some((2, true)), "an own question is kept");
        assert!(words.hear(1, &telling(1, 1, true), |rank| rank == 0));
        assert_eq!(words.due(now + PACE, 2), None);
        assert_eq!(words.due(now + 3 * PACE, 2), None, "another host's is asked again by that one");
    }

    #[test]
    fn what_is_old_or_of_nobody_is_not_believed_and_not_passed_on() {
        let mut words = Words::new(3);
        let own = |rank| rank == 0;
        assert!(words.hear(1, &telling(2, u32::MAX, true), own));
        for stale in [telling(2, u32::MAX, true), telling(2, u32::MAX - 1, true)] {
            assert!(!words.hear(2, &stale, own));
        }
        for nobody in [telling(0, 9, true), telling(3, 9, true), telling(u32::MAX, 9, true)] {
            assert!(!words.hear(1, &nobody, own));
        }
        assert!(words.hear(1, &telling(2, 0, true), own), "serials go around");
        let passed: Vec<_> = words.take_relayed().iter().map(|(from, one)| (*from, one.serial)).collect();
        assert_eq!(passed, [(1, u32::MAX), (1, 0)]);
        assert!(words.take_relayed().is_empty());
    }

    /// Hosts in a ring, a rank each; every line delivers at once.
    #[test]
    fn one_question_is_answered_by_all_and_ends() {
        const HOSTS: usize = 7;
        let mut hosts: Vec<_> = (0..HOSTS).map(|_| Words::new(HOSTS)).collect();
        let (now, mut sent) = (clock::now(), 0);
        loop {
            let before = sent;
            for host in 0..HOSTS {
                let own = hosts[host].due(now, u64::from(host == 0));
                let own = own.map(|(serial, asks)| (host, telling(host as u32, serial, asks)));
                let passed = hosts[host].take_relayed();
                for neighbour in [(host + 1) % HOSTS, (host + HOSTS - 1) % HOSTS] {
                    for (from, telling) in own.iter().chain(&passed) {
                        if *from != neighbour {
                            hosts[neighbour].hear(host, telling, |rank| rank == neighbour);
                            sent += 1;
                        }
                    }
                }
            }
            if sent == before {
                break;
            }
        }
        for (host, words) in hosts.iter().enumerate() {
            assert!((0..HOSTS).all(|rank| rank == host || words.heard[rank] == Some(1)), "host {host}");
        }
        assert!(sent <= 2 * HOSTS * HOSTS, "{sent} records");
    }
}
