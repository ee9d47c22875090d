/* In the place of CUDA's header, of which nccl.h needs nothing. */
