/* Where the words of NVIDIA's guide and what its library does differ: what this one does. docs/semantics.md says so, too. */
#include "check.h"

enum { RANKS = 2 };

static ncclComm_t comms[RANKS];

static void both_join(void) { WORKS(ncclCommInitAll(comms, RANKS, NULL)); }

static void both_leave(void) {
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommAbort(comms[rank]));
}

/* A bad argument in a group drops the whole group, and its end returns the error. */
static void a_group_is_dropped_as_a_whole(void) {
  both_join();
  float input[RANKS] = {1, 1}, output[RANKS] = {7, 7};
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclAllReduce(&input[rank], &output[rank], 1, ncclFloat, ncclSum, comms[rank], NULL));
  }
  RETURNS(ncclInvalidArgument, ncclBroadcast(input, output, 1, ncclFloat, RANKS, comms[0], NULL));
  RETURNS(ncclInvalidArgument, ncclGroupEnd());
  CHECK(output[0] == 7 && output[1] == 7);
  both_leave();
}

/* Averages of floats: the sum, then the division. 60000 + 60000 does not fit float16, their average does. */
static void averages_sum_before_they_divide(void) {
  both_join();
  const uint16_t sixty_thousand = 0x7b53;
  uint16_t input[RANKS] = {sixty_thousand, sixty_thousand}, output[RANKS] = {0, 0};
  float threes[RANKS] = {1, 2}, half[RANKS] = {0, 0};
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclAllReduce(&input[rank], &output[rank], 1, ncclFloat16, ncclAvg, comms[rank], NULL));
    WORKS(ncclAllReduce(&threes[rank], &half[rank], 1, ncclFloat, ncclAvg, comms[rank], NULL));
  }
  WORKS(ncclGroupEnd());
  CHECK(output[0] == sixty_thousand && output[1] == sixty_thousand);
  CHECK(half[0] == 1.5f && half[1] == 1.5f);
  both_leave();
}

/* CommShrink sorts the caller's list. */
static void the_excluded_are_sorted(void) {
  ncclComm_t three[3], child = NULL;
  WORKS(ncclCommInitAll(three, 3, NULL));
  int excluded[2] = {2, 1};
  WORKS(ncclCommShrink(three[0], excluded, 2, &child, NULL, NCCL_SHRINK_DEFAULT));
  CHECK(excluded[0] == 1 && excluded[1] == 2);
  int count = 0;
  WORKS(ncclCommCount(child, &count));
  CHECK(count == 1);
  WORKS(ncclCommAbort(child));
  for (int rank = 0; rank < 3; rank++) WORKS(ncclCommAbort(three[rank]));
}

/* Nothing to do: arguments are checked, streams and buffers are not looked at. A send of nothing needs its receive. */
static void nothing_to_do(void) {
  both_join();
  const cudaStream_t no_stream = (cudaStream_t)(void *)0x1234;
  WORKS(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comms[0], no_stream));
  WORKS(ncclAlltoAll(NULL, NULL, 0, ncclFloat, comms[0], no_stream));
  RETURNS(ncclInvalidArgument, ncclAllReduce(NULL, NULL, 0, (ncclDataType_t)99, ncclSum, comms[0], no_stream));
  RETURNS(ncclInvalidArgument, ncclReduce(NULL, NULL, 0, ncclFloat, ncclSum, RANKS, comms[0], no_stream));
  RETURNS(ncclInvalidArgument, ncclSend(NULL, 0, ncclFloat, 1, comms[0], no_stream));
  WORKS(ncclGroupStart());
  WORKS(ncclSend(NULL, 0, ncclFloat, 1, comms[0], NULL));
  WORKS(ncclRecv(NULL, 0, ncclFloat, 0, comms[1], NULL));
  WORKS(ncclGroupEnd());
  both_leave();
}

/* On a communicator that does not block, a bad argument is its error from then on. */
static void a_bad_argument_spoils_one_that_does_not_block(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  WORKS(ncclGetUniqueId(&id));
  ncclResult_t state = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  while (state == ncclInProgress) WORKS(ncclCommGetAsyncError(comm, &state));
  WORKS(state);
  float value = 1;
  RETURNS(ncclInvalidArgument, ncclBroadcast(&value, &value, 1, ncclFloat, 1, comm, NULL));
  WORKS(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclInvalidArgument);
  RETURNS(ncclInvalidArgument, ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL));
  WORKS(ncclCommAbort(comm));
}

/* GroupSimulateEnd(NULL) is GroupEnd: it carries the group out. */
static void a_simulation_of_nothing_is_none(void) {
  both_join();
  float input[RANKS] = {1, 2}, output[RANKS] = {0, 0};
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    WORKS(ncclAllReduce(&input[rank], &output[rank], 1, ncclFloat, ncclSum, comms[rank], NULL));
  }
  WORKS(ncclGroupSimulateEnd(NULL));
  CHECK(output[0] == 3 && output[1] == 3);
  both_leave();
}

/* CommQueryProperties goes by the version, not by the size: an old client's struct is not filled beyond its end. */
static void properties_end_where_the_version_says(void) {
  both_join();
  union {
    ncclCommProperties_t properties;
    unsigned char bytes[sizeof(ncclCommProperties_t)];
  } old;
  memset(&old, 0xee, sizeof old);
  old.properties.size = sizeof(ncclCommProperties_t);
  old.properties.magic = NCCL_API_MAGIC;
  old.properties.version = 22903;
  WORKS(ncclCommQueryProperties(comms[1], &old.properties));
  CHECK(old.properties.rank == 1 && old.properties.nRanks == RANKS);
  for (size_t i = offsetof(ncclCommProperties_t, nLsaTeams); i < sizeof old; i++) CHECK(old.bytes[i] == 0xee);
  old.properties.magic = 0;
  RETURNS(ncclInvalidUsage, ncclCommQueryProperties(comms[1], &old.properties));
  both_leave();
}

/* The last error is the process's, whichever communicator is named. */
static void the_last_error_is_everybodys(void) {
  both_join();
  RETURNS(ncclInvalidArgument, ncclBroadcast(NULL, NULL, 1, ncclFloat, 9, comms[0], NULL));
  CHECK(strstr(ncclGetLastError(comms[1]), "root 9") != NULL);
  CHECK(strcmp(ncclGetLastError(comms[1]), ncclGetLastError(NULL)) == 0);
  both_leave();
}

int main(void) {
  a_group_is_dropped_as_a_whole();
  averages_sum_before_they_divide();
  the_excluded_are_sorted();
  nothing_to_do();
  a_bad_argument_spoils_one_that_does_not_block();
  a_simulation_of_nothing_is_none();
  properties_end_where_the_version_says();
  the_last_error_is_everybodys();
  return 0;
}
