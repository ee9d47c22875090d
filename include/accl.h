/*
 * accl.h - what ACCL-P offers beyond the interface of NCCL.
 *
 * Host streams make calls in host memory asynchronous: operations given the same stream run one after the other,
 * in the order of the calls, while the program goes on. Pass a host stream wherever nccl.h wants a cudaStream_t.
 */
#ifndef ACCL_H_
#define ACCL_H_

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The same type as cudaStream_t, so that calls of nccl.h take it as it is. */
typedef cudaStream_t acclStream_t;

/* Makes a stream. `stream` NULL: ncclInvalidArgument. */
ncclResult_t acclStreamCreate(cudaStream_t *stream);

/* Waits until everything given to the stream is done. NULL, which is no stream of ours, is always done. What failed
 * on the way is in the state of its communicator: ncclCommGetAsyncError(). */
ncclResult_t acclStreamSynchronize(cudaStream_t stream);

/* ncclSuccess when everything given to the stream is done, ncclInProgress while it is not. */
ncclResult_t acclStreamQuery(cudaStream_t stream);

/* Waits as acclStreamSynchronize() does, then frees the stream. NULL is no error. */
ncclResult_t acclStreamDestroy(cudaStream_t stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ACCL_H_ */
