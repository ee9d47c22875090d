//! What records of one or many hosts say together: who keeps whom waiting, and why.

use super::calls;
use super::record_format::{End, Operation, Record};
use super::records::{Process, Witness};
use crate::types::{Rank, named_ranks};
use std::collections::BTreeMap;
use std::time::Duration;

/// How a communicator is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// Nothing is wrong.
    Healthy,
    /// Something stands still.
    Still,
    /// A rank is dead, or an operation has failed.
    Broken,
}

/// One communicator.
#[derive(Clone, Debug)]
pub struct Finding<'a> {
    /// Its number, and that of its parent or 0.
    pub communicator: u64,
    /// How it is.
    pub condition: Condition,
    /// The verdict, in one line.
    pub verdict: String,
    /// The ranks at fault, in order.
    pub culprits: Vec<Rank>,
    /// The operation that is waited for.
    pub operation: Option<Operation>,
    /// For how long, in nanoseconds.
    pub still_ns: u64,
    /// None of its processes lives that a record is known of.
    pub over: bool,
    /// What is known, in the order of ranks.
    pub witnesses: Vec<&'a Witness>,
    /// Ranks that no record is known of.
    pub unseen: Vec<Rank>,
}

/// The communicators behind `witnesses`, the worst first. Whoever waits for less than `patience` is taken for healthy; `now_ns` is
/// in nanoseconds since 1970.
pub fn diagnose(witnesses: &[Witness], patience: Duration, now_ns: u64) -> Vec<Finding<'_>> {
    let mut communicators: BTreeMap<u64, BTreeMap<Rank, &Witness>> = BTreeMap::new();
    for witness in witnesses {
        let head = &witness.record.head;
        let ranks = communicators.entry(head.communicator).or_default();
        // A number may be used again by the same ranks: the latest counts.
        let later = ranks.get(&head.rank).is_none_or(|other| other.record.head.made_ns <= head.made_ns);
        if later {
            ranks.insert(head.rank, witness);
        }
    }
    let mut findings: Vec<_> =
        communicators.into_values().map(|ranks| finding(ranks, patience, now_ns)).collect();
    // One rank may be stopped in several: the one where somebody waits for it comes first.
    let waits = |finding: &Finding<'_>| std::cmp::Reverse(finding.still_ns);
    findings.sort_by_key(|finding| (finding.over, std::cmp::Reverse(finding.condition), waits(finding)));
    findings
}

fn finding(known: BTreeMap<Rank, &Witness>, patience: Duration, now_ns: u64) -> Finding<'_> {
    let witnesses: Vec<_> = known.values().copied().collect();
    let head = &witnesses[0].record.head;
    let unseen = (0..head.ranks).filter(|rank| !known.contains_key(rank)).take(1 << 16).collect();
    let gone = |witness: &&Witness| witness.process == Process::Dead || witness.ended;
    let over = witnesses.iter().all(gone);
    let mut finding = Finding {
        communicator: head.communicator,
        condition: Condition::Healthy,
        verdict: String::new(),
        culprits: Vec::new(),
        operation: None,
        still_ns: 0,
        over,
        unseen,
        witnesses,
    };
    finding.judge(patience, now_ns);
    finding
}

impl Finding<'_> {
    fn ranks(&self, is: impl Fn(&Witness) -> bool) -> Vec<Rank> {
        let found = self.witnesses.iter().filter(|witness| is(witness));
        found.map(|witness| witness.record.head.rank).collect()
    }

    fn judge(&mut self, patience: Duration, now_ns: u64) {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let waits =
            self.witnesses.iter().filter_map(|witness| Some((*witness, witness.record.wait.as_ref()?)));
        let still_ns = waits
            .map(|(witness, wait)| {
                // Of the dead, only what they saw themselves counts.
                let alive = matches!(witness.process, Process::Running | Process::Elsewhere);
                if alive && !self.over { now_ns } else { wait.looked_ns }.saturating_sub(wait.since_ns)
            })
            .max();
        let stopped = self.ranks(|witness| witness.process == Process::Stopped);
        let dead = self.ranks(|witness| {
            witness.process == Process::Dead && witness.record.end != End::Left && !witness.ended
        });
        let failure = self.witnesses.iter().filter_map(|witness| {
            Some((witness.record.end_ns, witness.record.failure.as_ref()?, witness.record.head.rank))
        });
        let failure = failure.min().map(|(_, text, rank)| (text.clone(), rank));
        self.still_ns = still_ns.unwrap_or(0);
        if !dead.is_empty() && !self.over {
            let what = self.last_words(&dead);
            self.set(Condition::Broken, format!("{} ended{what}", named_ranks(&dead)), dead);
        } else if let Some((text, rank)) = failure {
            self.set(Condition::Broken, format!("rank {rank} failed: {text}"), Vec::new());
        } else if !stopped.is_empty() {
            let what = self.last_words(&stopped);
            self.operation = self.waited_for();
            let verdict = format!("{} {} stopped (SIGSTOP){what}", named_ranks(&stopped), is(&stopped));
            self.set(Condition::Still, verdict, stopped);
        } else if still_ns.is_some() && (self.over || self.still_ns >= patience_ns) {
            self.judge_wait();
        } else if self.over {
            let busy = self.ranks(|witness| witness.record.is_busy());
            if busy.is_empty() {
                self.set(Condition::Broken, "its processes ended between operations".to_string(), Vec::new());
            } else {
                let verdict =
                    format!("its processes ended; {} {} in an operation", named_ranks(&busy), is(&busy));
                self.set(Condition::Broken, verdict, Vec::new());
            }
        } else {
            let done =
                self.witnesses.iter().map(|witness| witness.record.collectives_done).max().unwrap_or(0);
            self.verdict = format!("healthy: {done} collective operations done");
        }
        if self.over && self.condition == Condition::Still {
            self.condition = Condition::Broken;
            self.verdict.push_str("; then its processes ended");
        }
    }

    fn set(&mut self, condition: Condition, verdict: String, culprits: Vec<Rank>) {
        (self.condition, self.verdict, self.culprits) = (condition, verdict, culprits);
    }

    /// Somebody has waited for long, and everybody's process goes on.
    fn judge_wait(&mut self) {
        let Some(operation) = self.waited_for() else { return };
        let (call, number) = (calls::describe(operation.what, operation.count), operation.number);
        let waiting = self.ranks(|witness| witness.record.wait.is_some());
        let seconds = self.still_ns as f64 / 1e9;
        let told = |culprits: &[Rank]| {
            format!("for {seconds:.1} s; {} wait{}", named_ranks(&waiting), plural(&waiting, culprits))
        };
        if operation.transfer {
            let needed = self.needed();
            let verdict =
                format!("{call} (message #{number}) waits for {} {}", named_ranks(&needed), told(&needed));
            self.operation = Some(operation);
            return self.set(Condition::Still, verdict, needed);
        }
        let late = self.ranks(|witness| witness.record.collectives_begun < number);
        let other = self.ranks(|witness| {
            let made = witness.record.collective(number);
            made.is_some_and(|made| {
                (calls::without_how(made.what), made.count)
                    != (calls::without_how(operation.what), operation.count)
            })
        });
        let (verdict, culprits) = if !late.is_empty() {
            let verb = if late.len() == 1 { "has" } else { "have" };
            (
                format!(
                    "{} {verb} not called {call} (collective #{number}) {}",
                    named_ranks(&late),
                    told(&late)
                ),
                late,
            )
        } else if !other.is_empty() {
            let made = self.call_of(other[0], number);
            (
                format!(
                    "{} called {made} where others called {call} (collective #{number}) {}",
                    named_ranks(&other),
                    told(&other)
                ),
                other,
            )
        } else {
            let needed = self.needed();
            let known = needed.iter().all(|rank| !self.unseen.contains(rank));
            let why = if known {
                "called it and did not finish: slow, or a slow link to it"
            } else {
                "left no record here"
            };
            (
                format!(
                    "{call} (collective #{number}) waits for {}, which {why} {}",
                    named_ranks(&needed),
                    told(&needed)
                ),
                needed,
            )
        };
        self.operation = Some(operation);
        self.set(Condition::Still, verdict, culprits);
    }

    /// The operation that most are in who wait, the first of them.
    fn waited_for(&self) -> Option<Operation> {
        let waits = self.witnesses.iter().filter_map(|witness| witness.record.wait.as_ref());
        waits
            .map(|wait| &wait.operation)
            .min_by_key(|operation| (operation.transfer, operation.number))
            .cloned()
    }

    /// For whom those wait who wait, without those who wait themselves, if there are others.
    fn needed(&self) -> Vec<Rank> {
        let waits = self.witnesses.iter().filter_map(|witness| witness.record.wait.as_ref());
        let runs = waits.flat_map(|wait| wait.runs.iter());
        let ranks = self.witnesses[0].record.head.ranks;
        let mut all: Vec<Rank> = runs.flat_map(|(first, last)| *first..=(*last).min(ranks)).collect();
        all.sort_unstable();
        all.dedup();
        let waiting = self.ranks(|witness| witness.record.wait.is_some());
        let others: Vec<_> = all.iter().copied().filter(|rank| !waiting.contains(rank)).collect();
        if others.is_empty() { all } else { others }
    }

    fn call_of(&self, rank: Rank, number: u64) -> String {
        let witness = self.witnesses.iter().find(|witness| witness.record.head.rank == rank);
        let made = witness.and_then(|witness| witness.record.collective(number));
        made.map_or_else(|| "something else".to_string(), |made| calls::describe(made.what, made.count))
    }

    /// What the first of `ranks` did last.
    fn last_words(&self, ranks: &[Rank]) -> String {
        let witness = self.witnesses.iter().find(|witness| ranks.first() == Some(&witness.record.head.rank));
        witness.map_or_else(String::new, |witness| {
            let doing = doing(&witness.record);
            if ranks.len() == 1 { format!(", {doing}") } else { format!(", rank {} {doing}", ranks[0]) }
        })
    }
}

fn is(ranks: &[Rank]) -> &'static str {
    if ranks.len() == 1 { "is" } else { "are" }
}

fn plural(waiting: &[Rank], culprits: &[Rank]) -> String {
    let verb = if waiting.len() == 1 { "s" } else { "" };
    if waiting == culprits { format!("{verb} for each other") } else { verb.to_string() }
}

/// What a rank does, in words.
pub fn doing(record: &Record) -> String {
    let call = |number| {
        let operation = record.collective(number);
        operation.map_or_else(String::new, |made| format!("{} ", calls::describe(made.what, made.count)))
    };
    match record.end {
        End::Failed => return "has failed".to_string(),
        End::Aborted => return "has aborted".to_string(),
        End::Left => return "has destroyed its communicator".to_string(),
        End::Open => {}
    }
    if record.collectives_begun > record.collectives_done {
        let number = record.collectives_done + 1;
        format!("in {}(collective #{number})", call(number))
    } else if record.transfers_begun > record.transfers_done {
        format!("in {} sends and receives", record.transfers_begun - record.transfers_done)
    } else if record.collectives_done > 0 {
        format!(
            "in no call, its last was {}(collective #{})",
            call(record.collectives_done),
            record.collectives_done
        )
    } else {
        "in no call, and has made none".to_string()
    }
}
