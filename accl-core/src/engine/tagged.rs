//! Messages with tags, as a state machine: any number of sends and receives of one rank, which begin at any time and end in any order.
//!
//! A receive takes the first message of its tag that comes from the rank that it names, or from any; of several receives that a message suits,
//! the one that was asked for first gets it. Messages between two ranks arrive in the order in which they were sent: one that no
//! receive suits is kept aside as soon as a receive waits for something behind it, and until then it stays at its sender.
//!
//! What peers write to this rank's windows comes in the same way, and needs no receive (`one_sided`).

use super::Poll;
use super::endpoint::Endpoint;
use super::lanes::{Lanes, PIECE_BYTES};
use super::one_sided::{OneSided, Put, Written};
use super::seat::Seat;
use crate::device::{Device, UserPointer};
use crate::error::{Error, Result};
use crate::memory::Scratch;
use crate::sync::prim::{AtomicU32, AtomicUsize, Ordering};
use crate::transport::{MessageHead, Outgoing};
use crate::types::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Set in the tag of each such message: those of `ncclSend` carry their ordinal there.
const TAGGED: u64 = 1 << 63;

/// A send or a receive, as its caller sees it.
#[derive(Debug, Default)]
pub struct Request {
    state: AtomicU32,
    source: AtomicUsize,
    error: OnceLock<Error>,
    /// Whose bell rings when it is over.
    wakes: Option<Arc<Seat>>,
}

const UNDER_WAY: u32 = 0;
const OVER: u32 = 1;

impl Request {
    /// One whose end rings the bell of a rank, which may sleep over other work of its own.
    pub(super) fn that_wakes(seat: Arc<Seat>) -> Self {
        Self { wakes: Some(seat), ..Self::default() }
    }

    /// True once its memory is the caller's again.
    #[inline]
    pub fn is_over(&self) -> bool {
        // Acquire: pairs with `end`; what was received is seen with it.
        self.state.load(Ordering::Acquire) != UNDER_WAY
    }

    /// What has ended it, if that was a failure.
    pub fn error(&self) -> Option<&Error> {
        self.error.get()
    }

    /// Of a receive that is over: who has sent the message.
    pub fn source(&self) -> Rank {
        self.source.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self, outcome: Result<Rank>) {
        match outcome {
            Ok(source) => self.source.store(source, Ordering::Relaxed),
            Err(error) => drop(self.error.set(error)),
        }
        self.state.store(OVER, Ordering::Release);
        if let Some(seat) = &self.wakes {
            seat.ring();
        }
    }
}

/// What a message is about.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Where its bytes lie, or go.
    pub buffer: UserPointer,
    /// How many they are.
    pub bytes: usize,
    /// Whom it goes to or comes from; none: from any rank.
    pub peer: Option<Rank>,
    /// What tells it from others, or where it goes without being received.
    pub label: Label,
    /// When it fails if it is still under way.
    pub deadline: Option<Instant>,
}

/// What a message is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    /// It is received by this tag.
    Tag(u32),
    /// It goes to a window of the receiver's.
    Put(Put),
}

impl Label {
    fn word(self) -> u64 {
        match self {
            Self::Tag(tag) => u64::from(tag) | TAGGED,
            Self::Put(put) => put.word() | TAGGED,
        }
    }
}

impl Message {
    fn suits(&self, peer: Rank, tag: u64) -> bool {
        self.peer.is_none_or(|from| from == peer) && self.label.word() == tag
    }

    fn describe(&self, send: bool) -> String {
        let what = if send { "the send" } else { "the receive" };
        let bytes = self.bytes;
        let tag = match self.label {
            Label::Tag(tag) => tag,
            Label::Put(put) => return put.describe(bytes, self.peer),
        };
        match (send, self.peer) {
            (true, Some(to)) => format!("{what} of {bytes} bytes to rank {to} with tag {tag}"),
            (_, Some(from)) => format!("{what} of {bytes} bytes from rank {from} with tag {tag}"),
            (_, None) => format!("{what} of {bytes} bytes from any rank with tag {tag}"),
        }
    }
}

/// A message with the request of it.
#[derive(Debug)]
struct Asked {
    message: Message,
    request: Arc<Request>,
    /// Of a send, its place among all messages to that rank.
    number: u64,
}

/// A message that nobody has asked for yet.
#[derive(Debug)]
struct Kept {
    tag: u64,
    bytes: usize,
    memory: Scratch,
    /// Its place among all that were kept.
    arrival: u64,
}

/// Where the message goes that is coming from a peer.
#[derive(Debug)]
enum Target {
    Receive(Asked),
    Aside(Kept),
    Window(Written),
}

impl Target {
    fn place(&mut self) -> (UserPointer, usize) {
        match self {
            Self::Receive(asked) => (asked.message.buffer, asked.message.bytes),
            Self::Aside(kept) => (kept.memory.start(), kept.bytes),
            Self::Window(written) => (written.place, written.bytes),
        }
    }
}

/// What comes from one peer.
#[derive(Debug, Default)]
struct Inbound {
    /// The message that is coming, and how much of it has.
    current: Option<(Target, usize)>,
    kept: VecDeque<Kept>,
}

/// All messages of one rank.
#[derive(Debug, Default)]
pub(crate) struct TaggedOp {
    sends: Vec<Asked>,
    /// Receives whose message has not begun to come, in the order in which they were asked for.
    receives: VecDeque<Asked>,
    inbound: BTreeMap<Rank, Inbound>,
    arrivals: u64,
    /// What peers write by themselves, and the signals of it.
    pub(super) one_sided: OneSided,
}

impl TaggedOp {
    /// How many are under way.
    pub(crate) fn under_way(&self) -> usize {
        let coming = |inbound: &&Inbound| matches!(inbound.current, Some((Target::Receive(_), _)));
        let waits = self.one_sided.waits();
        self.sends.len() + self.receives.len() + waits + self.inbound.values().filter(coming).count()
    }

    /// How much there is to look after: what is under way, and the windows to which peers may write at any time.
    pub(crate) fn cares(&self) -> usize {
        self.under_way() + usize::from(self.one_sided.is_open())
    }

    /// Begins a send.
    pub(crate) fn send(
        &mut self,
        message: Message,
        request: Arc<Request>,
        endpoint: &mut Endpoint,
    ) -> Result<()> {
        let Some(peer) = message.peer else { return Err(Error::internal("a send to any rank")) };
        let device = endpoint.device;
        // Kept before anything can fail: whoever fails ends all requests.
        self.sends.push(Asked { message, request, number: u64::MAX });
        let lane = endpoint.fabric()?.point_to_point.to(peer);
        let head = MessageHead { bytes: message.bytes, tag: message.label.word(), scale: None, call: None };
        if let Some(asked) = self.sends.last_mut() {
            asked.number = lane.sent + 1;
        }
        lane.queue(device, Outgoing::new(message.buffer, head))?;
        self.end_sends(&mut endpoint.fabric()?.point_to_point);
        Ok(())
    }

    /// Begins a receive.
    pub(crate) fn receive(
        &mut self,
        message: Message,
        request: Arc<Request>,
        device: &dyn Device,
    ) -> Result<()> {
        let asked = Asked { message, request, number: 0 };
        let first = |(peer, inbound): (&Rank, &Inbound)| {
            let at = inbound.kept.iter().position(|kept| message.suits(*peer, kept.tag))?;
            Some((inbound.kept[at].arrival, *peer, at))
        };
        let Some((_, peer, at)) = self.inbound.iter().filter_map(first).min() else {
            self.receives.push_back(asked);
            return Ok(());
        };
        let kept = self.inbound.get_mut(&peer).and_then(|inbound| inbound.kept.remove(at));
        kept.map_or(Ok(()), |kept| hand_over(device, asked, kept, peer))
    }

    /// Makes what progress it can.
    pub(crate) fn poll(&mut self, endpoint: &mut Endpoint) -> Result<Poll> {
        let (device, rank, ranks) = (endpoint.device, endpoint.rank, endpoint.ranks);
        if ranks == 1 {
            // Signals to oneself need no links, and come with the calls that give them.
            return Ok(if self.cares() == 0 { Poll::Done } else { Poll::Blocked });
        }
        let lanes = &mut endpoint.fabric()?.point_to_point;
        let mut moved = lanes.pump(device)?;
        moved |= self.end_sends(lanes);
        if self.one_sided.is_open() || self.receives.iter().any(|asked| asked.message.peer.is_none()) {
            for peer in (0..ranks).filter(|peer| *peer != rank) {
                let outcome = self.take_from(peer, lanes, device);
                // Who may send and has gone in good order is not missed, as long as others are there.
                let excused = outcome.is_err() && lanes.has_left(peer) && !self.needs(peer);
                moved |= if excused { false } else { outcome? };
            }
        } else {
            // By number: more may be asked of a peer than one receive, and each look is at all of its messages.
            let mut after = None;
            while let Some(peer) = self.next_source(after) {
                moved |= self.take_from(peer, lanes, device)?;
                after = Some(peer);
            }
        }
        Ok(match (self.cares(), moved) {
            (0, _) => Poll::Done,
            (_, true) => Poll::Advanced,
            (_, false) => Poll::Blocked,
        })
    }

    /// True if something is to come from this rank and no other.
    fn needs(&self, peer: Rank) -> bool {
        let named = self.receives.iter().any(|asked| asked.message.peer == Some(peer));
        named
            || self.one_sided.lacks(peer)
            || self.inbound.get(&peer).is_some_and(|inbound| inbound.current.is_some())
    }

    /// The next rank, behind `after`, that something is to come from.
    fn next_source(&self, after: Option<Rank>) -> Option<Rank> {
        let behind = |peer: &Rank| after.is_none_or(|after| *peer > after);
        let named = self.receives.iter().filter_map(|asked| asked.message.peer);
        let coming =
            self.inbound.iter().filter(|(_, inbound)| inbound.current.is_some()).map(|(peer, _)| *peer);
        named.chain(coming).filter(behind).min()
    }

    fn end_sends(&mut self, lanes: &mut Lanes) -> bool {
        let before = self.sends.len();
        self.sends.retain(|asked| {
            let Some(peer) = asked.message.peer else { return false };
            let over = lanes.to(peer).finished() >= asked.number;
            if over {
                asked.request.end(Ok(peer));
            }
            !over
        });
        self.sends.len() < before
    }

    /// Takes what has come from a peer: the rest of a message, or some of it.
    fn take_from(&mut self, peer: Rank, lanes: &mut Lanes, device: &dyn Device) -> Result<bool> {
        let receiver = &mut *lanes.to(peer).receiver;
        let mut moved = false;
        let mut taken = 0;
        // Others wait meanwhile, and so does whoever wants to abort.
        while taken < PIECE_BYTES {
            let mut current = self.inbound.get_mut(&peer).and_then(|inbound| inbound.current.take());
            if current.is_none() {
                let Some(head) = receiver.head()? else { return Ok(moved) };
                current = self.target(peer, &head)?.map(|target| (target, 0));
            }
            let Some((mut target, mut done)) = current else { return Ok(moved) };
            let (start, bytes) = target.place();
            let outcome = if bytes == 0 {
                receiver.advance(0);
                Ok(0)
            } else {
                receiver.take(device, start.byte_add(done), (bytes - done).min(PIECE_BYTES), false)
            };
            let piece = *outcome.as_ref().unwrap_or(&0);
            done += piece;
            taken += piece;
            if done < bytes {
                // Also if it has failed: all that is under way fails with it.
                self.inbound.entry(peer).or_default().current = Some((target, done));
                if outcome? == 0 {
                    return Ok(moved);
                }
            } else {
                self.end_target(target, peer, device)?;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Where a message goes that begins to come; none if it has to wait for a receive.
    fn target(&mut self, peer: Rank, head: &MessageHead) -> Result<Option<Target>> {
        if head.tag & TAGGED == 0 {
            return Err(Error::usage(format!(
                "rank {peer} has sent {} bytes by ncclSend where messages with tags are received; use one kind on a communicator",
                head.bytes
            )));
        }
        if let Some(put) = Put::of_word(head.tag) {
            return self.one_sided.place(put, head.bytes, peer).map(|written| Some(Target::Window(written)));
        }
        if let Some(at) = self.receives.iter().position(|asked| asked.message.suits(peer, head.tag)) {
            let Some(asked) = self.receives.remove(at) else { return Ok(None) };
            let outcome = same_size(&asked.message, head.bytes, peer);
            if outcome.is_err() {
                // It fails with all others.
                self.receives.push_front(asked);
                return outcome.map(|()| None);
            }
            return Ok(Some(Target::Receive(asked)));
        }
        let wanted = |asked: &Asked| asked.message.peer.is_none_or(|from| from == peer);
        if !self.receives.iter().any(wanted) {
            return Ok(None);
        }
        let mut memory = Scratch::default();
        memory.ensure(head.bytes)?;
        self.arrivals += 1;
        Ok(Some(Target::Aside(Kept { tag: head.tag, bytes: head.bytes, memory, arrival: self.arrivals })))
    }

    /// A message has come.
    fn end_target(&mut self, target: Target, peer: Rank, device: &dyn Device) -> Result<()> {
        match target {
            Target::Receive(asked) => asked.request.end(Ok(peer)),
            Target::Window(written) => self.one_sided.arrived(written, peer),
            Target::Aside(kept) => {
                // It may have been asked for meanwhile.
                match self.receives.iter().position(|asked| asked.message.suits(peer, kept.tag)) {
                    Some(at) => {
                        let asked = self.receives.remove(at);
                        return asked.map_or(Ok(()), |asked| hand_over(device, asked, kept, peer));
                    }
                    None => self.inbound.entry(peer).or_default().kept.push_back(kept),
                }
            }
        }
        Ok(())
    }

    /// Ends everything: nothing of it will be carried out.
    pub(crate) fn fail(&mut self, error: &Error) {
        let coming = self.inbound.values_mut().filter_map(|inbound| inbound.current.take());
        let coming = coming.filter_map(|(target, _)| match target {
            Target::Receive(asked) => Some(asked),
            Target::Aside(_) | Target::Window(_) => None,
        });
        for asked in self.sends.drain(..).chain(self.receives.drain(..)).chain(coming) {
            asked.request.end(Err(error.clone()));
        }
        self.one_sided.fail(error);
        self.inbound.clear();
    }

    fn all(&self) -> impl Iterator<Item = (bool, &Message)> {
        let coming = self.inbound.values().filter_map(|inbound| match &inbound.current {
            Some((Target::Receive(asked), _)) => Some((false, &asked.message)),
            _ => None,
        });
        let receives = self.receives.iter().map(|asked| (false, &asked.message));
        coming.chain(receives).chain(self.sends.iter().map(|asked| (true, &asked.message)))
    }

    /// An error if something is not over in time.
    pub(crate) fn check_deadlines(&self, now: Instant) -> Result<()> {
        let late = |(_, message): &(bool, &Message)| message.deadline.is_some_and(|deadline| deadline <= now);
        let Some((send, message)) = self.all().find(late) else { return Ok(()) };
        let whom = message.peer.map_or_else(|| "all other ranks".to_string(), |peer| format!("rank {peer}"));
        Err(Error::new(
            crate::ErrorKind::Timeout,
            format!(
                "{} was not over when its time had passed: {}; see what {whom} does, with accl status",
                message.describe(send),
                if send { "it was not received" } else { "nothing has come, or not all of it" }
            ),
        ))
    }

    /// The ranks that this one waits for. Of those who may send what is received from any rank, some may have gone in good order, as long
    /// as others are there: `is_gone` says who has.
    pub(crate) fn waits_for(
        &self,
        rank: Rank,
        ranks: usize,
        is_gone: impl Fn(Rank) -> bool,
        missing: &mut Vec<Rank>,
    ) {
        self.one_sided.waits_for(missing);
        for (_, message) in self.all() {
            match message.peer {
                Some(peer) => missing.push(peer),
                None => {
                    let others = || (0..ranks).filter(|peer| *peer != rank);
                    let all_gone = others().all(&is_gone);
                    missing.extend(others().filter(|peer| all_gone || !is_gone(*peer)));
                }
            }
        }
    }

    /// What it waits for first, if that is one rank's: direction, peer and tag.
    pub(crate) fn waiting(&self) -> Option<(bool, Rank, u64)> {
        let name = |message: &Message| match message.label {
            Label::Tag(tag) => u64::from(tag),
            Label::Put(put) => put.offset,
        };
        let first = self.all().find_map(|(send, message)| Some((send, message.peer?, name(message))));
        first.or_else(|| self.one_sided.waiting())
    }

    /// The first that is under way, in words.
    pub(crate) fn describe(&self) -> Option<String> {
        let first = self.all().next().map(|(send, message)| message.describe(send));
        first.or_else(|| self.one_sided.describe())
    }
}

fn hand_over(device: &dyn Device, asked: Asked, mut kept: Kept, peer: Rank) -> Result<()> {
    let outcome = same_size(&asked.message, kept.bytes, peer);
    if outcome.is_ok() && kept.bytes > 0 {
        device.copy(asked.message.buffer, kept.memory.start(), kept.bytes);
    }
    asked.request.end(outcome.clone().map(|()| peer));
    outcome
}

fn same_size(message: &Message, sent_bytes: usize, peer: Rank) -> Result<()> {
    if message.bytes == sent_bytes {
        return Ok(());
    }
    let tag = match message.label {
        Label::Tag(tag) => format!(" with tag {tag}"),
        Label::Put(_) => String::new(),
    };
    Err(Error::usage(format!(
        "sizes differ: rank {peer} sends {sent_bytes} bytes{tag}, and the receive is for {}; make both equal",
        message.bytes
    )))
}
