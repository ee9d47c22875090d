//! The plan checker: runs the plans of all ranks on sets of ranks in place of numbers.
//!
//! It proves that every output element holds every rank that it should exactly once, that each send has its
//! receive of the same length and kind, that nothing waits for ever, and that no step writes memory which a
//! message may still be reading.
//!
//! One schedule suffices. Each rank is sequential, messages between two ranks keep their order, sends never wait
//! and receives name their sender: such a network is confluent (Kahn, 1974), so every schedule gives the same
//! messages and either all of them end or none does. The only thing that depends on the schedule is when a
//! queued span is read; that is covered by causality: a write is accepted only if the reader's progress is known
//! to the writer through messages or a drain (vector clocks).
//!
//! Memory that is read in place is covered the same way: who reads must know of the last write, and who writes, or
//! hands its buffers back at the end, must know of every reading.

use super::{Algorithm, Buffer, Folding, Layout, Operand, Plan, Request, Span, Step, hierarchical, staging};
use crate::types::{Collective, Rank};
use std::collections::VecDeque;

/// The ranks whose input is in an element, and which input element it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    ranks: u64,
    index: usize,
}

/// A physical array of one rank: with in-place calls, two buffers are one array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    area: Area,
    index: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Area {
    /// What the caller and all peers can see.
    Shared,
    Partial,
    Transit,
}

/// Slots that staging plans need at least, of `align` elements each.
fn least_staging(ranks: usize, align_elems: usize) -> usize {
    (2 * (ranks + 1)).max(4) * align_elems
}

#[derive(Debug)]
struct Message {
    values: Vec<Value>,
    buffer: Buffer,
    /// The sender's clock, merged by the receiver.
    clock: Vec<u64>,
    id: usize,
}

/// Memory that a queued message reads.
#[derive(Debug)]
struct Lent {
    first: Place,
    count: usize,
    to: Rank,
    id: usize,
    /// The receiver's own clock when it had consumed the message.
    consumed_at: Option<u64>,
}

impl Lent {
    /// True if `count` elements from `first` on are partly those that were lent.
    fn overlaps(&self, first: Place, count: usize) -> bool {
        let (mine, theirs) = (self.first.index, first.index);
        self.first.area == first.area && mine < theirs + count && theirs < mine + self.count
    }
}

/// Where a plan comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Messages(Algorithm),
    Reading(Folding),
    Staging,
    /// On hosts of some pattern, with an algorithm between them.
    Hosts(Pattern, Algorithm),
}

/// How ranks are spread over hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    /// Each on one of its own.
    Apart,
    /// Neighbours together, in threes.
    Blocks,
    /// In turn on so many.
    Turns(usize),
    /// One host has most, others have one or two.
    Uneven,
}

impl Pattern {
    fn layout(self, ranks: usize) -> Layout {
        let host = |rank: Rank| match self {
            Self::Apart => rank,
            Self::Blocks => rank / 3,
            Self::Turns(hosts) => rank % hosts,
            Self::Uneven => {
                if rank.is_multiple_of(5) {
                    rank / 10
                } else {
                    1000
                }
            }
        };
        Layout::of(&(0..ranks).map(host).collect::<Vec<_>>())
    }
}

const WAYS: [Way; 17] = [
    Way::Messages(Algorithm::Direct),
    Way::Messages(Algorithm::Ring),
    Way::Messages(Algorithm::Tree),
    Way::Messages(Algorithm::RecursiveDoubling),
    Way::Reading(Folding::Owner),
    Way::Reading(Folding::Everyone),
    Way::Staging,
    Way::Hosts(Pattern::Apart, Algorithm::Ring),
    Way::Hosts(Pattern::Blocks, Algorithm::Ring),
    Way::Hosts(Pattern::Turns(2), Algorithm::RecursiveDoubling),
    Way::Hosts(Pattern::Turns(3), Algorithm::Ring),
    Way::Hosts(Pattern::Apart, Algorithm::Direct),
    Way::Hosts(Pattern::Blocks, Algorithm::Direct),
    Way::Hosts(Pattern::Turns(3), Algorithm::Direct),
    Way::Hosts(Pattern::Uneven, Algorithm::Direct),
    Way::Hosts(Pattern::Uneven, Algorithm::Ring),
    Way::Hosts(Pattern::Uneven, Algorithm::Tree),
];

impl Way {
    fn serves(self, kind: Collective) -> bool {
        match self {
            Self::Messages(algorithm) => algorithm.serves(kind),
            Self::Reading(_) => true,
            Self::Staging => staging::serves(kind),
            Self::Hosts(_, between) => hierarchical::serves(kind, between),
        }
    }

    /// The engine folds at everyone only where no rank's call is in place.
    fn allows_in_place(self, kind: Collective) -> bool {
        kind != Collective::AllToAll
            && (self != Self::Reading(Folding::Everyone) || kind != Collective::AllReduce)
    }

    fn plan(self, request: &Request) -> Plan {
        let mut plan = Plan::default();
        match self {
            Self::Messages(algorithm) => request.plan(algorithm, &mut plan),
            Self::Reading(_) | Self::Staging | Self::Hosts(..) if request.ranks == 1 => {
                request.plan(Algorithm::Direct, &mut plan)
            }
            Self::Reading(folding) => request.plan_reading(folding, &mut plan),
            Self::Staging => request.plan_staging(&mut plan),
            Self::Hosts(pattern, between) => {
                request.plan_hierarchical(&pattern.layout(request.ranks), between, &mut plan);
            }
        }
        plan
    }
}

/// Who has touched an element of user memory, by the toucher's own clock.
#[derive(Clone, Default, Debug)]
struct Touched {
    written: u64,
    read: Vec<(Rank, u64)>,
}

struct Machine {
    request: Request,
    in_place: bool,
    plan: Plan,
    next: usize,
    /// User memory, and the staging area from `staging` on.
    memory: Vec<Option<Value>>,
    staging: usize,
    touched: Vec<Touched>,
    partial: Vec<Option<Value>>,
    transit: Vec<Option<Value>>,
    clock: Vec<u64>,
    /// The clock at each point that was told.
    told: Vec<Vec<u64>>,
    lent: Vec<Lent>,
}

struct World {
    machines: Vec<Machine>,
    links: Vec<VecDeque<Message>>,
    messages: usize,
}

fn input_elems(request: &Request) -> usize {
    match request.kind {
        Collective::ReduceScatter | Collective::AllToAll => request.ranks * request.count_elems,
        Collective::Scatter if request.rank == request.root => request.ranks * request.count_elems,
        _ => request.count_elems,
    }
}

fn output_elems(request: &Request) -> usize {
    match request.kind {
        Collective::AllGather | Collective::AllToAll | Collective::Split => {
            request.ranks * request.count_elems
        }
        Collective::Gather if request.rank == request.root => request.ranks * request.count_elems,
        _ => request.count_elems,
    }
}

/// Where in a common array the input and the output begin for an in-place call.
fn offsets(request: &Request) -> (usize, usize) {
    let own = request.rank * request.count_elems;
    match request.kind {
        Collective::AllGather | Collective::Split => (own, 0),
        Collective::ReduceScatter => (0, own),
        Collective::Gather if request.rank == request.root => (own, 0),
        Collective::Scatter if request.rank == request.root => (0, own),
        _ => (0, 0),
    }
}

impl Machine {
    fn new(request: Request, way: Way, in_place: bool) -> Self {
        let plan = way.plan(&request);
        let (input, output) = (input_elems(&request), output_elems(&request));
        let staging = input + output + request.ranks * request.count_elems;
        let memory = staging + request.staging_elems;
        let mut machine = Self {
            request,
            in_place,
            next: 0,
            memory: vec![None; memory],
            staging,
            touched: vec![Touched::default(); memory],
            partial: vec![None; plan.partial_elems],
            transit: vec![None; plan.transit_elems],
            plan,
            clock: vec![0; request.ranks],
            told: Vec::new(),
            lent: Vec::new(),
        };
        for index in 0..input {
            let place = machine.place(Buffer::Input, index);
            machine.memory[place.index] = Some(Value { ranks: 1 << request.rank, index });
        }
        machine
    }

    fn place(&self, buffer: Buffer, index: usize) -> Place {
        let (input, output) =
            if self.in_place { offsets(&self.request) } else { (0, input_elems(&self.request)) };
        match buffer {
            Buffer::Input => Place { area: Area::Shared, index: input + index },
            Buffer::Output => Place { area: Area::Shared, index: output + index },
            Buffer::Partial => Place { area: Area::Partial, index },
            Buffer::Transit => Place { area: Area::Transit, index },
            Buffer::Staging => Place { area: Area::Shared, index: self.staging + index },
        }
    }

    fn places(&self, span: &Span) -> Vec<Place> {
        let limit = match span.buffer {
            Buffer::Input => input_elems(&self.request),
            Buffer::Output => output_elems(&self.request),
            Buffer::Partial => self.plan.partial_elems,
            Buffer::Transit => self.plan.transit_elems,
            Buffer::Staging => self.request.staging_elems,
        };
        assert!(span.start_elems + span.count_elems <= limit, "span {span:?} leaves its buffer of {limit}");
        (span.start_elems..span.start_elems + span.count_elems)
            .map(|index| self.place(span.buffer, index))
            .collect()
    }

    fn read(&self, span: &Span) -> Vec<Value> {
        let cell = |place: &Place| match place.area {
            Area::Shared => self.memory[place.index],
            Area::Partial => self.partial[place.index],
            Area::Transit => self.transit[place.index],
        };
        self.places(span).iter().map(|place| cell(place).expect("read of memory that nobody wrote")).collect()
    }

    fn write(&mut self, span: &Span, values: &[Value]) {
        assert_eq!(span.count_elems, values.len(), "a message of another length");
        // What is known to have been consumed may be written from now on.
        let clock = &self.clock;
        self.lent.retain(|lent| lent.consumed_at.is_none_or(|at| at > clock[lent.to]));
        let places = self.places(span);
        if let Some(first) = places.first() {
            let reader =
                self.lent.iter().find(|lent| lent.overlaps(*first, places.len())).map(|lent| lent.to);
            let rank = self.request.rank;
            assert_eq!(reader, None, "rank {rank} writes {span:?}, which that rank may be reading");
        }
        let now = self.clock[self.request.rank];
        for place in places.iter().filter(|place| place.area == Area::Shared) {
            self.touched[place.index].written = now;
            self.assert_unread(place.index);
        }
        for (place, value) in places.into_iter().zip(values) {
            let area = match place.area {
                Area::Shared => &mut self.memory,
                Area::Partial => &mut self.partial,
                Area::Transit => &mut self.transit,
            };
            area[place.index] = Some(*value);
        }
    }

    /// Everybody who has read an element in place must be known to be through.
    fn assert_unread(&self, index: usize) {
        for (reader, at) in &self.touched[index].read {
            let rank = self.request.rank;
            assert!(
                self.clock[*reader] >= *at,
                "rank {rank} changes element {index}: rank {reader} may be reading it"
            );
        }
    }
}

impl World {
    /// What `rank` reads in the memory of `from`.
    fn read_remote(&mut self, rank: Rank, from: Rank, span: &Span) -> Vec<Value> {
        assert!(!matches!(span.buffer, Buffer::Partial | Buffer::Transit), "scratch memory is nobody else's");
        let (now, knows) = (self.machines[rank].clock[rank], self.machines[rank].clock[from]);
        let owner = &mut self.machines[from];
        for place in owner.places(span) {
            let touched = &mut owner.touched[place.index];
            assert!(
                touched.written <= knows,
                "rank {rank} reads {span:?} of rank {from}, which may not be there"
            );
            touched.read.push((rank, now));
        }
        owner.read(span)
    }

    fn link(&mut self, from: Rank, to: Rank) -> &mut VecDeque<Message> {
        let ranks = self.machines.len();
        &mut self.links[from * ranks + to]
    }

    fn send(&mut self, rank: Rank, to: Rank, span: &Span) {
        assert_ne!(rank, to);
        let machine = &mut self.machines[rank];
        let id = self.messages;
        self.messages += 1;
        let message =
            Message { values: machine.read(span), buffer: span.buffer, clock: machine.clock.clone(), id };
        let (first, count) = (machine.place(span.buffer, span.start_elems), span.count_elems);
        machine.lent.push(Lent { first, count, to, id, consumed_at: None });
        self.link(rank, to).push_back(message);
    }

    fn receive(&mut self, rank: Rank, from: Rank) -> Message {
        let message = self.link(from, rank).pop_front().expect("checked before");
        let machine = &mut self.machines[rank];
        for (mine, theirs) in machine.clock.iter_mut().zip(&message.clock) {
            *mine = (*mine).max(*theirs);
        }
        machine.clock[rank] += 1;
        let now = machine.clock[rank];
        let lent =
            self.machines[from].lent.iter_mut().find(|lent| lent.id == message.id).expect("lent when sent");
        lent.consumed_at = Some(now);
        message
    }

    fn ready(&mut self, rank: Rank) -> bool {
        let machine = &self.machines[rank];
        match machine.plan.steps[machine.next].clone() {
            Step::Send { .. } | Step::Copy { .. } | Step::Read { .. } | Step::Tell => true,
            Step::Await { from, tells } => self.machines[from].told.len() as u64 >= tells,
            Step::Recv { from, .. } => !self.link(from, rank).is_empty(),
            Step::Drain { to } => self.link(rank, to).is_empty(),
            Step::Reduce { operands, .. } => {
                let operands = machine.plan.operands[operands].to_vec();
                operands.iter().all(|operand| match operand {
                    Operand::Local(_) | Operand::Remote(..) => true,
                    Operand::Peer(from, _) => !self.link(*from, rank).is_empty(),
                })
            }
        }
    }

    fn step(&mut self, rank: Rank) {
        let step = self.machines[rank].plan.steps[self.machines[rank].next].clone();
        self.machines[rank].clock[rank] += 1;
        match step {
            Step::Read { from, source, to } => {
                let values = self.read_remote(rank, from, &source);
                self.machines[rank].write(&to, &values);
            }
            Step::Tell => {
                let clock = self.machines[rank].clock.clone();
                self.machines[rank].told.push(clock);
            }
            Step::Await { from, tells } => {
                let told = self.machines[from].told[tells as usize - 1].clone();
                for (mine, theirs) in self.machines[rank].clock.iter_mut().zip(&told) {
                    *mine = (*mine).max(*theirs);
                }
            }
            Step::Send { to, span } => self.send(rank, to, &span),
            Step::Recv { from, span } => {
                let message = self.receive(rank, from);
                assert_eq!(message.buffer == Buffer::Partial, span.buffer == Buffer::Partial);
                self.machines[rank].write(&span, &message.values);
            }
            Step::Copy { from, to } => {
                let values = self.machines[rank].read(&from);
                if self.machines[rank].places(&from) != self.machines[rank].places(&to) {
                    self.machines[rank].write(&to, &values);
                }
            }
            Step::Drain { to } => {
                // The consumer's word travels with its acknowledgement.
                let known = self.machines[rank]
                    .lent
                    .iter()
                    .filter(|lent| lent.to == to)
                    .map(|lent| lent.consumed_at.expect("drained"))
                    .max();
                let clock = &mut self.machines[rank].clock;
                clock[to] = clock[to].max(known.unwrap_or(0));
            }
            Step::Reduce { operands, to } => self.reduce(rank, operands, &to),
        }
        self.machines[rank].next += 1;
    }

    fn reduce(&mut self, rank: Rank, operands: std::ops::Range<usize>, to: &Span) {
        let mut sum: Option<Vec<Value>> = None;
        for index in operands {
            let values = match self.machines[rank].plan.operands[index] {
                Operand::Local(span) => self.machines[rank].read(&span),
                Operand::Peer(from, buffer) => {
                    let message = self.receive(rank, from);
                    assert_eq!(message.buffer, buffer, "rank {rank} takes a message for what it is not");
                    message.values
                }
                Operand::Remote(from, span) => self.read_remote(rank, from, &span),
            };
            sum = Some(match sum {
                None => values,
                Some(sum) => sum.iter().zip(&values).map(|(a, b)| join(*a, *b)).collect(),
            });
        }
        self.machines[rank].write(to, &sum.expect("a reduction of nothing"));
    }
}

fn join(a: Value, b: Value) -> Value {
    assert_eq!(a.index, b.index, "different elements are combined");
    assert_eq!(a.ranks & b.ranks, 0, "a rank's input is counted twice");
    Value { ranks: a.ranks | b.ranks, index: a.index }
}

fn expected(request: &Request) -> Vec<Value> {
    let (ranks, count) = (request.ranks, request.count_elems);
    let everybody = u64::MAX >> (64 - ranks);
    let one = |rank: Rank, index| Value { ranks: 1 << rank, index };
    let is_root = request.rank == request.root;
    match request.kind {
        Collective::AllReduce => (0..count).map(|index| Value { ranks: everybody, index }).collect(),
        Collective::Reduce if is_root => (0..count).map(|index| Value { ranks: everybody, index }).collect(),
        Collective::Broadcast => (0..count).map(|index| one(request.root, index)).collect(),
        Collective::AllGather | Collective::Split => {
            (0..ranks * count).map(|index| one(index / count, index % count)).collect()
        }
        Collective::ReduceScatter => {
            (0..count).map(|index| Value { ranks: everybody, index: request.rank * count + index }).collect()
        }
        Collective::AllToAll => {
            (0..ranks * count).map(|index| one(index / count, request.rank * count + index % count)).collect()
        }
        Collective::Gather if is_root => {
            (0..ranks * count).map(|index| one(index / count, index % count)).collect()
        }
        Collective::Scatter => {
            (0..count).map(|index| one(request.root, request.rank * count + index)).collect()
        }
        Collective::Reduce | Collective::Gather => Vec::new(),
    }
}

fn check(template: Request, way: Way, in_place: bool) {
    let ranks = template.ranks;
    let machines = (0..ranks).map(|rank| Machine::new(Request { rank, ..template }, way, in_place)).collect();
    let links = (0..ranks * ranks).map(|_| VecDeque::new()).collect();
    let mut world = World { machines, links, messages: 0 };
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while world.machines[rank].next < world.machines[rank].plan.steps.len() && world.ready(rank) {
                world.step(rank);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for machine in &world.machines {
        let rank = machine.request.rank;
        assert_eq!(
            machine.next,
            machine.plan.steps.len(),
            "rank {rank} waits for ever at {:?}",
            machine.plan.steps.get(machine.next)
        );
        let wanted = expected(&machine.request);
        let span = Span::output(0..wanted.len());
        assert_eq!(machine.read(&span), wanted, "rank {rank}");
        // The caller may change its buffers now. The staging area is written next when all have begun the next operation.
        (0..machine.staging).for_each(|index| machine.assert_unread(index));
    }
    assert!(world.links.iter().all(VecDeque::is_empty), "messages that nobody received");
}

fn check_case(kind: Collective, way: Way, ranks: usize, count_elems: usize, segment_elems: usize) {
    let roots = if kind.has_root() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
    for root in roots {
        for in_place in [false, true] {
            if in_place && !way.allows_in_place(kind) {
                continue;
            }
            let request = Request {
                kind,
                ranks,
                rank: 0,
                root,
                count_elems,
                segment_elems,
                align_elems: 1 + ranks % 3,
                staging_elems: least_staging(ranks, 1 + ranks % 3) * (1 + count_elems % 3),
            };
            check(request, way, in_place);
        }
    }
}

pub(super) const KINDS: [Collective; 8] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

#[test]
fn every_plan_is_right_for_1_to_64_ranks() {
    let mut checked = 0;
    for way in WAYS {
        for kind in KINDS.into_iter().filter(|kind| way.serves(*kind)) {
            // Of plans between hosts there are many, and large ones are like small ones.
            let step = if matches!(way, Way::Hosts(..)) { 5 } else { 1 };
            for ranks in (1..=17).chain((18..=64).step_by(step)) {
                let counts =
                    if ranks <= 17 { vec![0, 1, ranks - 1, ranks, ranks + 1] } else { vec![1, ranks + 1] };
                for count in counts {
                    check_case(kind, way, ranks, count, 2);
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} cases");
    assert!(checked > 4000);
}

#[test]
fn many_segments_in_flight() {
    for way in WAYS {
        for kind in KINDS.into_iter().filter(|kind| way.serves(*kind)) {
            for ranks in 1..=9 {
                check_case(kind, way, ranks, 61, 1);
            }
        }
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn any_shape(
            kind in prop::sample::select(&KINDS[..]),
            way in prop::sample::select(&WAYS[..]),
            ranks in 1usize..20,
            count in 0usize..90,
            segment in 1usize..30,
        ) {
            if way.serves(kind) {
                check_case(kind, way, ranks, count, segment);
            }
        }
    }
}

#[test]
#[should_panic(expected = "may be reading")]
fn a_write_under_a_reader_is_found() {
    let request = Request {
        kind: Collective::AllReduce,
        ranks: 2,
        rank: 0,
        root: 0,
        count_elems: 1,
        segment_elems: 1,
        align_elems: 1,
        staging_elems: 8,
    };
    let mut machine = Machine::new(request, Way::Messages(Algorithm::Direct), true);
    let first = machine.place(Buffer::Input, 0);
    machine.lent.push(Lent { first, count: 1, to: 1, id: 0, consumed_at: Some(1) });
    machine.write(&Span::output(0..1), &[Value { ranks: 3, index: 0 }]);
}

#[test]
#[should_panic(expected = "which may not be there")]
fn folding_everywhere_in_place_is_found() {
    let request = Request {
        kind: Collective::AllReduce,
        ranks: 2,
        rank: 0,
        root: 0,
        count_elems: 4,
        segment_elems: 4,
        align_elems: 1,
        staging_elems: 8,
    };
    check(request, Way::Reading(Folding::Everyone), true);
}
