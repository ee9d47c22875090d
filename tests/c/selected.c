/* A call's own choice of algorithms: algSelection, forceAlgSelection and the options of ACCL-P. Two ranks, in one thread. */
#include "check.h"

enum { RANKS = 2, COUNT = 1000 };

static ncclComm_t comms[RANKS];
static float input[RANKS][COUNT], output[RANKS][COUNT];

/* An AllReduce with a configuration of each rank's own; what the group ends with. */
static ncclResult_t all_reduce(const ncclCollConfig_t *first, const ncclCollConfig_t *second) {
  memset(output, 0, sizeof output);
  WORKS(ncclGroupStart());
  (void)ncclAllReduceConfig(input[0], output[0], COUNT, ncclFloat, ncclSum, comms[0], NULL, first);
  (void)ncclAllReduceConfig(input[1], output[1], COUNT, ncclFloat, ncclSum, comms[1], NULL, second);
  return ncclGroupEnd();
}

static int is_summed(void) {
  for (int i = 0; i < COUNT; i++) {
    if (output[0][i] != 3 || output[1][i] != 3) return 0;
  }
  return 1;
}

/* Microseconds of the call, as estimated. */
static float simulated(const ncclCollConfig_t *config) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  WORKS(ncclGroupStart());
  WORKS(ncclAllReduceConfig(input[0], output[0], COUNT, ncclFloat, ncclSum, comms[0], NULL, config));
  WORKS(ncclGroupSimulateEnd(&info));
  return info.estimatedTime;
}

int main(void) {
  WORKS(ncclCommInitAll(comms, RANKS, NULL));
  for (int i = 0; i < COUNT; i++) {
    input[0][i] = 1;
    input[1][i] = 2;
  }
  ncclCollConfig_t config = NCCL_COLL_CONFIG_INITIALIZER;
  float usual = simulated(NULL);
  static const char *const satisfied[] = {"ring", "Tree", "rd", "direct", "^ring", "NVLS,Tree", "broadcast:ring", ""};
  for (size_t i = 0; i < sizeof satisfied / sizeof *satisfied; i++) {
    config.algSelection = satisfied[i];
    WORKS(all_reduce(&config, &config));
    CHECK(is_summed());
  }
  config.algSelection = "ring";
  CHECK(simulated(&config) != usual);
  config.algSelection = "direct";
  CHECK(simulated(&config) == usual);

  /* What cannot be satisfied is an error, unless it is a wish. */
  config.algSelection = "NVLS";
  RETURNS(ncclInvalidUsage, all_reduce(&config, &config));
  CHECK(strstr(ncclGetLastError(NULL), "there are direct, ring, tree, rd") != NULL);
  config.forceAlgSelection = 0;
  WORKS(all_reduce(&config, &config));
  CHECK(is_summed() && simulated(&config) == usual);
  config.algSelection = "rign";
  RETURNS(ncclInvalidArgument, all_reduce(&config, &config));
  CHECK(strstr(ncclGetLastError(NULL), "unknown algorithm") != NULL);

  /* Options of ACCL-P. */
  ncclConfigExt_t priority = {NULL, {ACCL_VENDOR, ACCL_OPTION_PRIORITY}, {.i = 7}};
  ncclConfigExt_t deterministic = {&priority, {ACCL_VENDOR, ACCL_OPTION_DETERMINISTIC}, {.i = 1}};
  config.ext = &deterministic;
  config.algSelection = "ring";
  config.forceAlgSelection = 1;
  RETURNS(ncclInvalidUsage, all_reduce(&config, &config));
  config.forceAlgSelection = 0;
  WORKS(all_reduce(&config, &config));
  CHECK(is_summed() && simulated(&config) == usual);
  deterministic.val.i = 2;
  RETURNS(ncclInvalidArgument, all_reduce(&config, &config));

  /* Ranks that select differently disagree, and hear it. */
  ncclCollConfig_t ring = NCCL_COLL_CONFIG_INITIALIZER, tree = NCCL_COLL_CONFIG_INITIALIZER;
  ring.algSelection = "ring";
  tree.algSelection = "tree";
  RETURNS(ncclInvalidUsage, all_reduce(&ring, &tree));
  CHECK(strstr(ncclGetLastError(NULL), "algSelection") != NULL);
  for (int rank = 0; rank < RANKS; rank++) WORKS(ncclCommAbort(comms[rank]));
  return 0;
}
