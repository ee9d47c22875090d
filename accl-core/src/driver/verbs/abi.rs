//! What libibverbs and its callers have in common: structures and numbers, as rdma-core has them since release 17 (2018).
//!
//! Of what the library allocates only the front is declared, as far as it is read here. Sizes and offsets are those of a C
//! compiler on 64-bit machines; `layout_tests.rs` asks one. Names are the C ones without `ibv_`.

use std::ffi::{c_int, c_void};

/// A device of the list, which only the library looks into.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Device([u8; 0]);

/// The functions that the header's inline ones call, at their places in `struct ibv_context_ops`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll: [*mut c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _between: [*mut c_void; 12],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _after: [*mut c_void; 5],
}

/// A device that is open.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// A protection domain.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Pd {
    _context: *mut Context,
}

/// A memory region.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Mr {
    _context: *mut Context,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// What a device tells of itself.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct AsyncEvent {
    /// A union of pointers and a port's number, which is its first four bytes.
    pub(super) element: [u32; 2],
    pub(super) event_type: u32,
}

/// A completion channel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CompChannel {
    _context: *mut Context,
    pub(super) fd: c_int,
}

/// A completion queue.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Cq {
    _context: *mut Context,
}

/// A queue pair.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Qp {
    _context: *mut Context,
    _qp_context: *mut c_void,
    _pd: *mut Pd,
    _send_cq: *mut Cq,
    _recv_cq: *mut Cq,
    _srq: *mut c_void,
    _handle: u32,
    pub(super) qp_num: u32,
}

/// A piece of local memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// What is to be sent: an RDMA write, as far as this library goes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// Big-endian, as it travels.
    pub(super) imm_data: u32,
    /// The first two members of the union `wr.rdma`.
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) _rest_of_unions: [u32; 19],
}

/// Room for something to come.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// What has become of a work request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    _src_qp: u32,
    pub(super) wc_flags: u32,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// What a queue pair is made of.
#[derive(Debug)]
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// The way to a peer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct AhAttr {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    _padding: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// What can be changed of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// What a port is like.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// What a device is like.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct DeviceAttr {
    _fw_ver: [u64; 8],
    _guids: [u64; 2],
    pub(super) max_mr_size: u64,
    _page_size_cap: u64,
    _vendor: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    _device_cap_flags: u32,
    _max_sge: [c_int; 2],
    _max_cq: c_int,
    pub(super) max_cqe: c_int,
    _max_mr: c_int,
    _max_pd: c_int,
    _more: [c_int; 20],
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// Declares numbers, which a test compares with the header's.
macro_rules! numbers {
    ($( $(#[$doc:meta])* $name:ident: $kind:ty = $value:expr, $c:literal; )*) => {
        $( $(#[$doc])* pub(super) const $name: $kind = $value; )*
        /// Their C names and values.
        #[cfg(test)]
        pub(super) const NUMBERS: &[(&str, u64)] = &[ $( ($c, $name as u64) ),* ];
    };
}

numbers! {
    WR_RDMA_WRITE: u32 = 0, "IBV_WR_RDMA_WRITE";
    WR_RDMA_WRITE_WITH_IMM: u32 = 1, "IBV_WR_RDMA_WRITE_WITH_IMM";
    SEND_SIGNALED: u32 = 1 << 1, "IBV_SEND_SIGNALED";
    SEND_INLINE: u32 = 1 << 3, "IBV_SEND_INLINE";
    /// The bit of an opcode of what was received.
    WC_RECV: u32 = 1 << 7, "IBV_WC_RECV";
    WC_WITH_IMM: u32 = 1 << 1, "IBV_WC_WITH_IMM";
    QPT_RC: u32 = 2, "IBV_QPT_RC";
    QPS_INIT: u32 = 1, "IBV_QPS_INIT";
    QPS_RTR: u32 = 2, "IBV_QPS_RTR";
    QPS_RTS: u32 = 3, "IBV_QPS_RTS";
    QPS_ERR: u32 = 6, "IBV_QPS_ERR";
    ACCESS_LOCAL_WRITE: c_int = 1, "IBV_ACCESS_LOCAL_WRITE";
    ACCESS_REMOTE_WRITE: c_int = 1 << 1, "IBV_ACCESS_REMOTE_WRITE";
    /// Optional: a kernel that does not know it lets it fall, if `ibv_reg_mr_iova2` is asked.
    ACCESS_RELAXED_ORDERING: c_int = 1 << 20, "IBV_ACCESS_RELAXED_ORDERING";
    EVENT_DEVICE_FATAL: u32 = 8, "IBV_EVENT_DEVICE_FATAL";
    EVENT_PORT_ACTIVE: u32 = 9, "IBV_EVENT_PORT_ACTIVE";
    EVENT_GID_CHANGE: u32 = 18, "IBV_EVENT_GID_CHANGE";
    FORK_DISABLED: c_int = 0, "IBV_FORK_DISABLED";
    PORT_ACTIVE: u32 = 4, "IBV_PORT_ACTIVE";
    LINK_LAYER_ETHERNET: u8 = 2, "IBV_LINK_LAYER_ETHERNET";
    GID_ROCE_V1: u32 = 1, "IBV_GID_TYPE_ROCE_V1";
    GID_ROCE_V2: u32 = 2, "IBV_GID_TYPE_ROCE_V2";
    MASK_INIT: c_int = mask::INIT, "(IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT)";
    MASK_RTR: c_int = mask::RTR, "(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)";
    MASK_RTS: c_int = mask::RTS, "(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)";
    MASK_ERR: c_int = mask::ERR, "IBV_QP_STATE";
    WC_WR_FLUSH_ERR: u32 = 5, "IBV_WC_WR_FLUSH_ERR";
}

/// Which members of [`QpAttr`] count, for each step of a queue pair's life.
pub(super) mod mask {
    use std::ffi::c_int;

    const STATE: c_int = 1;
    const ACCESS_FLAGS: c_int = 1 << 3;
    const PKEY_INDEX: c_int = 1 << 4;
    const PORT: c_int = 1 << 5;
    const AV: c_int = 1 << 7;
    const PATH_MTU: c_int = 1 << 8;
    const TIMEOUT: c_int = 1 << 9;
    const RETRY_CNT: c_int = 1 << 10;
    const RNR_RETRY: c_int = 1 << 11;
    const RQ_PSN: c_int = 1 << 12;
    const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    const MIN_RNR_TIMER: c_int = 1 << 15;
    const SQ_PSN: c_int = 1 << 16;
    const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    const DEST_QPN: c_int = 1 << 20;

    pub(super) const INIT: c_int = STATE | ACCESS_FLAGS | PKEY_INDEX | PORT;
    pub(super) const RTR: c_int =
        STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    pub(super) const RTS: c_int = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    pub(super) const ERR: c_int = STATE;
}

/// Says each structure's size and some members' offsets: asserted here, and compared with C's in a test.
macro_rules! layout {
    ($( $name:ident as $c:literal: $size:literal { $($member:ident as $c_member:literal: $offset:literal),* } )*) => {
        const _: () = {
            $( assert!($size == 0 || size_of::<$name>() == $size); )*
            $( $( assert!(std::mem::offset_of!($name, $member) == $offset); )* )*
        };
        /// For each structure its C name, its size (0 where only the front is declared), and its members' C names and offsets.
        #[cfg(test)]
        pub(super) const LAYOUT: &[(&str, usize, &[(&str, usize)])] = &[ $( ($c, $size, &[ $(($c_member, $offset)),* ]) ),* ];
    };
}

layout! {
    ContextOps as "struct ibv_context_ops": 256 {
        poll_cq as "poll_cq": 88, req_notify_cq as "req_notify_cq": 96, post_send as "post_send": 200, post_recv as "post_recv": 208
    }
    Context as "struct ibv_context": 0 { ops as "ops": 8, cmd_fd as "cmd_fd": 264, async_fd as "async_fd": 268 }
    AsyncEvent as "struct ibv_async_event": 16 { element as "element": 0, event_type as "event_type": 8 }
    Mr as "struct ibv_mr": 0 { lkey as "lkey": 36, rkey as "rkey": 40 }
    CompChannel as "struct ibv_comp_channel": 0 { fd as "fd": 8 }
    Qp as "struct ibv_qp": 0 { qp_num as "qp_num": 52 }
    Sge as "struct ibv_sge": 16 { addr as "addr": 0, length as "length": 8, lkey as "lkey": 12 }
    SendWr as "struct ibv_send_wr": 128 {
        wr_id as "wr_id": 0, next as "next": 8, sg_list as "sg_list": 16, num_sge as "num_sge": 24, opcode as "opcode": 28,
        send_flags as "send_flags": 32, imm_data as "imm_data": 36, remote_addr as "wr.rdma.remote_addr": 40, rkey as "wr.rdma.rkey": 48
    }
    RecvWr as "struct ibv_recv_wr": 32 { next as "next": 8, sg_list as "sg_list": 16, num_sge as "num_sge": 24 }
    Wc as "struct ibv_wc": 48 {
        wr_id as "wr_id": 0, status as "status": 8, opcode as "opcode": 12, vendor_err as "vendor_err": 16, byte_len as "byte_len": 20,
        imm_data as "imm_data": 24, qp_num as "qp_num": 28, wc_flags as "wc_flags": 36
    }
    QpCap as "struct ibv_qp_cap": 20 { max_inline_data as "max_inline_data": 16 }
    QpInitAttr as "struct ibv_qp_init_attr": 64 { send_cq as "send_cq": 8, cap as "cap": 32, qp_type as "qp_type": 52, sq_sig_all as "sq_sig_all": 56 }
    AhAttr as "struct ibv_ah_attr": 32 {
        sgid_index as "grh.sgid_index": 20, hop_limit as "grh.hop_limit": 21, traffic_class as "grh.traffic_class": 22, dlid as "dlid": 24,
        sl as "sl": 26, is_global as "is_global": 29, port_num as "port_num": 30
    }
    QpAttr as "struct ibv_qp_attr": 144 {
        path_mtu as "path_mtu": 8, rq_psn as "rq_psn": 20, sq_psn as "sq_psn": 24, dest_qp_num as "dest_qp_num": 28,
        qp_access_flags as "qp_access_flags": 32, ah_attr as "ah_attr": 56, pkey_index as "pkey_index": 120, max_rd_atomic as "max_rd_atomic": 126,
        max_dest_rd_atomic as "max_dest_rd_atomic": 127, min_rnr_timer as "min_rnr_timer": 128, port_num as "port_num": 129,
        timeout as "timeout": 130, retry_cnt as "retry_cnt": 131, rnr_retry as "rnr_retry": 132
    }
    PortAttr as "struct ibv_port_attr": 52 {
        state as "state": 0, active_mtu as "active_mtu": 8, gid_tbl_len as "gid_tbl_len": 12, max_msg_sz as "max_msg_sz": 20,
        lid as "lid": 34, link_layer as "link_layer": 46
    }
    GidEntry as "struct ibv_gid_entry": 32 { gid_index as "gid_index": 16, gid_type as "gid_type": 24 }
    DeviceAttr as "struct ibv_device_attr": 232 {
        max_mr_size as "max_mr_size": 80, max_qp as "max_qp": 108, max_qp_wr as "max_qp_wr": 112, max_cqe as "max_cqe": 132,
        phys_port_cnt as "phys_port_cnt": 227
    }
}
