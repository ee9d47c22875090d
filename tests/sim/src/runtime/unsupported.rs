//! Functions that programs import, and that the simulator does not have: each says so.
#![allow(non_snake_case, reason = "the names are CUDA's")]

macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> i32 {
            crate::abi::runtime_call(stringify!($name), String::new, || Err(crate::error::Code::NOT_SUPPORTED))
        }
    )*};
}

unsupported! {
    cudaDeviceGetDefaultMemPool cudaDeviceGetMemPool cudaDeviceSetMemPool cudaDeviceGetGraphMemAttribute
    cudaDeviceSetGraphMemAttribute cudaDeviceGraphMemTrim cudaGraphAddNode cudaGraphConditionalHandleCreate
    cudaGraphExecUpdate cudaGraphKernelNodeGetParams cudaGraphKernelNodeSetParams cudaGraphAddKernelNode cudaGraphAddMemcpyNode
    cudaGraphAddMemsetNode cudaGraphAddHostNode cudaGraphAddEmptyNode cudaGraphAddDependencies cudaGraphClone cudaGraphDebugDotPrint
    cudaKernelSetAttributeForDevice cudaLibraryGetGlobal cudaLibraryGetKernel cudaLibraryGetKernelCount cudaLibraryGetManaged
    cudaLibraryGetUnifiedFunction cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload cudaMemPoolCreate cudaMemPoolDestroy
    cudaMemPoolGetAttribute cudaMemPoolSetAccess cudaMemPoolSetAttribute cudaMemPoolTrimTo cudaMallocFromPoolAsync cudaMemcpy3D cudaMemcpy3DAsync cudaMemPrefetchAsync cudaMemAdvise cudaMallocArray cudaFreeArray cudaStreamAttachMemAsync
    cudaStreamSetAttribute cudaStreamGetAttribute cudaStreamCopyAttributes
}
