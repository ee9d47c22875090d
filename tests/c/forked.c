/* A unique id made before fork: each child is a process of its own and joins like any other. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 100000 };

static void child(ncclUniqueId id, int rank) {
  static float data[COUNT];
  ncclComm_t comm = NULL;
  for (int i = 0; i < COUNT; i++) data[i] = (float)(rank + 1);
  WORKS(ncclCommInitRank(&comm, RANKS, id, rank));
  WORKS(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) CHECK(data[i] == 6.0f);
  WORKS(ncclCommDestroy(comm));
}

int main(void) {
  ncclUniqueId id;
  pid_t pids[RANKS];
  alarm(60);
  WORKS(ncclGetUniqueId(&id));
  for (int rank = 0; rank < RANKS; rank++) {
    pids[rank] = fork();
    CHECK(pids[rank] >= 0);
    if (pids[rank] == 0) {
      alarm(50);
      child(id, rank);
      _exit(0);
    }
  }
  for (int rank = 0; rank < RANKS; rank++) {
    int status = 1;
    CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && status == 0);
  }
  return 0;
}
