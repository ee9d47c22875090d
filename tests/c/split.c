/* Four processes split: by colour, again and again, and while one of them has no descriptors left (C24). */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 50000, ROUNDS = 10 };

static int sum(ncclComm_t comm, int value) {
  static int data[COUNT];
  for (int i = 0; i < COUNT; i++) data[i] = value;
  WORKS(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) CHECK(data[i] == data[0]);
  return data[0];
}

static void allow_descriptors(rlim_t most) {
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void run(ncclUniqueId id, int rank) {
  ncclComm_t comm = NULL, child = NULL;
  WORKS(ncclCommInitRank(&comm, RANKS, id, rank));
  for (int round = 0; round < ROUNDS; round++) {
    WORKS(ncclCommSplit(comm, rank % 2, -rank, &child, NULL));
    CHECK(sum(child, 1 + rank) == (rank % 2 == 0 ? 4 : 6));
    WORKS(ncclCommDestroy(child));
  }
  int failures = 0;
  for (rlim_t spare = 0; spare < 8; spare++) {
    int lowest = dup(2);
    CHECK(lowest > 2);
    close(lowest);
    if (rank == 2) allow_descriptors((rlim_t)lowest + spare);
    child = NULL;
    ncclResult_t code = ncclCommSplit(comm, 0, 0, &child, NULL);
    allow_descriptors(1024);
    CHECK((code == ncclSuccess) == (child != NULL));
    /* All or none, and the parent goes on. */
    int failed = sum(comm, code != ncclSuccess);
    CHECK(failed == 0 || failed == RANKS);
    if (child != NULL) {
      CHECK(sum(child, 1) == RANKS);
      WORKS(ncclCommDestroy(child));
    }
    failures += failed > 0;
  }
  CHECK(failures > 0);
  WORKS(ncclCommDestroy(comm));
}

/* The ranks are forked before the library is used: else they would inherit what belongs to threads that they have not. */
int main(void) {
  ncclUniqueId id;
  pid_t pids[RANKS];
  int ends[2];
  alarm(120);
  setenv("ACCL_INIT_TIMEOUT", "20", 1);
  CHECK(pipe(ends) == 0);
  for (int rank = 1; rank < RANKS; rank++) {
    pids[rank] = fork();
    CHECK(pids[rank] >= 0);
    if (pids[rank] == 0) {
      alarm(110);
      CHECK(read(ends[0], &id, sizeof id) == sizeof id);
      run(id, rank);
      /* With everything that is done at the end of a program, so that a sanitizer looks for leaks. */
      exit(0);
    }
  }
  WORKS(ncclGetUniqueId(&id));
  for (int rank = 1; rank < RANKS; rank++) CHECK(write(ends[1], &id, sizeof id) == sizeof id);
  run(id, 0);
  for (int rank = 1; rank < RANKS; rank++) {
    int status = 1;
    CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && status == 0);
  }
  return 0;
}
