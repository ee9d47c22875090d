/* Two processes load, use and unload the library again and again, and unload it with a communicator that lives (C42). The
 * program is not linked with the library, so that the checks of check.h do not serve. */
#undef NDEBUG
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accl.h"

enum { RANKS = 2, ROUNDS = 50, COUNT = 1000 };

static ncclResult_t (*get_id)(ncclUniqueId *);
static ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
static ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
static ncclResult_t (*split)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
static ncclResult_t (*destroy)(ncclComm_t);

static void *load(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  const struct {
    const char *name;
    void *place;
  } functions[] = {{"ncclGetUniqueId", &get_id},
                   {"ncclCommInitRank", &init},
                   {"ncclAllReduce", &reduce},
                   {"ncclCommSplit", &split},
                   {"ncclCommDestroy", &destroy}};
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  assert(library != NULL);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *found = dlsym(library, functions[i].name);
    assert(found != NULL);
    /* ISO C has no conversion from a pointer to data to one to a function. */
    memcpy(functions[i].place, &found, sizeof found);
  }
  return library;
}

static void use(ncclComm_t comm, int ranks) {
  float data[COUNT];
  for (int i = 0; i < COUNT; i++) data[i] = 1.0f;
  assert(reduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL) == ncclSuccess);
  for (int i = 0; i < COUNT; i++) assert(data[i] == (float)ranks);
}

static void run(const ncclUniqueId *ids, int rank) {
  for (int round = 0; round < ROUNDS; round++) {
    void *library = load();
    ncclComm_t comm = NULL, child = NULL;
    assert(init(&comm, RANKS, ids[round], rank) == ncclSuccess);
    use(comm, RANKS);
    assert(split(comm, rank, 0, &child, NULL) == ncclSuccess);
    use(child, 1);
    assert(destroy(child) == ncclSuccess && destroy(comm) == ncclSuccess);
    assert(dlclose(library) == 0);
  }
  ncclUniqueId own;
  ncclComm_t alive = NULL;
  void *library = load();
  assert(get_id(&own) == ncclSuccess && init(&alive, 1, own, 0) == ncclSuccess);
  assert(dlclose(library) == 0);
  /* The code is still there, and so is what it keeps. */
  use(alive, 1);
  assert(destroy(alive) == ncclSuccess);
}

/* The other rank is forked before the library is used: else it would inherit what belongs to threads that it has not. */
int main(void) {
  static ncclUniqueId ids[ROUNDS];
  int ends[2], status = 1;
  alarm(120);
  assert(pipe(ends) == 0);
  pid_t other = fork();
  assert(other >= 0);
  if (other == 0) {
    alarm(110);
    for (int round = 0; round < ROUNDS; round++)
      assert(read(ends[0], &ids[round], sizeof ids[round]) == sizeof ids[round]);
    run(ids, 1);
    /* With everything that is done at the end of a program, so that a sanitizer looks for leaks. */
    exit(0);
  }
  void *library = load();
  for (int round = 0; round < ROUNDS; round++) {
    assert(get_id(&ids[round]) == ncclSuccess);
    assert(write(ends[1], &ids[round], sizeof ids[round]) == sizeof ids[round]);
  }
  assert(dlclose(library) == 0);
  run(ids, 0);
  assert(waitpid(other, &status, 0) == other && status == 0);
  return 0;
}
