/* A unique id made before fork: each child is a process of its own and joins like any other. A communicator made
 * before fork is not the child's, and whatever the child does with it leaves the parent's as it is. */
#include "processes.h"

enum { RANKS = 3, COUNT = 100000 };

static void child(ncclUniqueId id, int rank) {
  static float data[COUNT];
  ncclComm_t comm = NULL;
  for (int i = 0; i < COUNT; i++) data[i] = (float)(rank + 1);
  WORKS(ncclCommInitRank(&comm, RANKS, id, rank));
  WORKS(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) CHECK(data[i] == 6.0f);
  if (rank == 0) {
    int status = 1;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      alarm(40);
      RETURNS(ncclInvalidUsage, ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL));
      CHECK(strstr(ncclGetLastError(NULL), "forked child") != NULL);
      RETURNS(ncclInvalidUsage, ncclCommFinalize(comm));
      RETURNS(ncclInvalidUsage, ncclCommDestroy(comm));
      RETURNS(ncclInvalidUsage, ncclCommAbort(comm));
      _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  }
  for (int i = 0; i < COUNT; i++) data[i] = 1.0f;
  WORKS(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) CHECK(data[i] == 3.0f);
  WORKS(ncclCommDestroy(comm));
}

int main(void) {
  alarm(60);
  in_processes(child, RANKS);
  return 0;
}
