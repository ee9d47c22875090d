//! Names that the real library still exports with 32-bit addresses or without arguments that matter: who finds one of them by
//! name without its version has a bug, which this makes loud.

use crate::abi::driver;

macro_rules! old {
    ($($name:ident)*) => {
        driver! {$(
            fn $name() {
                eprintln!(concat!("accl-sim: cu", stringify!($name), " is the old 32-bit function; use its newest version"));
                Err(crate::error::Code::NOT_SUPPORTED)
            }
        )*}
    };
}

old! {
    MemAlloc MemFree MemGetInfo MemAllocHost MemGetAddressRange MemHostGetDevicePointer MemcpyHtoD MemcpyDtoH MemcpyDtoD
    MemcpyHtoDAsync MemcpyDtoHAsync MemcpyDtoDAsync MemsetD8 MemsetD16 MemsetD32 DeviceTotalMem CtxCreate GraphInstantiate
}

macro_rules! unsupported {
    ($($name:ident)*) => {
        driver! {$( fn $name() { Err(crate::error::Code::NOT_SUPPORTED) } )*}
    };
}

unsupported! {
    MulticastCreate MulticastAddDevice MulticastBindMem MulticastBindAddr MulticastUnbind MulticastGetGranularity MemPoolCreate
    MemPoolDestroy MemPoolSetAttribute MemPoolGetAttribute MemPoolTrimTo MemPoolSetAccess MemAllocFromPoolAsync DeviceGetDefaultMemPool DeviceGetMemPool
    GreenCtxCreate GreenCtxDestroy CtxFromGreenCtx DeviceGetDevResource DevResourceGenerateDesc DevSmResourceSplitByCount GreenCtxStreamCreate
    LogsRegisterCallback LogsUnregisterCallback LinkCreate_v2 LinkAddData_v2 LinkComplete LinkDestroy TensorMapEncodeTiled MemGetHandleForAddressRange
    FlushGPUDirectRDMAWrites MemPrefetchAsync MemPrefetchAsync_v2 MemAdvise MemAdvise_v2
    GraphAddNode GraphAddNode_v2 GraphKernelNodeGetParams GraphKernelNodeGetParams_v2 GraphExecUpdate_v2
}
