/* A program whose calls a tuner plugin may choose for: two ranks, in one thread. Prints how the library carries them out. */
#include "check.h"

enum { RANKS = 2, COUNT = 4096 };

static float input[RANKS][COUNT], output[RANKS][COUNT];

static void explain(ncclComm_t comm, const char *operation, size_t count) {
  char way[32];
  double predicted_ns;
  WORKS(acclExplain(comm, operation, count, ncclFloat, way, sizeof way, &predicted_ns));
  printf("%s %zu %s\n", operation, count, way);
}

int main(void) {
  ncclComm_t comms[RANKS];
  WORKS(ncclCommInitAll(comms, RANKS, NULL));
  for (int rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < COUNT; i++) input[rank][i] = (float)(rank + 1);
  }
  for (size_t count = 1; count <= COUNT; count *= COUNT) {
    WORKS(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
      WORKS(ncclAllReduce(input[rank], output[rank], count, ncclFloat, ncclSum, comms[rank], NULL));
    }
    WORKS(ncclGroupEnd());
    CHECK(output[0][count - 1] == 3 && output[1][0] == 3);
  }
  explain(comms[0], "allreduce", 1);
  explain(comms[1], "allreduce", COUNT);
  explain(comms[0], "allgather", COUNT);
  explain(comms[0], "alltoall", COUNT);
  WORKS(ncclCommDestroy(comms[0]));
  WORKS(ncclCommAbort(comms[1]));
  return 0;
}
