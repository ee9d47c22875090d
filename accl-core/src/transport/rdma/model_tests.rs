//! All states of the fail-over protocol, in small: a sender and a receiver with rings of two slots, two paths and the TCP connection between
//! them, and faults at any point. The windows and the paths are the real ones; devices and wires are what may happen to them:
//!
//! * a write may arrive as long as the receiver's queue pair is not given back, also one whose sender has failed meanwhile;
//! * what has not arrived by then never does;
//! * records arrive in order, at any time.
//!
//! In no state is anything refused, overwritten or out of order, and from each one the end can be reached: so nothing is stuck.

use super::path::{PathState, Stage, Todo};
use super::window::{By, Have, ReceiveWindow, SendWindow};
use std::collections::{HashMap, VecDeque};

const SLOTS: usize = 2;
const PATHS: usize = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Word {
    Pair(usize, u32),
    Ready(usize, u32),
    Passed(usize, u32),
    Closed(usize, u32, Have),
    Credit(u64),
    Segment(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    to_send: u64,
    faults: u8,
    sends: SendWindow<SLOTS>,
    receives: ReceiveWindow<SLOTS>,
    /// What lies in the receiver's slots.
    memory: [u64; SLOTS],
    consumed: u64,
    /// Both ends of each path: the sender leads.
    ends: [[PathState; PATHS]; 2],
    /// Writes under way, by path: segments to the receiver, credits to the sender.
    segments: [Vec<u64>; PATHS],
    credits: [Vec<u64>; PATHS],
    /// Records under way, to the receiver and to the sender.
    records: [Vec<Word>; 2],
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// Adds the state behind something that can happen.
type Can<'a> = dyn FnMut(&dyn Fn(&mut World)) + 'a;

impl World {
    fn new(to_send: u64, faults: u8) -> Self {
        Self {
            to_send,
            faults,
            sends: SendWindow::new(),
            receives: ReceiveWindow::new(),
            memory: [u64::MAX; SLOTS],
            consumed: 0,
            ends: [[PathState::new(true); PATHS], [PathState::new(false); PATHS]],
            segments: [const { Vec::new() }; PATHS],
            credits: [const { Vec::new() }; PATHS],
            records: [Vec::new(), Vec::new()],
        }
    }

    fn is_end(&self, total: u64) -> bool {
        self.consumed == total
    }

    fn stage(&self, who: usize, path: usize) -> Stage {
        self.ends[who][path].stage()
    }

    fn say(&mut self, who: usize, word: Word) {
        self.records[1 - who].push(word);
    }

    fn is_up(&self, who: usize) -> bool {
        (0..PATHS).any(|path| self.stage(who, path) == Stage::Up)
    }

    fn arrive(&mut self, number: u64) {
        // The device writes before anybody can refuse.
        self.memory[(number % SLOTS as u64) as usize] = number;
        assert!(self.receives.arrive(number, 1), "a segment that is not due");
    }

    fn take_back(&mut self, who: usize, path: usize, have: Have) {
        if who == SENDER {
            assert!(self.sends.take_back(path as u8, have).is_some());
        }
    }

    fn drained(&mut self, who: usize, path: usize) {
        if who == RECEIVER {
            self.segments[path].clear()
        } else {
            self.credits[path].clear()
        }
        let have = if who == RECEIVER { self.receives.have() } else { Have::default() };
        let epoch = self.ends[who][path].epoch();
        self.say(who, Word::Closed(path, epoch, have));
        if who == RECEIVER {
            self.receives.tell(have.consumed);
        }
        if let Todo::TakeBack(have) = self.ends[who][path].drained() {
            self.take_back(who, path, have);
        }
    }

    fn hear(&mut self, who: usize) {
        match self.records[who].remove(0) {
            Word::Pair(path, epoch) => match self.ends[who][path].hear_pair(epoch) {
                Todo::Answer => {
                    self.say(who, Word::Pair(path, epoch));
                    self.say(who, Word::Ready(path, epoch));
                }
                Todo::Connect => self.say(who, Word::Ready(path, epoch)),
                todo => assert_eq!(todo, Todo::Nothing),
            },
            Word::Ready(path, epoch) => {
                let todo = self.ends[who][path].hear_ready(epoch);
                assert!(matches!(todo, Todo::Try | Todo::Nothing), "{todo:?}");
            }
            Word::Passed(path, epoch) => assert_eq!(self.ends[who][path].hear_passed(epoch), Todo::Nothing),
            Word::Closed(path, epoch, have) => match self.ends[who][path].hear_closed(epoch, have) {
                Todo::TakeBack(have) => self.take_back(who, path, have),
                todo => assert!(matches!(todo, Todo::Nothing | Todo::Drain), "{todo:?}"),
            },
            Word::Credit(consumed) => assert!(self.sends.credit(consumed)),
            Word::Segment(number) => self.arrive(number),
        }
    }

    /// Everything that can happen next.
    fn successors(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut can = |happens: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            happens(&mut next);
            found.push(next);
        };
        if self.to_send > 0 && self.sends.has_room() {
            can(&|world| {
                world.to_send -= 1;
                world.sends.push(1);
            });
        }
        if let Some((number, _)) = self.sends.first_waiting()
            && !self.is_up(SENDER)
        {
            can(&|world| {
                world.sends.send(number, By::Tcp);
                world.say(SENDER, Word::Segment(number));
            });
        }
        if self.receives.first().is_some() {
            can(&|world| {
                assert_eq!(
                    world.memory[world.receives.slot()],
                    world.consumed,
                    "overwritten or out of order"
                );
                world.receives.consume();
                world.consumed += 1;
            });
        }
        if let Some(consumed) = self.receives.credit_due()
            && !self.is_up(RECEIVER)
        {
            can(&|world| {
                world.receives.tell(consumed);
                world.say(RECEIVER, Word::Credit(consumed));
            });
        }
        for who in [SENDER, RECEIVER] {
            if !self.records[who].is_empty() {
                can(&|world| world.hear(who));
            }
        }
        for path in 0..PATHS {
            self.of_path(path, &mut can);
        }
        found
    }

    /// True if the queue pair is there that the other end of the path writes to: each epoch has pairs of its own.
    fn leads_to(&self, who: usize, path: usize) -> bool {
        let exists =
            matches!(self.stage(who, path), Stage::Connected | Stage::Trying | Stage::Up | Stage::Draining);
        exists && self.ends[0][path].epoch() == self.ends[1][path].epoch()
    }

    fn of_path(&self, path: usize, can: &mut Can<'_>) {
        if let Some((number, _)) = self.sends.first_waiting()
            && self.stage(SENDER, path) == Stage::Up
        {
            can(&|world| {
                world.sends.send(number, By::Path(path as u8));
                if world.leads_to(RECEIVER, path) {
                    world.segments[path].push(number);
                }
            });
        }
        if let Some(consumed) = self.receives.credit_due()
            && self.stage(RECEIVER, path) == Stage::Up
        {
            can(&|world| {
                world.receives.tell(consumed);
                if world.leads_to(SENDER, path) {
                    world.credits[path].push(consumed);
                }
            });
        }
        if !self.segments[path].is_empty() && self.leads_to(RECEIVER, path) {
            can(&|world| {
                let number = world.segments[path].remove(0);
                world.arrive(number);
            });
        }
        if !self.credits[path].is_empty() && self.leads_to(SENDER, path) {
            can(&|world| {
                let consumed = world.credits[path].remove(0);
                assert!(world.sends.credit(consumed));
            });
        }
        if self.ends[SENDER][path].may_offer() {
            can(&|world| {
                world.ends[SENDER][path].offer();
                let epoch = world.ends[SENDER][path].epoch();
                world.say(SENDER, Word::Pair(path, epoch));
            });
        }
        for who in [SENDER, RECEIVER] {
            let alive = matches!(
                self.stage(who, path),
                Stage::Offered | Stage::Connected | Stage::Trying | Stage::Up
            );
            if self.ends[who][path].tries() && self.leads_to(1 - who, path) {
                can(&|world| {
                    assert_eq!(world.ends[who][path].passed(), Todo::SayPassed);
                    let epoch = world.ends[who][path].epoch();
                    world.say(who, Word::Passed(path, epoch));
                });
            }
            if self.faults > 0 && alive {
                can(&|world| {
                    world.faults -= 1;
                    assert_eq!(world.ends[who][path].trouble(), Todo::Drain);
                });
            }
            if self.stage(who, path) == Stage::Draining {
                can(&|world| world.drained(who, path));
            }
        }
    }
}

/// Goes through all states; how many there are.
fn search(segments: u64, faults: u8) -> usize {
    let mut numbers: HashMap<World, u32> = HashMap::new();
    // For each state, those that lead to it.
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut ends = Vec::new();
    let start = World::new(segments, faults);
    let mut waiting = VecDeque::from([start.clone()]);
    numbers.insert(start, 0);
    while let Some(world) = waiting.pop_front() {
        let number = numbers[&world];
        if world.is_end(segments) {
            // What may happen afterwards concerns nobody.
            ends.push(number);
            continue;
        }
        for next in world.successors() {
            let known = numbers.len() as u32;
            let index = *numbers.entry(next.clone()).or_insert(known);
            if index == known {
                before.push(Vec::new());
                waiting.push_back(next);
            }
            before[index as usize].push(number);
        }
    }
    let mut reaches = vec![false; before.len()];
    while let Some(number) = ends.pop() {
        if !std::mem::replace(&mut reaches[number as usize], true) {
            ends.extend(&before[number as usize]);
        }
    }
    let stuck = numbers.iter().find(|(_, number)| !reaches[**number as usize]);
    assert!(stuck.is_none(), "no end can be reached from {:#?}", stuck.map(|(world, _)| world));
    before.len()
}

#[test]
fn no_fault_at_any_point_loses_doubles_or_stops_anything() {
    let mut states = 0;
    for (segments, faults) in [(3, 0), (2, 1), (1, 2)] {
        let found = search(segments, faults);
        println!("{segments} segments, {faults} faults: {found} states");
        states += found;
    }
    assert!(states > 10_000, "{states}");
}
