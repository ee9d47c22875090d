/* Time limits of one communicator, set by the vendor list of a call. */
#include "check.h"

int main(void) {
  ncclComm_t comms[2], others[2];
  WORKS(ncclCommInitAll(comms, 2, NULL));
  WORKS(ncclCommInitAll(others, 2, NULL));
  int one = 1, sums[2] = {0, 0};
  ncclConfigExt_t foreign = {NULL, {7, 1}, {.i = -1}};
  ncclConfigExt_t limit = {&foreign, {ACCL_VENDOR, ACCL_OPTION_TIMEOUT_MS}, {.i = 30000}};
  ncclCollConfig_t config = NCCL_COLL_CONFIG_INITIALIZER;
  config.ext = &limit;
  WORKS(ncclGroupStart());
  for (int rank = 0; rank < 2; rank++)
    WORKS(ncclAllReduceConfig(&one, &sums[rank], 1, ncclInt32, ncclSum, comms[rank], NULL, &config));
  WORKS(ncclGroupEnd());
  CHECK(sums[0] == 2 && sums[1] == 2);

  /* A wrong option is refused, and nothing is done. */
  limit.val.i = -5;
  RETURNS(ncclInvalidArgument, ncclAllReduceConfig(&one, sums, 1, ncclInt32, ncclSum, comms[0], NULL, &config));
  CHECK(strstr(ncclGetLastError(NULL), "-5 ms") != NULL);

  /* Set by a call that has nothing to do, the limit stays for those without a configuration; the other rank never calls. */
  limit.val.i = 300;
  WORKS(ncclAllReduceConfig(&one, sums, 0, ncclInt32, ncclSum, comms[0], NULL, &config));
  RETURNS(ncclTimeout, ncclAllReduce(&one, sums, 1, ncclInt32, ncclSum, comms[0], NULL));
  CHECK(strstr(ncclGetLastError(NULL), "rank 1") != NULL && strstr(ncclGetLastError(NULL), "limit is 0.3 s") != NULL);

  /* Other communicators have theirs. */
  ncclResult_t state = ncclInternalError;
  WORKS(ncclCommGetAsyncError(others[0], &state));
  CHECK(state == ncclSuccess);
  for (int rank = 0; rank < 2; rank++) {
    WORKS(ncclCommAbort(comms[rank]));
    WORKS(ncclCommAbort(others[rank]));
  }
  return 0;
}
