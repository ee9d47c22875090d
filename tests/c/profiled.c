/* A program whose calls a profiler plugin is told of: two ranks, in one thread. */
#include "check.h"

enum { RANKS = 2 };

int main(void) {
  ncclComm_t comms[RANKS];
  float in[RANKS] = {1, 2}, out[RANKS] = {0, 0};
  WORKS(ncclCommInitAll(comms, RANKS, NULL));
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclAllReduce(&in[rank], &out[rank], 1, ncclFloat, ncclSum, comms[rank], NULL));
  }
  WORKS(ncclGroupEnd());
  CHECK(out[0] == 3 && out[1] == 3);
  WORKS(ncclGroupStart());
  WORKS(ncclSend(&in[1], 1, ncclFloat, 0, comms[1], NULL));
  WORKS(ncclRecv(&out[0], 1, ncclFloat, 1, comms[0], NULL));
  WORKS(ncclGroupEnd());
  CHECK(out[0] == 2);
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclBroadcast(&in[rank], &out[rank], 1, ncclInt32, 1, comms[rank], NULL));
  }
  WORKS(ncclGroupEnd());
  CHECK(out[0] == 2);
  /* What is refused is told as well, and over at once. */
  RETURNS(ncclInvalidArgument, ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, comms[0], NULL));
  WORKS(ncclCommDestroy(comms[0]));
  WORKS(ncclCommAbort(comms[1]));
  return 0;
}
