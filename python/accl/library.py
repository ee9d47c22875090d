"""The shared library, and the functions of it that are called from here (nccl.h, accl.h)."""

import ctypes
import os
import pathlib

SUCCESS = 0
IN_PROGRESS = 7

# ncclDataType_t
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2 = range(12)

# ncclRedOp_t
SUM, PROD, MAX, MIN, AVG = range(5)

_ID_BYTES = 128
_MAGIC = 0xCAFEBEEF
_STRUCT_VERSION = 23203
_UNDEFINED = -(2**31)
_VENDOR, _OPTION_TIMEOUT_MS = 0x4143, 1
_SCALAR_HOST_IMMEDIATE = 1
_NO_TYPE = -1
ANY_RANK = -1


class UniqueId(ctypes.Structure):
    """ncclUniqueId"""

    _fields_ = [("internal", ctypes.c_char * _ID_BYTES)]


class _Extension(ctypes.Structure):
    """ncclConfigExt_t"""

    _fields_ = [
        ("next", ctypes.c_void_p),
        ("vendor", ctypes.c_int),
        ("option", ctypes.c_int),
        ("value", ctypes.c_int64),
    ]


class _CallConfig(ctypes.Structure):
    """ncclCollConfig_t"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("ext", ctypes.c_void_p),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("algSelection", ctypes.c_char_p),
        ("forceAlgSelection", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("userProfilerTag", ctypes.c_uint64),
        ("launchCompletionEvent", ctypes.c_void_p),
    ]


class Failure(RuntimeError):
    """A call of the library that failed: `code` is the ncclResult_t, the text is the library's."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def find():
    """The path of the library: ACCL_LIBRARY, or that which lies in this package, or else the loader's business."""
    named = os.environ.get("ACCL_LIBRARY")
    if named:
        return named
    packaged = pathlib.Path(__file__).parent / "lib" / "libnccl.so.2"
    return str(packaged) if packaged.exists() else "libnccl.so.2"


class Library:
    """The functions, with their types. Those of collectives return codes, for which `check` raises."""

    def __init__(self, path=None):
        path = path or find()
        try:
            # By its own names alone: another library with the same names may be in the process.
            library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
        except OSError as error:
            raise ImportError(
                f"cannot load {path}: {error}; name ACCL-P's libnccl.so.2 in ACCL_LIBRARY"
            ) from None
        if not hasattr(library, "acclIrecv"):
            raise ImportError(f"{path} is not ACCL-P's libnccl.so.2, or an old one; name the right one in ACCL_LIBRARY")
        self.path = path
        pointer, size, number, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p

        def declare(name, *types, result=number):
            function = getattr(library, name)
            function.argtypes, function.restype = types, result
            return function

        out = ctypes.POINTER(pointer)
        self.error_text = declare("acclLastErrorOfThread", result=text)
        self._unique_id = declare("ncclGetUniqueId", ctypes.POINTER(UniqueId))
        self._init = declare("acclCommInitRankHost", out, number, UniqueId, number, pointer, ctypes.c_int64)
        self.destroy = declare("ncclCommDestroy", pointer)
        self.abort = declare("ncclCommAbort", pointer)
        self._shrink = declare("ncclCommShrink", pointer, ctypes.POINTER(number), number, out, pointer, number)
        self._stream_create = declare("acclStreamCreate", out)
        self.stream_synchronize = declare("acclStreamSynchronize", pointer)
        self.stream_query = declare("acclStreamQuery", pointer)
        self.stream_destroy = declare("acclStreamDestroy", pointer)
        self.group_start = declare("ncclGroupStart")
        self.group_end = declare("ncclGroupEnd")
        reduction = (pointer, pointer, size, number, number)
        self.all_reduce = declare("ncclAllReduce", *reduction, pointer, pointer)
        self._all_reduce_config = declare("ncclAllReduceConfig", *reduction, pointer, pointer, pointer)
        self.reduce = declare("ncclReduce", *reduction, number, pointer, pointer)
        self.reduce_scatter = declare("ncclReduceScatter", *reduction, pointer, pointer)
        self.broadcast = declare("ncclBroadcast", pointer, pointer, size, number, number, pointer, pointer)
        self.all_gather = declare("ncclAllGather", pointer, pointer, size, number, pointer, pointer)
        self.all_to_all = declare("ncclAlltoAll", pointer, pointer, size, number, pointer, pointer)
        self.send = declare("ncclSend", pointer, size, number, number, pointer, pointer)
        self.recv = declare("ncclRecv", pointer, size, number, number, pointer, pointer)
        message = (pointer, size, number, number, pointer, ctypes.c_int64, out)
        self.isend = declare("acclIsend", *message)
        self.irecv = declare("acclIrecv", *message)
        self.request_test = declare("acclRequestTest", pointer)
        self.request_wait = declare("acclRequestWait", pointer, ctypes.c_int64)
        self.request_source = declare("acclRequestSource", pointer, ctypes.POINTER(number))
        self.request_free = declare("acclRequestFree", pointer)
        self._factor_create = declare(
            "ncclRedOpCreatePreMulSum", ctypes.POINTER(number), pointer, number, number, pointer
        )
        self.factor_destroy = declare("ncclRedOpDestroy", number, pointer)
        self._memory_alloc = declare("ncclMemAlloc", out, size)
        self.memory_free = declare("ncclMemFree", pointer)

    def check(self, code):
        """Raises what a call returned, unless that is success."""
        if code != SUCCESS:
            raise Failure(code, self.error_text().decode(errors="replace"))

    def unique_id(self):
        """The bytes of a new unique id."""
        unique = UniqueId()
        self.check(self._unique_id(ctypes.byref(unique)))
        return bytes(unique)

    def join(self, ranks, rank, unique_id, limit_ms):
        """A communicator of host memory, if all ranks come in time."""
        comm = ctypes.c_void_p()
        self.check(self._init(ctypes.byref(comm), ranks, UniqueId.from_buffer_copy(unique_id), rank, None, limit_ms))
        return comm.value

    def shrink(self, comm, excluded, flags):
        """A communicator of all ranks but these, which make no call for it."""
        child = ctypes.c_void_p()
        ranks = (ctypes.c_int * len(excluded))(*excluded)
        self.check(self._shrink(comm, ranks, len(excluded), ctypes.byref(child), None, flags))
        return child.value

    def stream(self):
        """A new host stream."""
        stream = ctypes.c_void_p()
        self.check(self._stream_create(ctypes.byref(stream)))
        return stream.value

    def group(self, calls):
        """Makes calls (a function and its arguments) that belong together. If that is interrupted, none of them is carried out."""
        calls = list(calls)
        self.group_start()
        try:
            for call, *arguments in calls:
                # What fails is said at the end, which carries out nothing then.
                call(*arguments)
        except BaseException:
            # A call that is refused has the group forgotten.
            comm = calls[0][-2]
            self.send(None, 1, _NO_TYPE, 0, comm, None)
            self.group_end()
            raise
        self.check(self.group_end())

    def message(self, call, tensor, peer, tag, comm, limit_ms):
        """Begins a message of a tensor's bytes by `isend` or `irecv`, and returns the request."""
        request = ctypes.c_void_p()
        self.check(call(tensor.data_ptr(), tensor.nbytes, peer, tag, comm, limit_ms, ctypes.byref(request)))
        return request.value

    def factor(self, scalar, dtype, comm):
        """A sum whose inputs are multiplied by this rank's factor, a ctypes scalar of that type."""
        operator = ctypes.c_int()
        self.check(
            self._factor_create(
                ctypes.byref(operator), ctypes.byref(scalar), dtype, _SCALAR_HOST_IMMEDIATE, comm
            )
        )
        return operator.value

    def limit(self, milliseconds, comm):
        """How long calls on a communicator may stand still from here on."""
        limit = _Extension(None, _VENDOR, _OPTION_TIMEOUT_MS, milliseconds)
        config = _CallConfig(
            ctypes.sizeof(_CallConfig),
            _MAGIC,
            _STRUCT_VERSION,
            ctypes.addressof(limit),
            *[_UNDEFINED] * 4,
            None,
            1,
            _UNDEFINED,
            0,
            None,
        )
        # A call without elements does nothing else, and is none for the peers.
        self.check(self._all_reduce_config(None, None, 0, UINT8, SUM, comm, None, ctypes.addressof(config)))

    def allocate(self, size_bytes):
        """The address of zeroed memory that other processes of this host read in place."""
        address = ctypes.c_void_p()
        self.check(self._memory_alloc(ctypes.byref(address), size_bytes))
        return address.value
