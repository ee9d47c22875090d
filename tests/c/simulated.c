/* ncclGroupSimulateEnd: how long a group should take, without carrying it out. Two ranks, in one thread. */
#include "check.h"

enum { RANKS = 2, COUNT = 1 << 18 };

static ncclComm_t comms[RANKS];
static float input[COUNT], output[RANKS][COUNT];

static int near(double one, double other) { return one > 0.999 * other && one < 1.001 * other; }

/* Microseconds of a group of so many AllReduces of rank `rank`. */
static double all_reduces(int rank, int calls, size_t count) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  WORKS(ncclGroupStart());
  for (int call = 0; call < calls; call++) {
    WORKS(ncclAllReduce(input, output[rank], count, ncclFloat, ncclSum, comms[rank], NULL));
  }
  WORKS(ncclGroupSimulateEnd(&info));
  return info.estimatedTime;
}

static double explained(size_t count) {
  char way[32];
  double predicted_ns = 0;
  WORKS(acclExplain(comms[0], "allreduce", count, ncclFloat, way, sizeof way, &predicted_ns));
  return predicted_ns / 1000;
}

int main(void) {
  WORKS(ncclCommInitAll(comms, RANKS, NULL));
  for (size_t i = 0; i < COUNT; i++) input[i] = 1;
  CHECK(near(all_reduces(0, 1, 2), explained(2)));
  CHECK(near(all_reduces(1, 1, COUNT), explained(COUNT)));
  CHECK(near(all_reduces(0, 3, COUNT), 3 * explained(COUNT)));
  CHECK(all_reduces(0, 1, 0) == 0);
  CHECK(output[0][0] == 0 && output[1][0] == 0);

  /* Inside another group nothing is written, and the calls belong to that one. */
  ncclSimInfo_t inner = NCCL_SIM_INFO_INITIALIZER, outer = NCCL_SIM_INFO_INITIALIZER;
  WORKS(ncclGroupStart());
  WORKS(ncclGroupStart());
  WORKS(ncclAllReduce(input, output[0], COUNT, ncclFloat, ncclSum, comms[0], NULL));
  WORKS(ncclGroupSimulateEnd(&inner));
  CHECK(inner.estimatedTime == -1);
  WORKS(ncclGroupSimulateEnd(&outer));
  CHECK(near(outer.estimatedTime, explained(COUNT)));

  /* What failed in the group is what its end returns. */
  ncclSimInfo_t failed = NCCL_SIM_INFO_INITIALIZER;
  WORKS(ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclBroadcast(input, output[0], COUNT, ncclFloat, RANKS, comms[0], NULL));
  RETURNS(ncclInvalidArgument, ncclGroupSimulateEnd(&failed));
  WORKS(ncclGroupStart());
  WORKS(ncclSend(input, COUNT, ncclFloat, 0, comms[0], NULL));
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(&failed));
  ncclUniqueId id;
  ncclComm_t made = NULL;
  WORKS(ncclGetUniqueId(&id));
  WORKS(ncclGroupStart());
  WORKS(ncclCommInitRank(&made, RANKS, id, 0));
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(&failed));
  CHECK(failed.estimatedTime == -1);

  /* Nothing of all that is left: the ranks are where they were. */
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclAllReduce(input, output[rank], COUNT, ncclFloat, ncclSum, comms[rank], NULL));
  }
  WORKS(ncclGroupEnd());
  CHECK(output[0][COUNT - 1] == 2 && output[1][0] == 2);
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommDestroy(comms[rank]));
  return 0;
}
