/* A program of NVIDIA's header, of whatever release: every call that the release has and that works in host memory, by two ranks. Says
 * how many kinds of calls it has made. */
#include <cuda_runtime.h>
#include <nccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int calls;

#define RETURNS(wanted, call)                                                                                  \
  do {                                                                                                         \
    ncclResult_t got = (call);                                                                                 \
    calls++;                                                                                                   \
    if (got != (wanted)) {                                                                                     \
      fprintf(stderr, "calls.c:%d: %s returned %d: %s\n", __LINE__, #call, (int)got, ncclGetLastError(NULL)); \
      exit(1);                                                                                                 \
    }                                                                                                          \
  } while (0)
#define WORKS(call) RETURNS(ncclSuccess, call)
#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      fprintf(stderr, "calls.c:%d: %s\n", __LINE__, #condition);     \
      exit(1);                                                       \
    }                                                                \
  } while (0)

enum { RANKS = 2, ELEMS = 1000 };

static ncclComm_t comms[RANKS];
static float in[RANKS][RANKS * ELEMS], out[RANKS][RANKS * ELEMS];

/* The same call by both ranks, which this thread makes as one group. */
#define BOTH(call)                                                      \
  do {                                                                  \
    WORKS(ncclGroupStart());                                            \
    for (int rank = 0; rank < RANKS; rank++) {                          \
      for (int i = 0; i < RANKS * ELEMS; i++) out[rank][i] = -1;        \
      WORKS(call);                                                      \
    }                                                                   \
    WORKS(ncclGroupEnd());                                              \
  } while (0)

static void holds(int rank, int from, float value) {
  for (int i = from; i < from + ELEMS; i++) {
    if (out[rank][i] != value) {
      fprintf(stderr, "calls.c: element %d of rank %d is %f, not %f\n", i, rank, (double)out[rank][i], (double)value);
      exit(1);
    }
  }
}

/* Every initializer of the release, by the one call that reads it. */
static void configurations(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
#if LEVEL >= 22700
  config.commName = "theirs";
#endif
#if LEVEL >= 22800
  config.nvlinkCentricSched = 1;
#endif
#if LEVEL >= 23000
  config.maxP2pPeers = 3;
#endif
  ncclUniqueId id;
  WORKS(ncclGetUniqueId(&id));
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommInitRankConfig(&comms[rank], RANKS, id, rank, &config));
  WORKS(ncclGroupEnd());
  ncclComm_t none = comms[0];
  config.blocking = 7;
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&none, 1, id, 0, &config));
#if LEVEL >= 22800
  config.blocking = 1;
  config.nvlinkCentricSched = 2;
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&none, 1, id, 0, &config));
#endif
}

static void questions(void) {
  int version = 0, count = 0, rank = -1, device = 7;
  WORKS(ncclGetVersion(&version));
  CHECK(version == 23007);
  WORKS(ncclCommCount(comms[1], &count));
  WORKS(ncclCommUserRank(comms[1], &rank));
  WORKS(ncclCommCuDevice(comms[1], &device));
  CHECK(count == RANKS && rank == 1 && device == -1);
  ncclResult_t state = ncclInternalError;
  WORKS(ncclCommGetAsyncError(comms[0], &state));
  CHECK(state == ncclSuccess);
  CHECK(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
}

static void collectives(void) {
  for (int rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < RANKS * ELEMS; i++) in[rank][i] = (float)(rank + 1);
  }
  BOTH(ncclAllReduce(in[rank], out[rank], ELEMS, ncclFloat, ncclSum, comms[rank], NULL));
  holds(0, 0, 3), holds(1, 0, 3);
  BOTH(ncclReduce(in[rank], out[rank], ELEMS, ncclFloat, ncclProd, 1, comms[rank], NULL));
  holds(0, 0, -1), holds(1, 0, 2);
  BOTH(ncclBroadcast(in[rank], out[rank], ELEMS, ncclFloat, 1, comms[rank], NULL));
  holds(0, 0, 2), holds(1, 0, 2);
  BOTH(ncclAllGather(in[rank], out[rank], ELEMS, ncclFloat, comms[rank], NULL));
  holds(0, 0, 1), holds(1, ELEMS, 2);
  BOTH(ncclReduceScatter(in[rank], out[rank], ELEMS, ncclFloat, ncclAvg, comms[rank], NULL));
  holds(0, 0, 1.5f), holds(1, 0, 1.5f);
  BOTH((ncclSend(in[rank], ELEMS, ncclFloat, 1 - rank, comms[rank], NULL) == ncclSuccess)
           ? ncclRecv(out[rank], ELEMS, ncclFloat, 1 - rank, comms[rank], NULL)
           : ncclInternalError);
  holds(0, 0, 2), holds(1, 0, 1);
  float factor = 10;
  ncclRedOp_t scaled[RANKS];
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclRedOpCreatePreMulSum(&scaled[rank], &factor, ncclFloat, ncclScalarHostImmediate, comms[rank]));
  }
  BOTH(ncclAllReduce(in[rank], out[rank], ELEMS, ncclFloat, scaled[rank], comms[rank], NULL));
  holds(0, 0, 30), holds(1, 0, 30);
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclRedOpDestroy(scaled[rank], comms[rank]));
#if LEVEL >= 22803
  BOTH(ncclAlltoAll(in[rank], out[rank], ELEMS, ncclFloat, comms[rank], NULL));
  holds(0, ELEMS, 2), holds(1, 0, 1);
  BOTH(ncclGather(in[rank], out[rank], ELEMS, ncclFloat, 0, comms[rank], NULL));
  holds(0, ELEMS, 2), holds(1, 0, -1);
  BOTH(ncclScatter(in[rank], out[rank], ELEMS, ncclFloat, 1, comms[rank], NULL));
  holds(0, 0, 2), holds(1, 0, 2);
#endif
#if LEVEL >= 23100
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  BOTH(ncclAllReduceConfig(in[rank], out[rank], ELEMS, ncclFloat, ncclMax, comms[rank], NULL, &config));
  holds(0, 0, 2), holds(1, 0, 2);
#endif
}

static void memory(void) {
#if LEVEL >= 21903
  void *buffer = NULL, *handle = NULL;
  WORKS(ncclMemAlloc(&buffer, 4096));
  WORKS(ncclCommRegister(comms[0], buffer, 4096, &handle));
  WORKS(ncclCommDeregister(comms[0], handle));
  WORKS(ncclMemFree(buffer));
#endif
}

static void families(void) {
#if LEVEL >= 21800
  ncclComm_t children[RANKS] = {NULL, NULL};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommSplit(comms[rank], 0, -rank, &children[rank], &config));
  WORKS(ncclGroupEnd());
  int rank = -1;
  WORKS(ncclCommUserRank(children[0], &rank));
  CHECK(rank == 1);
  for (int i = 0; i < RANKS; i++) WORKS(ncclCommDestroy(children[i]));
#endif
#if LEVEL >= 22703
  ncclComm_t alone = NULL;
  int excluded = 1;
  WORKS(ncclCommShrink(comms[0], &excluded, 1, &alone, NULL, NCCL_SHRINK_DEFAULT));
  WORKS(ncclCommDestroy(alone));
#endif
}

int main(void) {
  configurations();
  questions();
  collectives();
  memory();
  families();
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommFinalize(comms[rank]));
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommDestroy(comms[rank]));
  printf("%d calls work\n", calls);
  return 0;
}
