/* Every row of the table of result codes that a program can bring about in host memory: who is at fault decides the code. A broken
 * invariant (3) is none of these: accl-sys/src/guard.rs tests what becomes of one. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include "processes.h"

enum { RANKS = 2 };

static float input[4] = {1, 2, 3, 4}, output[4 * RANKS];

static ncclComm_t comms[RANKS];

static void both_join(void) { WORKS(ncclCommInitAll(comms, RANKS, NULL)); }

static void both_leave(void) {
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommAbort(comms[rank]));
}

static ncclResult_t sum(ncclComm_t comm) {
  return ncclAllReduce(input, output, 4, ncclFloat, ncclSum, comm, NULL);
}

/* 1: a call of the device's driver failed. Its allocator is asked for memory at NULL. */
static void driver(void) { RETURNS(ncclUnhandledCudaError, ncclMemAlloc(NULL, 16)); }

/* 2: sockets, files, libraries, memory. */
static void system_calls(void) {
  char text[1 << 14];
  RETURNS(ncclSystemError, acclTune("/proc/nowhere/figures", text, sizeof text));
  void *memory = NULL;
  RETURNS(ncclSystemError, ncclMemAlloc(&memory, (size_t)1 << 62));
  CHECK(memory == NULL);
}

/* 4: a bad argument of one call; a communicator that blocks is none the worse for it. */
static void arguments(void) {
  both_join();
  ncclComm_t comm = comms[0];
  const void *in = input;
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, output, 4, ncclFloat, ncclSum, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, output, 4, (ncclDataType_t)12, ncclSum, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, output, 4, ncclFloat, ncclNumOps, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclBroadcast(in, output, 4, ncclFloat, RANKS, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclSend(in, 4, ncclFloat, -1, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = 0;
  ncclUniqueId id;
  ncclComm_t none = comm;
  WORKS(ncclGetUniqueId(&id));
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&none, 1, id, 0, &config));
  CHECK(none == NULL);
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&none, 0, id, 0));
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&none, 1, id, 1));
  ncclResult_t state = ncclInternalError;
  WORKS(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) WORKS(sum(comms[rank]));
  WORKS(ncclGroupEnd());
  CHECK(output[3] == 8);
  both_leave();
}

/* 4, of a communicator that is not ready; and 7: a call that does not block goes on. */
static void not_ready(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  WORKS(ncclGetUniqueId(&id));
  /* The other rank never comes. */
  RETURNS(ncclInProgress, ncclCommInitRankConfig(&comm, RANKS, id, 0, &config));
  CHECK(comm != NULL);
  RETURNS(ncclInvalidArgument, sum(comm));
  ncclResult_t state = ncclSuccess;
  WORKS(ncclCommGetAsyncError(comm, &state));
  CHECK(state != ncclSuccess);
  WORKS(ncclCommAbort(comm));
}

/* 5: good arguments in an illegal situation. */
static void usage(void) {
  const int twice[RANKS] = {3, 3};
  RETURNS(ncclInvalidUsage, ncclCommInitAll(comms, RANKS, twice));
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  both_join();
  WORKS(ncclGroupStart());
  (void)ncclSend(input, 4, ncclFloat, 0, comms[0], NULL);
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  both_leave();
  both_join();
  RETURNS(ncclInvalidUsage, ncclCommDeregister(comms[0], &comms));
  ncclDevCommRequirements_t wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  char space[256];
  RETURNS(ncclInvalidUsage, ncclDevCommCreate(comms[0], &wanted, (ncclDevComm_t *)(void *)space));
  WORKS(ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT));
  RETURNS(ncclInvalidUsage, sum(comms[0]));
  RETURNS(ncclInvalidArgument, ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT));
  both_leave();
  /* A handle that is no communicator any more is a bad argument. */
  RETURNS(ncclInvalidArgument, sum(comms[0]));
}

/* 5: ranks that disagree. */
static void disagreement(void) {
  both_join();
  WORKS(ncclGroupStart());
  WORKS(ncclAllReduce(input, output, 4, ncclFloat, ncclSum, comms[0], NULL));
  WORKS(ncclAllReduce(input, output, 3, ncclFloat, ncclSum, comms[1], NULL));
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  CHECK(strstr(ncclGetLastError(NULL), "AllReduce") != NULL);
  both_leave();
}

/* 6: a peer that is gone. 8: one that does not come within a time limit. */
static void gone(ncclUniqueId id, int rank) {
  ncclComm_t comm = NULL;
  WORKS(ncclCommInitRank(&comm, RANKS, id, rank));
  if (rank == 1) _exit(0);
  RETURNS(ncclRemoteError, sum(comm));
  WORKS(ncclCommAbort(comm));
}

static void late(ncclUniqueId id, int rank) {
  CHECK(setenv("ACCL_TIMEOUT", "0.2", 1) == 0);
  ncclComm_t comm = NULL;
  WORKS(ncclCommInitRank(&comm, RANKS, id, rank));
  if (rank == 0) {
    RETURNS(ncclTimeout, sum(comm));
    CHECK(strstr(ncclGetLastError(NULL), "(ncclTimeout)") != NULL);
  } else {
    /* It hears of that, and has made no call. */
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) WORKS(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclTimeout || state == ncclRemoteError);
  }
  WORKS(ncclCommAbort(comm));
}

int main(void) {
  alarm(120);
  in_processes(gone, RANKS);
  in_processes(late, RANKS);
  driver();
  system_calls();
  arguments();
  not_ready();
  usage();
  disagreement();
  return 0;
}
