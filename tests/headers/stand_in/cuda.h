/* In the place of CUDA's header: as much of it as NVIDIA's nccl_device/host.h names on the host. */
#ifndef STAND_IN_CUDA_H_
#define STAND_IN_CUDA_H_

typedef enum CUmemLocationType { CU_MEM_LOCATION_TYPE_STAND_IN = 0 } CUmemLocationType;

#endif
