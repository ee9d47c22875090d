/* Ranks that are processes. */
#ifndef PROCESSES_H_
#define PROCESSES_H_

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Has each of so many forked children do the body, with one unique id, and waits until all have ended well. */
static inline void in_processes(void (*body)(ncclUniqueId, int), int ranks) {
  ncclUniqueId id;
  pid_t *pids = calloc((size_t)ranks, sizeof(pid_t));
  CHECK(pids != NULL);
  WORKS(ncclGetUniqueId(&id));
  for (int rank = 0; rank < ranks; rank++) {
    pids[rank] = fork();
    CHECK(pids[rank] >= 0);
    if (pids[rank] == 0) {
      alarm(50);
      body(id, rank);
      _exit(0);
    }
  }
  for (int rank = 0; rank < ranks; rank++) {
    int status = 1;
    CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && status == 0);
  }
  free(pids);
}

#endif
