//! Events as plugins read them, and how calls become events.
//!
//! One layout serves all versions: a later one is an earlier one with more at its end, and version 4's kind is the first byte
//! of a number that is smaller than 256.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use accl_core::comm::{Communicator, Selection};
use accl_core::types::{Collective, DataType};

use super::{Context, Handle};

/// Kinds of events, as bits: what a plugin asks for, and what it is told of.
const COLLECTIVE: u64 = 1 << 1;
const MESSAGE: u64 = 1 << 2;
/// From here on since version 5.
const GROUP_CALL: u64 = 1 << 8;
const COLLECTIVE_CALL: u64 = 1 << 9;
const MESSAGE_CALL: u64 = 1 << 10;
/// Of proxies, their steps, kernels and networks: none of these comes, but who asks for them is told what they would descend from.
const BELOW: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7;

/// What a plugin is told of that asks for these kinds: an event never comes without those that it descends from.
pub(super) fn with_parents(mut wanted: u64) -> u64 {
    if wanted & BELOW != 0 {
        wanted |= COLLECTIVE | MESSAGE;
    }
    for (kind, parent) in [(COLLECTIVE, COLLECTIVE_CALL), (MESSAGE, MESSAGE_CALL)] {
        if wanted & kind != 0 {
            wanted |= parent;
        }
    }
    if wanted & (COLLECTIVE_CALL | MESSAGE_CALL) != 0 { wanted | GROUP_CALL } else { wanted }
}

/// An event as a plugin reads it.
#[repr(C)]
pub(super) struct Event {
    pub(super) kind: u64,
    parent: Handle,
    rank: c_int,
    body: Body,
}

#[repr(C)]
union Body {
    collective: CollectiveBody,
    collective_call: CollectiveCallBody,
    message: MessageBody,
    message_call: MessageCallBody,
    group_call: GroupCallBody,
    /// More than any version has.
    _room: [u64; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveBody {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
    group: Handle,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveCallBody {
    function: *const c_char,
    count: usize,
    data_type: *const c_char,
    root: c_int,
    stream: Handle,
    is_captured: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MessageBody {
    function: *const c_char,
    buffer: Handle,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
    group: Handle,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MessageCallBody {
    function: *const c_char,
    count: usize,
    data_type: *const c_char,
    stream: Handle,
    is_captured: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GroupCallBody {
    is_captured: bool,
    depth: c_int,
}

/// A call, for those who are told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its name without a prefix.
    pub(crate) name: &'static str,
    /// `None` for a send or a receive.
    pub(crate) kind: Option<Collective>,
    pub(crate) send: *const c_void,
    /// Also what is sent.
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    /// The root, or the peer.
    pub(crate) root: c_int,
    pub(crate) stream: *mut c_void,
    /// By what a collective goes, if that was chosen.
    pub(crate) selection: Selection,
}

impl Call {
    /// The event of the call as the program makes it.
    pub(super) fn api_event(&self, rank: c_int, group: Handle) -> Event {
        let (function, data_type) = (self.function().as_ptr(), type_name(self.data_type).as_ptr());
        let (count, stream, is_captured) = (self.count, self.stream, false);
        let mut event = Event::none(rank);
        event.parent = group;
        if self.kind.is_some() {
            event.kind = COLLECTIVE_CALL;
            event.body.collective_call =
                CollectiveCallBody { function, count, data_type, root: self.root, stream, is_captured };
        } else {
            event.kind = MESSAGE_CALL;
            event.body.message_call = MessageCallBody { function, count, data_type, stream, is_captured };
        }
        event
    }

    /// The event of what is done for it.
    pub(super) fn event(&self, rank: c_int, parent: Handle, context: &Context, comm: &Communicator) -> Event {
        let (function, data_type) = (self.function().as_ptr(), type_name(self.data_type).as_ptr());
        let mut event = Event::none(rank);
        event.parent = parent;
        let Some(kind) = self.kind else {
            event.kind = MESSAGE;
            event.body.message = MessageBody {
                function,
                buffer: self.recv,
                data_type,
                count: self.count,
                peer: self.root,
                channels: 1,
                group: null_mut(),
            };
            return event;
        };
        let explained = comm.explain_with(kind, self.count, self.data_type, self.selection);
        let way = explained.map_or("", |explained| explained.way);
        event.kind = COLLECTIVE;
        event.body.collective = CollectiveBody {
            sequence: context.sequence - 1,
            function,
            send: self.send,
            recv: self.recv,
            count: self.count,
            root: self.root,
            data_type,
            channels: 1,
            warps: 0,
            algorithm: algorithm(way).as_ptr(),
            protocol: c"SIMPLE".as_ptr(),
            group: null_mut(),
        };
        event
    }

    fn function(&self) -> &'static CStr {
        match (self.kind, self.name) {
            (Some(Collective::AllReduce), _) => c"AllReduce",
            (Some(Collective::Reduce), _) => c"Reduce",
            (Some(Collective::Broadcast), _) => c"Broadcast",
            (Some(Collective::AllGather), _) => c"AllGather",
            (Some(Collective::ReduceScatter), _) => c"ReduceScatter",
            (Some(Collective::AllToAll), _) => c"AlltoAll",
            (Some(Collective::Gather), _) => c"Gather",
            (Some(Collective::Scatter), _) => c"Scatter",
            (_, "Send") => c"Send",
            _ => c"Recv",
        }
    }
}

impl Event {
    /// That of a group of calls so deep inside others, which NCCL counts from 1 for a call outside of groups.
    pub(super) fn of_group(rank: c_int, depth: c_int) -> Self {
        let body = Body { group_call: GroupCallBody { is_captured: false, depth } };
        Self { kind: GROUP_CALL, body, ..Self::none(rank) }
    }

    fn none(rank: c_int) -> Self {
        Self { kind: 0, parent: null_mut(), rank, body: Body { _room: [0; 16] } }
    }
}

/// NCCL's words for algorithms that it has; DIRECT for the others.
fn algorithm(way: &str) -> &'static CStr {
    match way {
        "ring" | "hosts-ring" => c"RING",
        "tree" | "hosts-tree" => c"TREE",
        _ => c"DIRECT",
    }
}

fn type_name(data_type: DataType) -> &'static CStr {
    match data_type {
        DataType::Int8 => c"ncclInt8",
        DataType::Uint8 => c"ncclUint8",
        DataType::Int32 => c"ncclInt32",
        DataType::Uint32 => c"ncclUint32",
        DataType::Int64 => c"ncclInt64",
        DataType::Uint64 => c"ncclUint64",
        DataType::Float16 => c"ncclFloat16",
        DataType::Float32 => c"ncclFloat32",
        DataType::Float64 => c"ncclFloat64",
        DataType::Bfloat16 => c"ncclBfloat16",
        DataType::Float8e4m3 => c"ncclFloat8e4m3",
        DataType::Float8e5m2 => c"ncclFloat8e5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn who_asks_for_an_event_hears_of_its_parents() {
        assert_eq!(with_parents(0), 0);
        assert_eq!(with_parents(GROUP_CALL), 256);
        assert_eq!(with_parents(MESSAGE_CALL), 1024 | 256);
        assert_eq!(with_parents(COLLECTIVE), 2 | 512 | 256);
        assert_eq!(with_parents(1 << 6), 64 | 2 | 4 | 512 | 1024 | 256);
    }

    #[test]
    fn events_are_laid_out_as_plugins_read_them() {
        assert_eq!(
            (offset_of!(Event, parent), offset_of!(Event, rank), offset_of!(Event, body)),
            (8, 16, 24)
        );
        assert_eq!((offset_of!(CollectiveBody, root), offset_of!(CollectiveBody, data_type)), (40, 48));
        assert_eq!((offset_of!(CollectiveBody, channels), offset_of!(CollectiveBody, algorithm)), (56, 64));
        assert_eq!(size_of::<CollectiveBody>(), 88);
        assert_eq!((offset_of!(MessageBody, peer), offset_of!(MessageBody, group)), (32, 40));
        assert_eq!((offset_of!(CollectiveCallBody, root), offset_of!(CollectiveCallBody, stream)), (24, 32));
        assert_eq!((offset_of!(MessageCallBody, stream), size_of::<MessageCallBody>()), (24, 40));
        assert_eq!((offset_of!(GroupCallBody, depth), size_of::<GroupCallBody>()), (4, 8));
    }
}
