//! Verbs of libibverbs.
//!
//! It is longer than most files since each object of the library has its type, its calls and its reasons here, and nothing else has.
//!
//! # Safety
//! Objects of the library are made and given back by the types here, each of which keeps those alive that it was made of. Pointers are
//! never handed out. The library's objects may be used from any thread; those that this module does not lock are behind `&mut`.
#![allow(unsafe_code)]

use super::abi::{self, CompChannel, Context, Cq, Mr, Pd, Qp, RecvWr, SendWr, Sge, Wc};
use super::library::Table;
use super::{
    Absent, Completion, Completions, Connection, Device, Gid, GidEntry, GidKind, Limits, PairShape, Port,
    QueuePair, Registration, Verbs, Write, refused,
};
use crate::error::{Error, Result};
use crate::sync::prim::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// How many completions are fetched at once.
const BATCH: usize = 16;
/// How many receive requests are posted at once.
const EXPECT_BATCH: usize = 16;
/// Addresses of a device that are looked at.
const MOST_GIDS: usize = 1024;

/// The library, and what it has open.
#[derive(Debug)]
pub(super) struct Library {
    table: &'static Table,
    caution: Option<String>,
    /// Opened at the first question.
    devices: Mutex<Option<Vec<Arc<Opened>>>>,
}

/// A device of the library.
#[derive(Debug)]
struct Opened {
    name: String,
    table: &'static Table,
    context: NonNull<Context>,
    domain: NonNull<Pd>,
    limits: Limits,
    ports: u8,
    /// It has said that it can do nothing more: it was removed, say.
    is_gone: AtomicBool,
}

// SAFETY: libibverbs allows all threads to use a context and what belongs to it.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Library {
    pub(super) fn open() -> Result<std::result::Result<Self, Absent>> {
        match Table::open()? {
            Err(absent) => Ok(Err(absent)),
            Ok(table) => {
                // As long as the process lives, like what it has open.
                let table: &'static Table = Box::leak(Box::new(table));
                let caution = guard_against_forks(table);
                Ok(Ok(Self { table, caution, devices: Mutex::new(None) }))
            }
        }
    }

    fn open_all(&self) -> Result<Vec<Arc<Opened>>> {
        let mut count: c_int = 0;
        // SAFETY: the function fills one number and returns a list, or NULL.
        let list = unsafe { (self.table.device_list)(&raw mut count) };
        if list.is_null() {
            let number = last_error();
            // So says a kernel without RDMA.
            return if number == libc::ENOSYS {
                Ok(Vec::new())
            } else {
                Err(refused("ibv_get_device_list", "this host", number))
            };
        }
        let mut devices = Vec::new();
        let mut failure = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *list.add(index) };
            match Opened::open(self.table, device) {
                Ok(opened) => devices.push(Arc::new(opened)),
                Err(error) => failure = Some(error),
            }
        }
        // SAFETY: the list is the function's above; devices that are open stay.
        unsafe { (self.table.free_device_list)(list) };
        match failure {
            // One that cannot be opened is missed only if there is no other.
            Some(error) if devices.is_empty() => Err(error),
            _ => Ok(devices),
        }
    }
}

impl Verbs for Library {
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let mut devices = self.devices.lock();
        let opened = match &*devices {
            Some(opened) => opened,
            None => devices.insert(self.open_all()?),
        };
        Ok(opened.iter().map(|one| one.clone() as Arc<dyn Device>).collect())
    }

    fn caution(&self) -> Option<&str> {
        self.caution.as_deref()
    }
}

/// Before Linux 5.12 a fork has the kernel give pages that a device writes to to one of the two processes, maybe the child. So children are
/// to have none of them, which libibverbs sees to; it must be told before any memory is registered.
fn guard_against_forks(table: &Table) -> Option<String> {
    // SAFETY: takes nothing, and looks at the kernel.
    let state = table.fork_state.map(|state| unsafe { state() });
    let init = table.fork_init.filter(|_| state.is_none_or(|state| state == abi::FORK_DISABLED))?;
    // SAFETY: takes nothing; from here on the library marks what is registered.
    let code = unsafe { init() };
    (code != 0).then(|| {
        let why = std::io::Error::from_raw_os_error(code);
        format!("ibv_fork_init failed: {why}; before Linux 5.12 this process should not fork, or start with RDMAV_FORK_SAFE=1")
    })
}

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What a function has returned that gives NULL on failure.
fn made<T>(object: *mut T, function: &str, device: &str) -> Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(|| refused(function, device, last_error()))
}

/// The same for those that return an error number, or -1 and leave it in errno.
fn done(code: c_int, function: &str, device: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(refused(function, device, last_error())),
        number => Err(refused(function, device, number.abs())),
    }
}

impl Opened {
    fn open(table: &'static Table, device: *mut abi::Device) -> Result<Self> {
        // SAFETY: the device is one of the list, which is not freed yet; the name is copied.
        let name = unsafe { CStr::from_ptr((table.device_name)(device)) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let context = made(unsafe { (table.open_device)(device) }, "ibv_open_device", &name)?;
        let close = |error| {
            // SAFETY: the context was opened above, and nothing belongs to it.
            unsafe { (table.close_device)(context.as_ptr()) };
            error
        };
        let mut attributes = abi::DeviceAttr::default();
        // SAFETY: the context is open, and the structure is the function's.
        let code = unsafe { (table.query_device)(context.as_ptr(), &raw mut attributes) };
        done(code, "ibv_query_device", &name).map_err(close)?;
        // SAFETY: the context is open.
        let domain =
            made(unsafe { (table.alloc_pd)(context.as_ptr()) }, "ibv_alloc_pd", &name).map_err(close)?;
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let limits = Limits {
            pairs: number(attributes.max_qp),
            requests: number(attributes.max_qp_wr),
            completions: number(attributes.max_cqe),
            registration_bytes: attributes.max_mr_size,
        };
        // SAFETY: the context is open, and stays so.
        let events = unsafe { BorrowedFd::borrow_raw((*context.as_ptr()).async_fd) };
        rustix::io::ioctl_fionbio(events, true)
            .map_err(|errno| Error::system("cannot change the descriptor of a device's events", errno))?;
        let (ports, is_gone) = (attributes.phys_port_cnt, AtomicBool::new(false));
        Ok(Self { name, table, context, domain, limits, ports, is_gone })
    }

    /// All addresses of a port: one call for the whole table, of which most is empty.
    fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let mut entries = vec![abi::GidEntry::default(); MOST_GIDS];
        let bytes = size_of::<abi::GidEntry>();
        // SAFETY: the context is open; there is room for as many entries, of the size that is said.
        let count = unsafe {
            (self.table.query_gids)(self.context.as_ptr(), entries.as_mut_ptr(), entries.len(), 0, bytes)
        };
        let count = usize::try_from(count)
            .map_err(|_| refused("ibv_query_gid_table", &self.name, count.unsigned_abs() as i32))?;
        entries.truncate(count);
        let own = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        let told = own.map(|entry| {
            let kind = match entry.gid_type {
                abi::GID_ROCE_V1 => GidKind::RoceV1,
                abi::GID_ROCE_V2 => GidKind::RoceV2,
                _ => GidKind::InfiniBand,
            };
            GidEntry { index: entry.gid_index, kind, gid: Gid(entry.gid) }
        });
        Ok(told.collect())
    }

    fn attributes(&self, port: u8) -> Result<abi::PortAttr> {
        let mut attributes = abi::PortAttr::default();
        // SAFETY: the context is open, and the structure is the function's.
        let code = unsafe { (self.table.query_port)(self.context.as_ptr(), port, &raw mut attributes) };
        done(code, "ibv_query_port", &self.name)?;
        Ok(attributes)
    }
}

impl Device for Opened {
    fn name(&self) -> &str {
        &self.name
    }

    fn ports(&self) -> u8 {
        self.ports
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn port(&self, port: u8) -> Result<Port> {
        let attributes = self.attributes(port)?;
        Ok(Port {
            is_active: attributes.state == abi::PORT_ACTIVE,
            state: attributes.state,
            is_ethernet: attributes.link_layer == abi::LINK_LAYER_ETHERNET,
            mtu: attributes.active_mtu,
            message_bytes: attributes.max_msg_sz,
            lid: attributes.lid,
            gids: self.gids(port)?,
        })
    }

    fn is_active(&self, port: u8) -> Result<bool> {
        Ok(!self.is_gone.load(Ordering::Relaxed) && self.attributes(port)?.state == abi::PORT_ACTIVE)
    }

    fn news(&self) -> Vec<String> {
        let mut news = Vec::new();
        let mut event = abi::AsyncEvent::default();
        // SAFETY: the context is open, its descriptor does not block, and the structure is the function's.
        while unsafe { (self.table.async_event)(self.context.as_ptr(), &raw mut event) } == 0 {
            let kind = event.event_type;
            // SAFETY: returns a text that stays.
            let text = unsafe { CStr::from_ptr((self.table.event_text)(kind)) }.to_string_lossy();
            // SAFETY: it was got above, and is given back once.
            unsafe { (self.table.ack_async_event)(&raw mut event) };
            if kind == abi::EVENT_DEVICE_FATAL {
                self.is_gone.store(true, Ordering::Relaxed);
            }
            let of_port = (abi::EVENT_PORT_ACTIVE..=abi::EVENT_GID_CHANGE).contains(&kind);
            let port = if of_port { format!(":{}", event.element[0]) } else { String::new() };
            news.push(format!("{}{port} : {text}", self.name));
        }
        news
    }

    fn register(&self, start: usize, bytes: usize, relaxed: bool) -> Result<Box<dyn Registration>> {
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
        let place = std::ptr::with_exposed_provenance_mut(start);
        let domain = self.domain.as_ptr();
        let (region, function) = match self.table.register_optional.filter(|_| relaxed) {
            Some(register) => {
                let access = (access | abi::ACCESS_RELAXED_ORDERING).cast_unsigned();
                // SAFETY: the kernel checks the range; that it stays is the caller's word.
                (unsafe { register(domain, place, bytes, start as u64, access) }, "ibv_reg_mr_iova2")
            }
            // SAFETY: as above.
            None => (unsafe { (self.table.register)(domain, place, bytes, access) }, "ibv_reg_mr"),
        };
        let region = made(region, function, &self.name)?;
        Ok(Box::new(Region { table: self.table, region }))
    }

    fn completions(&self, entries: u32) -> Result<Box<dyn Completions>> {
        let (table, context) = (self.table, self.context);
        // SAFETY: the context is open.
        let channel =
            made(unsafe { (table.create_channel)(context.as_ptr()) }, "ibv_create_comp_channel", &self.name)?;
        let channel = Channel { table, channel };
        // SAFETY: the channel is the library's and open.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*channel.channel.as_ptr()).fd) };
        rustix::io::ioctl_fionbio(descriptor, true)
            .map_err(|errno| Error::system("cannot change the descriptor of a completion channel", errno))?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open, and the channel is kept as long as the queue.
        let queue = made(
            unsafe { (table.create_cq)(context.as_ptr(), entries, null_mut(), channel.channel.as_ptr(), 0) },
            "ibv_create_cq",
            &self.name,
        )?;
        let queue = Arc::new(Queue { table, queue, channel });
        let (name, domain) = (self.name.clone(), self.domain);
        Ok(Box::new(Polled { name, table, context, domain, queue }))
    }
}

/// A memory region.
#[derive(Debug)]
struct Region {
    table: &'static Table,
    region: NonNull<Mr>,
}

// SAFETY: any thread may use it.
unsafe impl Send for Region {}

impl Registration for Region {
    fn local_key(&self) -> u32 {
        // SAFETY: the region is the library's until this is dropped.
        unsafe { (*self.region.as_ptr()).lkey }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region.as_ptr()).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `register`, and given back once.
        let _ = unsafe { (self.table.deregister)(self.region.as_ptr()) };
    }
}

/// A completion channel.
#[derive(Debug)]
struct Channel {
    table: &'static Table,
    channel: NonNull<CompChannel>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `completions`, and its queue is gone: it is dropped before its channel.
        let _ = unsafe { (self.table.destroy_channel)(self.channel.as_ptr()) };
    }
}

/// A completion queue, as long as queue pairs have it.
#[derive(Debug)]
struct Queue {
    table: &'static Table,
    queue: NonNull<Cq>,
    /// Given back behind the queue.
    channel: Channel,
}

// SAFETY: any thread may use it; only [`Polled`], which is behind `&mut`, takes completions out.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made by `completions`; its pairs are gone, since they keep it, and all events are acknowledged.
        let _ = unsafe { (self.table.destroy_cq)(self.queue.as_ptr()) };
    }
}

/// The end of a completion queue where completions are taken.
#[derive(Debug)]
struct Polled {
    name: String,
    table: &'static Table,
    context: NonNull<Context>,
    domain: NonNull<Pd>,
    queue: Arc<Queue>,
}

// SAFETY: any thread may use it, one at a time.
unsafe impl Send for Polled {}

impl Completions for Polled {
    fn poll(&mut self, into: &mut [Completion]) -> Result<usize> {
        let mut found = [Wc::default(); BATCH];
        let most = into.len().min(BATCH);
        // SAFETY: the context is open.
        let poll = unsafe { (*self.context.as_ptr()).ops.poll_cq };
        // SAFETY: the queue is this context's, and there is room for `most`.
        let count = unsafe { poll(self.queue.queue.as_ptr(), most as c_int, found.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(refused("ibv_poll_cq", &self.name, last_error()));
        };
        for (one, wc) in into.iter_mut().zip(&found[..count.min(most)]) {
            let came = wc.status == 0 && wc.opcode & abi::WC_RECV != 0 && wc.wc_flags & abi::WC_WITH_IMM != 0;
            *one = Completion {
                number: wc.wr_id,
                status: wc.status,
                vendor_status: wc.vendor_err,
                pair: wc.qp_num,
                word: came.then(|| u32::from_be(wc.imm_data)),
                bytes: wc.byte_len,
            };
        }
        Ok(count.min(most))
    }

    fn arm(&mut self) -> Result<()> {
        // SAFETY: the context is open.
        let notify = unsafe { (*self.context.as_ptr()).ops.req_notify_cq };
        // SAFETY: the queue is this context's.
        done(unsafe { notify(self.queue.queue.as_ptr(), 0) }, "ibv_req_notify_cq", &self.name)
    }

    fn clear(&mut self) -> Result<()> {
        let mut events = 0;
        let channel = self.queue.channel.channel.as_ptr();
        let (mut queue, mut data) = (null_mut(), null_mut());
        // SAFETY: the channel is open and does not block; the pointers are the function's to fill.
        while unsafe { (self.table.get_event)(channel, &raw mut queue, &raw mut data) } == 0 {
            events += 1;
        }
        if events > 0 {
            // SAFETY: all events of this channel are of its one queue.
            unsafe { (self.table.ack_events)(self.queue.queue.as_ptr(), events) };
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as the queue, which `self` keeps.
        unsafe { BorrowedFd::borrow_raw((*self.queue.channel.channel.as_ptr()).fd) }
    }

    fn pair(&mut self, shape: PairShape) -> Result<Box<dyn QueuePair>> {
        let queue = self.queue.queue.as_ptr();
        let mut inline_bytes = shape.inline_bytes;
        let (pair, attributes) = loop {
            let mut attributes = abi::QpInitAttr {
                qp_context: null_mut(),
                send_cq: queue,
                recv_cq: queue,
                srq: null_mut(),
                cap: abi::QpCap {
                    max_send_wr: shape.sends,
                    max_recv_wr: shape.receives,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: abi::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queue are of one context; the queue is kept by the pair.
            let pair = unsafe { (self.table.create_qp)(self.domain.as_ptr(), &raw mut attributes) };
            if !pair.is_null() || inline_bytes == 0 {
                break (made(pair, "ibv_create_qp", &self.name)?, attributes);
            }
            // Devices say nowhere how much they can carry.
            inline_bytes /= 2;
        };
        let pair = Pair {
            name: self.name.clone(),
            table: self.table,
            context: self.context,
            pair,
            port: shape.port,
            inline_bytes: attributes.cap.max_inline_data.min(shape.inline_bytes),
            _queue: self.queue.clone(),
        };
        let mut attributes = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            pkey_index: shape.partition,
            port_num: shape.port,
            qp_access_flags: abi::ACCESS_REMOTE_WRITE.cast_unsigned(),
            ..abi::QpAttr::default()
        };
        pair.modify(&mut attributes, abi::MASK_INIT)?;
        Ok(Box::new(pair))
    }
}

/// A queue pair.
#[derive(Debug)]
struct Pair {
    name: String,
    table: &'static Table,
    context: NonNull<Context>,
    pair: NonNull<Qp>,
    port: u8,
    inline_bytes: u32,
    /// Given back behind the pair.
    _queue: Arc<Queue>,
}

// SAFETY: any thread may use it, one at a time.
unsafe impl Send for Pair {}

impl Pair {
    fn modify(&self, attributes: &mut abi::QpAttr, members: c_int) -> Result<()> {
        // SAFETY: the pair is the library's until this is dropped; the structure is copied.
        let code = unsafe { (self.table.modify_qp)(self.pair.as_ptr(), attributes, members) };
        done(code, "ibv_modify_qp", &self.name)
    }
}

impl QueuePair for Pair {
    fn number(&self) -> u32 {
        // SAFETY: the pair is the library's until this is dropped.
        unsafe { (*self.pair.as_ptr()).qp_num }
    }

    fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn connect(&mut self, with: &Connection) -> Result<()> {
        let mut ready = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: with.mtu,
            dest_qp_num: with.pair,
            rq_psn: with.peer_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..abi::QpAttr::default()
        };
        ready.ah_attr.dgid = with.gid.0;
        ready.ah_attr.sgid_index = with.gid_index;
        ready.ah_attr.hop_limit = u8::MAX;
        ready.ah_attr.traffic_class = with.traffic_class;
        ready.ah_attr.dlid = with.lid;
        ready.ah_attr.sl = with.service_level;
        ready.ah_attr.is_global = with.is_global.into();
        ready.ah_attr.port_num = self.port;
        self.modify(&mut ready, abi::MASK_RTR)?;
        let mut sending = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            sq_psn: with.own_packet,
            timeout: with.timeout,
            retry_cnt: with.retries,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..abi::QpAttr::default()
        };
        self.modify(&mut sending, abi::MASK_RTS)
    }

    fn write(&mut self, write: &Write) -> Result<()> {
        let mut piece = Sge { addr: write.source as u64, length: write.bytes, lkey: write.local_key };
        let signalled = if write.is_signalled { abi::SEND_SIGNALED } else { 0 };
        let carried = if write.is_inline { abi::SEND_INLINE } else { 0 };
        let mut request = SendWr {
            wr_id: write.number,
            next: null_mut(),
            sg_list: &raw mut piece,
            num_sge: c_int::from(write.bytes > 0),
            opcode: if write.word.is_some() { abi::WR_RDMA_WRITE_WITH_IMM } else { abi::WR_RDMA_WRITE },
            send_flags: signalled | carried,
            imm_data: write.word.unwrap_or(0).to_be(),
            remote_addr: write.target,
            rkey: write.remote_key,
            _rest_of_unions: [0; 19],
        };
        let mut refused_request = null_mut();
        // SAFETY: the context is open as long as the process lives.
        let post = unsafe { (*self.context.as_ptr()).ops.post_send };
        // SAFETY: the pair is this context's; request and piece are copied in the call.
        let code = unsafe { post(self.pair.as_ptr(), &raw mut request, &raw mut refused_request) };
        done(code, "ibv_post_send", &self.name)
    }

    fn expect(&mut self, count: u32) -> Result<()> {
        let empty = RecvWr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut requests = [empty; EXPECT_BATCH];
        // SAFETY: the context is open as long as the process lives.
        let post = unsafe { (*self.context.as_ptr()).ops.post_recv };
        let mut left = count as usize;
        while left > 0 {
            let batch = left.min(EXPECT_BATCH);
            let first = requests.as_mut_ptr();
            for index in 0..batch {
                let next = if index + 1 < batch { first.wrapping_add(index + 1) } else { null_mut() };
                // SAFETY: `index` is within the array.
                unsafe { (*first.add(index)).next = next };
            }
            let mut refused_request = null_mut();
            // SAFETY: the pair is this context's; the requests are copied in the call.
            let code = unsafe { post(self.pair.as_ptr(), first, &raw mut refused_request) };
            done(code, "ibv_post_recv", &self.name)?;
            left -= batch;
        }
        Ok(())
    }

    fn fail(&mut self) -> Result<()> {
        let mut attributes = abi::QpAttr { qp_state: abi::QPS_ERR, ..abi::QpAttr::default() };
        self.modify(&mut attributes, abi::MASK_ERR)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made by `pair`, and given back once, before its completion queue.
        let _ = unsafe { (self.table.destroy_qp)(self.pair.as_ptr()) };
    }
}
