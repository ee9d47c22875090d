/*
 * A stand-in for the library under test: every call succeeds after a fixed time and moves no data. With it the bench's
 * own arithmetic, statistics and endings are tested, apart from any library. Settings, from the environment:
 *   SHIM_CALL_US      time of one operation (10000)
 *   SHIM_SLOW_RANK    rank whose every SHIM_SLOW_EVERY-th (100) operation takes SHIM_SLOW_US (5000) more
 *   SHIM_FAIL_AFTER   operation number from which on operations fail
 *   SHIM_HANG_AFTER   operation number from which on SHIM_HANG_RANK's operations do not return until aborted
 *   SHIM_VERSION      what ncclGetVersion says (23007)
 *   SHIM_PRINT        if set, operations print to stdout
 * A group takes the time of one operation, at its end.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

struct ncclComm {
  int rank, ranks;
  long operations;
  volatile int aborted;
};

static __thread int depth;
static __thread struct ncclComm *grouped;

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

/* Sleeps for most of the time and spins for the rest, to be exact to microseconds. */
static void spend(long us) {
  struct timespec now, end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_nsec += us % 1000000 * 1000;
  end.tv_sec += us / 1000000 + end.tv_nsec / 1000000000;
  end.tv_nsec %= 1000000000;
  struct timespec early = end;
  early.tv_nsec -= 200000;
  if (early.tv_nsec < 0) early.tv_nsec += 1000000000, early.tv_sec--;
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &early, NULL);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static ncclResult_t operate(struct ncclComm *comm) {
  if (!comm) return ncclInvalidArgument;
  if (depth > 0) {
    grouped = comm;
    return ncclSuccess;
  }
  long number = ++comm->operations;
  if (setting("SHIM_PRINT", 0)) printf("shim: operation %ld\n", number), fflush(stdout);
  if (number >= setting("SHIM_FAIL_AFTER", 1L << 60)) return ncclSystemError;
  if (comm->rank == setting("SHIM_HANG_RANK", -1) && number >= setting("SHIM_HANG_AFTER", 1L << 60)) {
    while (!comm->aborted) spend(1000);
    return ncclRemoteError;
  }
  long us = setting("SHIM_CALL_US", 10000);
  if (comm->rank == setting("SHIM_SLOW_RANK", -1) && number % setting("SHIM_SLOW_EVERY", 100) == 0)
    us += setting("SHIM_SLOW_US", 5000);
  spend(us);
  return comm->aborted ? ncclRemoteError : ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version) { return *version = (int)setting("SHIM_VERSION", 23007), ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return memset(id, 0x5c, sizeof *id), ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t code) { return code ? "a shim's error" : "no error"; }
const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, "the shim was told to fail"; }

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  for (size_t at = 0; at < sizeof id; at++)
    if (id.internal[at] != 0x5c) return ncclInvalidArgument;
  *comm = calloc(1, sizeof **comm);
  if (!*comm) return ncclSystemError;
  (*comm)->rank = rank;
  (*comm)->ranks = ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (config->size != sizeof *config || config->magic != NCCL_API_MAGIC || config->CTAPolicy != 2)
    return ncclInvalidArgument;
  return ncclCommInitRank(comm, ranks, id, rank);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { return *count = comm->ranks, ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return free(comm), ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = 1, ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  return (void)comm, *error = ncclSuccess, ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where,
                                      ncclComm_t comm) {
  return (void)scalar, (void)type, (void)where, (void)comm, *op = (ncclRedOp_t)ncclNumOps, ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return (void)comm, op == ncclNumOps ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart(void) { return depth++, ncclSuccess; }
ncclResult_t ncclGroupEnd(void) {
  struct ncclComm *comm = grouped;
  if (--depth > 0 || !comm) return ncclSuccess;
  grouped = NULL;
  return operate(comm);
}

#define IGNORE (void)sendbuff, (void)recvbuff, (void)count, (void)type, (void)stream
#define MOVES(NAME, ...)                                                                                        \
  ncclResult_t NAME(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, __VA_ARGS__,        \
                    ncclComm_t comm, cudaStream_t stream) {                                                     \
    return IGNORE, operate(comm);                                                                               \
  }
MOVES(ncclAllReduce, ncclRedOp_t op __attribute__((unused)))
MOVES(ncclReduceScatter, ncclRedOp_t op __attribute__((unused)))
MOVES(ncclReduce, ncclRedOp_t op __attribute__((unused)), int root __attribute__((unused)))
MOVES(ncclBroadcast, int root __attribute__((unused)))
MOVES(ncclGather, int root __attribute__((unused)))
MOVES(ncclScatter, int root __attribute__((unused)))
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return IGNORE, operate(comm);
}
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return IGNORE, operate(comm);
}
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return (void)sendbuff, (void)count, (void)type, (void)peer, (void)stream, operate(comm);
}
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return (void)recvbuff, (void)count, (void)type, (void)peer, (void)stream, operate(comm);
}
