/* In the place of CUDA's header: as much of it as nccl.h names. */
#ifndef STAND_IN_CUDA_RUNTIME_H_
#define STAND_IN_CUDA_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

/* So that this project's nccl.h leaves them alone. */
#define __CUDA_RUNTIME_H__

#endif
