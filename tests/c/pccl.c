/* pccl.h by itself: its values and layout beside those of nccl.h, and two ranks that use every function of it. */
#include "pccl.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

#ifdef __cplusplus
#define SAME(one, other) static_assert((int)(one) == (int)(other), #one)
#else
#define SAME(one, other) _Static_assert((int)(one) == (int)(other), #one)
#endif

/* The library reads all of this as if it came by nccl.h. */
SAME(pcclUnhandledHggcError, ncclUnhandledCudaError);
SAME(pcclSystemError, ncclSystemError);
SAME(pcclInternalError, ncclInternalError);
SAME(pcclInvalidArgument, ncclInvalidArgument);
SAME(pcclInvalidUsage, ncclInvalidUsage);
SAME(pcclRemoteError, ncclRemoteError);
SAME(pcclInProgress, ncclInProgress);
SAME(pcclNumResults, ncclTimeout);
SAME(pcclSum, ncclSum);
SAME(pcclProd, ncclProd);
SAME(pcclMax, ncclMax);
SAME(pcclMin, ncclMin);
SAME(pcclAvg, ncclAvg);
SAME(pcclNumOps, ncclNumOps);
SAME(pcclInt8, ncclInt8);
SAME(pcclUint8, ncclUint8);
SAME(pcclInt32, ncclInt32);
SAME(pcclUint32, ncclUint32);
SAME(pcclInt64, ncclInt64);
SAME(pcclUint64, ncclUint64);
SAME(pcclFloat16, ncclFloat16);
SAME(pcclFloat32, ncclFloat32);
SAME(pcclFloat64, ncclFloat64);
SAME(pcclBfloat16, ncclBfloat16);
SAME(pcclFloat8e4m3, ncclFloat8e4m3);
SAME(pcclFloat8e5m2, ncclFloat8e5m2);
SAME(pcclNumTypes, ncclNumTypes);
SAME(pcclScalarDevice, ncclScalarDevice);
SAME(pcclScalarHostImmediate, ncclScalarHostImmediate);
SAME(PCCL_SPLIT_NOCOLOR, NCCL_SPLIT_NOCOLOR);
SAME(PCCL_SHRINK_ABORT, NCCL_SHRINK_ABORT);
SAME(PCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME(PCCL_CTA_POLICY_ZERO, NCCL_CTA_POLICY_ZERO);
SAME(sizeof(pcclUniqueId), sizeof(ncclUniqueId));
SAME(PCCL_VERSION(2, 1, 1), PCCL_VERSION_CODE);
/* The struct of NCCL 2.27. */
SAME(sizeof(pcclConfig_t), 72);
SAME(offsetof(pcclConfig_t, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(pcclConfig_t, minCTAs), offsetof(ncclConfig_t, minCTAs));
SAME(offsetof(pcclConfig_t, maxCTAs), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(pcclConfig_t, netName), offsetof(ncclConfig_t, netName));
SAME(offsetof(pcclConfig_t, splitShare), offsetof(ncclConfig_t, splitShare));
SAME(offsetof(pcclConfig_t, trafficClass), offsetof(ncclConfig_t, trafficClass));
SAME(offsetof(pcclConfig_t, commName), offsetof(ncclConfig_t, commName));
SAME(offsetof(pcclConfig_t, CTAPolicy), offsetof(ncclConfig_t, CTAPolicy));
SAME(offsetof(pcclConfig_t, shrinkShare), offsetof(ncclConfig_t, shrinkShare));
SAME(offsetof(pcclConfig_t, nvlsCTAs), offsetof(ncclConfig_t, nvlsCTAs));

#define RETURNS(wanted, call)                                                                              \
  do {                                                                                                     \
    pcclResult_t got = (call);                                                                             \
    if (got != (wanted)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s returned %d (%s); last error: %s\n", __FILE__, __LINE__, #call, (int)got, \
              pcclGetErrorString(got), pcclGetLastError(NULL));                                            \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)
#define WORKS(call) RETURNS(pcclSuccess, call)
#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, pcclGetLastError(NULL)); \
      exit(1);                                                                                              \
    }                                                                                                       \
  } while (0)

enum { RANKS = 2, ELEMS = 1000 };

typedef struct {
  int rank;
  pcclUniqueId ids[RANKS];
} Rank;

static void filled(float *buffer, int elems, float value) {
  for (int i = 0; i < elems; i++) buffer[i] = value;
}

static void holds(const float *buffer, int elems, float value) {
  for (int i = 0; i < elems; i++) CHECK(buffer[i] == value);
}

static void collectives(pcclComm_t comm, int rank) {
  float send[RANKS * ELEMS], recv[RANKS * ELEMS];
  const float own = (float)(rank + 1);
  filled(send, RANKS * ELEMS, own);
  WORKS(pcclAllReduce(send, recv, ELEMS, pcclFloat, pcclSum, comm, NULL));
  holds(recv, ELEMS, 3);
  WORKS(pcclReduce(send, recv, ELEMS, pcclFloat32, pcclMax, 1, comm, NULL));
  holds(recv, ELEMS, rank == 1 ? 2 : 3);
  WORKS(pcclBroadcast(send, recv, ELEMS, pcclFloat, 1, comm, NULL));
  holds(recv, ELEMS, 2);
  WORKS(pcclAllGather(send, recv, ELEMS, pcclFloat, comm, NULL));
  holds(recv, ELEMS, 1);
  holds(recv + ELEMS, ELEMS, 2);
  WORKS(pcclReduceScatter(send, recv, ELEMS, pcclFloat, pcclAvg, comm, NULL));
  holds(recv, ELEMS, 1.5);
  WORKS(pcclAlltoAll(send, recv, ELEMS, pcclFloat, comm, NULL));
  holds(recv, ELEMS, 1);
  holds(recv + ELEMS, ELEMS, 2);
  filled(recv, RANKS * ELEMS, 0);
  WORKS(pcclGather(send, recv, ELEMS, pcclFloat, 0, comm, NULL));
  holds(recv + ELEMS, ELEMS, rank == 0 ? 2 : 0);
  WORKS(pcclScatter(send, recv, ELEMS, pcclFloat, 0, comm, NULL));
  holds(recv, ELEMS, 1);
  filled(recv, ELEMS, own);
  WORKS(pcclBcast(recv, ELEMS, pcclFloat, 1, comm, NULL));
  holds(recv, ELEMS, 2);

  WORKS(pcclGroupStart());
  WORKS(pcclSend(send, ELEMS, pcclFloat, 1 - rank, comm, NULL));
  WORKS(pcclRecv(recv, ELEMS, pcclFloat, 1 - rank, comm, NULL));
  WORKS(pcclGroupEnd());
  holds(recv, ELEMS, (float)(2 - rank));

  float factor = 10;
  pcclRedOp_t scaled;
  WORKS(pcclRedOpCreatePreMulSum(&scaled, &factor, pcclFloat, pcclScalarHostImmediate, comm));
  WORKS(pcclAllReduce(send, recv, ELEMS, pcclFloat, scaled, comm, NULL));
  WORKS(pcclRedOpDestroy(scaled, comm));
  holds(recv, ELEMS, 30);
}

static void memory(pcclComm_t comm) {
  void *buffer = NULL, *handle = NULL;
  WORKS(pcclMemAlloc(&buffer, 4096));
  WORKS(pcclCommRegister(comm, buffer, 4096, &handle));
  WORKS(pcclCommDeregister(comm, handle));
  pcclWindow_t window = NULL;
  WORKS(pcclCommWindowRegister(comm, buffer, 4096, &window, PCCL_WIN_DEFAULT));
  WORKS(pcclCommWindowDeregister(comm, window));
  WORKS(pcclMemFree(buffer));
}

static void questions(pcclComm_t comm, int rank) {
  int count = 0, own = -1, device = 7;
  WORKS(pcclCommCount(comm, &count));
  WORKS(pcclCommUserRank(comm, &own));
  WORKS(pcclCommCuDevice(comm, &device));
  CHECK(count == RANKS && own == rank && device == -1);
  pcclResult_t state = pcclInternalError;
  WORKS(pcclCommGetAsyncError(comm, &state));
  CHECK(state == pcclSuccess);
}

/* Communicators from communicators: a split, a split without a color, a shrink without a peer. */
static void families(pcclComm_t comm, int rank) {
  pcclComm_t child = NULL;
  pcclConfig_t config = PCCL_CONFIG_INITIALIZER;
  config.commName = "child";
  WORKS(pcclCommSplit(comm, 0, -rank, &child, &config));
  int own = -1;
  WORKS(pcclCommUserRank(child, &own));
  CHECK(own == 1 - rank);
  WORKS(pcclCommDestroy(child));
  WORKS(pcclCommSplit(comm, rank == 0 ? 5 : PCCL_SPLIT_NOCOLOR, 0, &child, NULL));
  CHECK((child == PCCL_COMM_NULL) == (rank == 1));
  WORKS(pcclCommDestroy(child));
  if (rank == 1) return;
  int excluded = 1;
  WORKS(pcclCommShrink(comm, &excluded, 1, &child, NULL, PCCL_SHRINK_DEFAULT));
  questions(comm, rank);
  int count = 0;
  WORKS(pcclCommCount(child, &count));
  CHECK(count == 1);
  WORKS(pcclCommAbort(child));
}

static void *run(void *argument) {
  const Rank *given = (const Rank *)argument;
  const int rank = given->rank;
  pcclComm_t comm = NULL;
  WORKS(pcclCommInitRank(&comm, RANKS, given->ids[0], rank));
  collectives(comm, rank);
  memory(comm);
  questions(comm, rank);
  families(comm, rank);
  WORKS(pcclCommFinalize(comm));
  WORKS(pcclCommDestroy(comm));

  pcclConfig_t config = PCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  pcclUniqueId ids[1] = {given->ids[1]};
  pcclResult_t state = pcclCommInitRankScalable(&comm, RANKS, rank, 1, ids, &config);
  while (state == pcclInProgress) WORKS(pcclCommGetAsyncError(comm, &state));
  WORKS(state);
  questions(comm, rank);
  WORKS(pcclCommDestroy(comm));
  return NULL;
}

/* What is refused, with the code and the names of this header. */
static void refusals(void) {
  RETURNS(pcclInvalidArgument, pcclGetVersion(NULL));
  CHECK(strncmp(pcclGetLastError(NULL), "pcclGetVersion: ", 16) == 0);
  CHECK(strstr(pcclGetLastError(NULL), "(pcclInvalidArgument)") != NULL);
  RETURNS(pcclInvalidUsage, pcclGroupEnd());
  RETURNS(pcclUnhandledHggcError, pcclMemAlloc(NULL, 16));
  CHECK(strstr(pcclGetLastError(NULL), "(pcclUnhandledHggcError)") != NULL);
  RETURNS(pcclInvalidArgument, pcclAllReduce(NULL, NULL, 1, pcclFloat, pcclSum, NULL, NULL));

  pcclUniqueId id;
  memset(&id, 0, sizeof id);
  pcclComm_t comm = (pcclComm_t)(void *)16;
  pcclConfig_t foreign;
  memset(&foreign, 0, sizeof foreign);
  RETURNS(pcclInvalidArgument, pcclCommInitRankConfig(&comm, 1, id, 0, &foreign));
  CHECK(comm == NULL && strstr(pcclGetLastError(NULL), "pcclConfig_t was not initialized") != NULL);
  CHECK(strstr(pcclGetLastError(NULL), "PCCL_CONFIG_INITIALIZER") != NULL);
  /* Every field that the struct has is read, though PCCL's version is a small number. */
  pcclConfig_t bad = PCCL_CONFIG_INITIALIZER;
  bad.shrinkShare = 2;
  RETURNS(pcclInvalidArgument, pcclCommInitRankConfig(&comm, 1, id, 0, &bad));
  CHECK(strstr(pcclGetLastError(NULL), "shrinkShare") != NULL);
}

static void texts(void) {
  int version = 0;
  WORKS(pcclGetVersion(&version));
  CHECK(version == PCCL_VERSION_CODE);
  CHECK(strcmp(pcclGetErrorString(pcclSuccess), "no error") == 0);
  for (int code = 1; code < pcclNumResults; code++) {
    const char *text = pcclGetErrorString((pcclResult_t)code);
    CHECK(strcmp(text, "unknown result code") != 0 && strstr(text, "NCCL") == NULL);
  }
  CHECK(strcmp(pcclGetErrorString(pcclNumResults), "unknown result code") == 0);
  CHECK(!nccl_c4_stats_enable && nccl_c4_stats_mode == 0 && !nccl_coll_stats_enable);
}

/* One instance behind both faces: a communicator of one works by the names of the other. */
static void both_faces(void) {
  pcclComm_t comm = NULL;
  WORKS(pcclCommInitAll(&comm, 1, NULL));
  float value = 4, sum = 0;
  CHECK(ncclAllReduce(&value, &sum, 1, ncclFloat, ncclSum, (ncclComm_t)comm, NULL) == ncclSuccess && sum == 4);
  WORKS(pcclCommDestroy(comm));
  CHECK(ncclAllReduce(&value, &sum, 1, ncclFloat, ncclSum, (ncclComm_t)comm, NULL) == ncclInvalidArgument);
  CHECK(strstr(pcclGetLastError(NULL), "(ncclInvalidArgument)") != NULL);
}

int main(void) {
  texts();
  refusals();
  both_faces();
  Rank ranks[RANKS];
  pthread_t threads[RANKS];
  pcclUniqueId ids[RANKS];
  for (int i = 0; i < RANKS; i++) WORKS(pcclGetUniqueId(&ids[i]));
  for (int rank = 0; rank < RANKS; rank++) {
    ranks[rank].rank = rank;
    memcpy(ranks[rank].ids, ids, sizeof ids);
    CHECK(pthread_create(&threads[rank], NULL, run, &ranks[rank]) == 0);
  }
  for (int rank = 0; rank < RANKS; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
  return 0;
}
