/* An allreduce between four processes of this machine, in host memory: every rank ends up with the sum of all. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

enum { RANKS = 4, COUNT = 1000 };

static void check(ncclResult_t result, const char *call) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s: %s\n", call, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}
#define CHECK(call) check((call), #call)

static void run(int rank, ncclUniqueId id) {
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, RANKS, id, rank));

  float send[COUNT], recv[COUNT];
  for (int i = 0; i < COUNT; i++) send[i] = (float)(rank + i);
  /* No stream: the result is there when the call returns. */
  CHECK(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, NULL));

  for (int i = 0; i < COUNT; i++) {
    float wanted = (float)(RANKS * i + RANKS * (RANKS - 1) / 2);
    if (recv[i] != wanted) {
      fprintf(stderr, "rank %d: element %d is %g, not %g\n", rank, i, (double)recv[i], (double)wanted);
      exit(1);
    }
  }
  CHECK(ncclCommDestroy(comm));
  if (rank == 0) printf("%d ranks, %d elements: every sum is right\n", RANKS, COUNT);
}

int main(void) {
  /* Processes first, library second: a forked child must not inherit a library at work. Rank 0 is this process; it
   * makes the unique id and hands it to the others, by whatever means a program has. Here, a pipe to each. */
  int pipes[RANKS][2];
  for (int rank = 1; rank < RANKS; rank++) {
    if (pipe(pipes[rank]) != 0) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      ncclUniqueId id;
      if (read(pipes[rank][0], &id, sizeof id) != (ssize_t)sizeof id) return 1;
      run(rank, id);
      return 0;
    }
  }

  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  for (int rank = 1; rank < RANKS; rank++) {
    if (write(pipes[rank][1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
  }
  run(0, id);

  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status;
  return failed != 0;
}
