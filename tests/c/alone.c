/* A communicator of one rank: its life, what it says, and what it refuses. */
#include "check.h"

static ncclComm_t make(ncclConfig_t *config) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  WORKS(ncclGetUniqueId(&id));
  WORKS(ncclCommInitRankConfig(&comm, 1, id, 0, config));
  CHECK(comm != NULL);
  return comm;
}

static void life(void) {
  ncclComm_t comm = make(NULL);
  int number = -7;
  ncclResult_t state = ncclInternalError;
  WORKS(ncclCommCount(comm, &number));
  CHECK(number == 1);
  WORKS(ncclCommUserRank(comm, &number));
  CHECK(number == 0);
  WORKS(ncclCommCuDevice(comm, &number));
  CHECK(number == -1);
  WORKS(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  RETURNS(ncclInvalidArgument, ncclCommCount(comm, NULL));
  RETURNS(ncclInvalidArgument, ncclCommGetAsyncError(comm, NULL));
  WORKS(ncclCommFinalize(comm));
  RETURNS(ncclInvalidArgument, ncclCommFinalize(comm));
  WORKS(ncclCommDestroy(comm));
  RETURNS(ncclInvalidArgument, ncclCommCount(comm, &number));
  CHECK(strstr(ncclGetLastError(NULL), "has already been destroyed") != NULL);
  RETURNS(ncclInvalidArgument, ncclCommDestroy(comm));
  RETURNS(ncclInvalidArgument, ncclCommAbort(comm));

  ncclComm_t aborted = make(NULL);
  CHECK(aborted != comm);
  WORKS(ncclCommAbort(aborted));
  RETURNS(ncclInvalidArgument, ncclCommCount(aborted, &number));
  CHECK(strstr(ncclGetLastError(NULL), "was aborted") != NULL);
  /* Inside an entry, but not at its start. */
  RETURNS(ncclInvalidArgument, ncclCommCount((ncclComm_t)(void *)((uintptr_t)aborted + 8), &number));
}

/* What a call would do, in as much room as there is. */
static void explanations(ncclComm_t comm) {
  char way[32];
  double ns = -1;
  memset(way, 'x', sizeof way);
  WORKS(acclExplain(comm, "allreduce", 1 << 20, ncclFloat, way, sizeof way, &ns));
  CHECK(strcmp(way, "alone") == 0 && ns > 0);
  WORKS(acclExplain(comm, "Broadcast", 0, ncclInt8, way, 4, &ns));
  CHECK(strcmp(way, "not") == 0 && way[4] == 'e' && ns == 0);
  RETURNS(ncclInvalidArgument, acclExplain(NULL, "allreduce", 1, ncclFloat, way, sizeof way, &ns));
  RETURNS(ncclInvalidArgument, acclExplain(comm, NULL, 1, ncclFloat, way, sizeof way, &ns));
  RETURNS(ncclInvalidArgument, acclExplain(comm, "allreduce", 1, (ncclDataType_t)99, way, sizeof way, &ns));
  RETURNS(ncclInvalidArgument, acclExplain(comm, "allreduce", 1, ncclFloat, NULL, sizeof way, &ns));
  RETURNS(ncclInvalidArgument, acclExplain(comm, "allreduce", 1, ncclFloat, way, 0, &ns));
  RETURNS(ncclInvalidArgument, acclExplain(comm, "allreduce", 1, ncclFloat, way, sizeof way, NULL));
  RETURNS(ncclInvalidArgument, acclExplain(comm, "sendrecv", 1, ncclFloat, way, sizeof way, &ns));
  CHECK(strstr(ncclGetLastError(NULL), "\"sendrecv\"; there are allreduce, reduce") != NULL);
}

static void descriptions(ncclComm_t comm) {
  char text[1 << 16];
  WORKS(acclDescribe(comm, text, sizeof text));
  CHECK(strncmp(text, "{\"rank\":0,\"ranks\":1,\"host\":", 27) == 0 && strstr(text, "\"peers\":[]}") != NULL);
  WORKS(acclDescribe(NULL, text, sizeof text));
  CHECK(strncmp(text, "{\"host\":", 8) == 0 && strstr(text, "\"told\":[") != NULL);
  RETURNS(ncclInvalidArgument, acclDescribe(NULL, text, 9));
  CHECK(strstr(ncclGetLastError(NULL), "room for 9 bytes") != NULL);
  RETURNS(ncclInvalidArgument, acclDescribe(NULL, NULL, sizeof text));
}

static void properties(ncclComm_t comm) {
  static const struct { unsigned int version; size_t end; } clients[] = {
      {22902, 40}, {22907, 56}, {23007, 56}, {23102, 144}, {23203, 152}};
  for (size_t i = 0; i < sizeof clients / sizeof *clients; i++) {
    unsigned char space[160];
    memset(space, 0x77, sizeof space);
    ncclCommProperties_t *props = (ncclCommProperties_t *)(void *)space;
    props->size = clients[i].end;
    props->magic = NCCL_API_MAGIC;
    props->version = clients[i].version;
    WORKS(ncclCommQueryProperties(comm, props));
    CHECK(props->rank == 0 && props->nRanks == 1 && props->cudaDev == -1 && props->nvmlDev == -1);
    CHECK(space[32] == 0 && space[33] == 0 && props->ginType == NCCL_GIN_TYPE_NONE);
    for (size_t byte = clients[i].end; byte < sizeof space; byte++) CHECK(space[byte] == 0x77);
    CHECK(clients[i].end == 40 || space[44] == 1);
  }
  ncclCommProperties_t wrong = NCCL_COMM_PROPERTIES_INITIALIZER;
  wrong.magic = 0;
  RETURNS(ncclInvalidUsage, ncclCommQueryProperties(comm, &wrong));
  RETURNS(ncclInvalidArgument, ncclCommQueryProperties(comm, NULL));
}

static void refusals(ncclComm_t comm) {
  int self = 0, other = 1;
  ncclComm_t child = (ncclComm_t)(void *)8;
  ncclUniqueId id;
  uint64_t bytes;
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  char space[512];
  RETURNS(ncclInvalidArgument, ncclCommShrink(comm, NULL, 1, &child, NULL, 0));
  CHECK(child == NULL);
  RETURNS(ncclInvalidArgument, ncclCommShrink(comm, &self, 0, &child, NULL, 0));
  RETURNS(ncclInvalidArgument, ncclCommShrink(comm, &self, 1, &child, NULL, 0));
  RETURNS(ncclInvalidArgument, ncclCommShrink(comm, &other, 1, &child, NULL, 0));
  RETURNS(ncclInvalidArgument, ncclCommGetUniqueId(comm, NULL));
  WORKS(ncclCommGetUniqueId(comm, &id));
  RETURNS(ncclInvalidArgument, ncclCommGrow(comm, 1, NULL, -1, &child, NULL));
  RETURNS(ncclInvalidArgument, ncclCommGrow(comm, 2, NULL, 0, &child, NULL));
  RETURNS(ncclInvalidArgument, ncclCommRevoke(comm, 1));
  RETURNS(ncclInvalidArgument, ncclCommSuspend(comm, 0));
  /* Too late. */
  ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  RETURNS(ncclInvalidUsage, ncclSetEncryption(&encryption));
  RETURNS(ncclInvalidUsage, ncclCommResume(comm));
  WORKS(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  RETURNS(ncclInvalidUsage, ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  WORKS(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &bytes));
  CHECK(bytes == 1);
  WORKS(ncclCommResume(comm));
  RETURNS(ncclInvalidArgument, ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL));
  RETURNS(ncclInvalidArgument, ncclCommMemStats(comm, (ncclCommMemStat_t)4, &bytes));
  WORKS(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  CHECK(bytes > 0 && bytes < 1 << 20);
  WORKS(ncclCommMemStats(comm, ncclStatGpuMemSuspend, &bytes));
  CHECK(bytes == 0);
  RETURNS(ncclInvalidArgument, ncclDevCommCreate(comm, NULL, (ncclDevComm_t *)(void *)space));
  RETURNS(ncclInvalidUsage, ncclDevCommCreate(comm, &requirements, (ncclDevComm_t *)(void *)space));
  RETURNS(ncclInvalidArgument, ncclPutSignal(space, 4, ncclInt, 0, NULL, 0, 0, 0, 0, comm, NULL));
  /* Windows bring what signals go by. */
  RETURNS(ncclInvalidUsage, ncclSignal(0, 0, 0, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclSignal(0, 1, 0, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclWaitSignal(0, NULL, comm, NULL));
}

static void windows(ncclComm_t comm) {
  char buffer[4096];
  ncclWindow_t window = (ncclWindow_t)(void *)buffer;
  ncclMultimemHandle_t none = {NULL};
  ncclWaitSignalDesc_t signals[2] = {{1, 0, 0, 0}, {1, 0, 0, 0}};
  void *pointer = buffer;
  RETURNS(ncclInvalidArgument, ncclCommWindowRegister(comm, NULL, 16, &window, 0));
  RETURNS(ncclInvalidArgument, ncclCommWindowRegister(comm, buffer, 0, &window, 0));
  RETURNS(ncclInvalidArgument, ncclCommWindowRegister(comm, buffer, 16, NULL, 0));
  WORKS(ncclCommWindowDeregister(comm, NULL));
  RETURNS(ncclInvalidArgument, ncclWinGetUserPtr(comm, NULL, &pointer));
  RETURNS(ncclInvalidArgument, ncclWinGetUserPtr(comm, (ncclWindow_t)(void *)buffer, &pointer));
  WORKS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(window != NULL);
  WORKS(ncclWinGetUserPtr(comm, window, &pointer));
  CHECK(pointer == buffer);
  WORKS(ncclGetPeerDevicePointer(window, 10, 0, &pointer));
  CHECK(pointer == buffer + 10);
  WORKS(ncclGetLsaDevicePointer(window, sizeof buffer, 0, &pointer));
  CHECK(pointer == buffer + sizeof buffer);
  RETURNS(ncclInvalidArgument, ncclGetPeerDevicePointer(window, sizeof buffer + 1, 0, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, 1, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, 0, NULL));
  RETURNS(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 1, &pointer));
  WORKS(ncclGetLsaMultimemDevicePointer(window, 0, &pointer));
  CHECK(pointer == NULL);
  RETURNS(ncclInvalidArgument, ncclGetMultimemDevicePointer(window, 0, none, &pointer));
  strcpy(buffer, "put");
  WORKS(ncclPutSignal(buffer, 4, ncclChar, 0, window, 100, 0, 0, 0, comm, NULL));
  WORKS(ncclSignal(0, 0, 0, 0, comm, NULL));
  WORKS(ncclWaitSignal(2, signals, comm, NULL));
  CHECK(strcmp(buffer + 100, "put") == 0);
  WORKS(ncclCommWindowDeregister(comm, window));
  RETURNS(ncclInvalidUsage, ncclCommWindowDeregister(comm, window));
  RETURNS(ncclInvalidUsage, ncclCommWindowDeregister(comm, (ncclWindow_t)(void *)buffer));
}

static void teams(ncclComm_t comm) {
  ncclTeam_t world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
  CHECK(world.nRanks == 1 && world.rank == 0 && world.stride == 1);
  CHECK(lsa.nRanks == 1 && lsa.rank == 0 && lsa.stride == 1);
  CHECK(rail.nRanks == 1 && rail.rank == 0 && rail.stride == 1);
  CHECK(ncclTeamRankToWorld(comm, world, 0) == 0 && ncclTeamRankToLsa(comm, lsa, 0) == 0);
}

/* The order of the checks, seen from outside. */
static void data_calls(ncclComm_t comm) {
  float in[2] = {1, 2}, out[2] = {0, 0};
  cudaStream_t strange = (cudaStream_t)(void *)in;
  ncclRedOp_t op;
  RETURNS(ncclInvalidArgument, ncclBroadcast(in, out, 0, ncclFloat, 1, comm, NULL));
  CHECK(strstr(ncclGetLastError(NULL), "root") != NULL);
  RETURNS(ncclInvalidArgument, ncclReduce(in, out, 2, (ncclDataType_t)12, ncclSum, -1, comm, NULL));
  CHECK(strstr(ncclGetLastError(NULL), "root") != NULL);
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, out, 0, (ncclDataType_t)12, (ncclRedOp_t)77, comm, NULL));
  CHECK(strstr(ncclGetLastError(NULL), "datatype") != NULL);
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, out, 0, ncclFloat, (ncclRedOp_t)77, comm, strange));
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, out, 0, ncclFloat, (ncclRedOp_t)-1, comm, NULL));
  WORKS(ncclAllReduce(in, out, 0, ncclFloat, ncclSum, comm, strange));
  RETURNS(ncclInvalidArgument, ncclAllReduce(in, out, 2, ncclFloat, ncclSum, comm, strange));
  CHECK(strstr(ncclGetLastError(NULL), "acclStreamCreate") != NULL);
  RETURNS(ncclInvalidArgument, ncclSend(in, 0, ncclFloat, 0, comm, strange));
  RETURNS(ncclInvalidArgument, ncclSend(in, 0, ncclFloat, 1, comm, NULL));
  CHECK(strstr(ncclGetLastError(NULL), "peer") != NULL);

  RETURNS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(NULL, in, ncclFloat, ncclScalarHostImmediate, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarHostImmediate, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, in, (ncclDataType_t)-1, ncclScalarDevice, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, in, ncclFloat, (ncclScalarResidence_t)2, comm));
  WORKS(ncclRedOpCreatePreMulSum(&op, in, ncclFloat, ncclScalarHostImmediate, comm));
  CHECK((int)op >= (int)ncclNumOps);
  WORKS(ncclRedOpDestroy(op, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpDestroy(op, comm));

  ncclCollConfig_t config = NCCL_COLL_CONFIG_INITIALIZER;
  WORKS(ncclAllReduceConfig(in, out, 2, ncclFloat, ncclSum, comm, NULL, &config));
  WORKS(ncclAllReduceConfig(in, out, 2, ncclFloat, ncclSum, comm, NULL, NULL));
  config.forceAlgSelection = 2;
  RETURNS(ncclInvalidArgument, ncclAllReduceConfig(in, out, 2, ncclFloat, ncclSum, comm, NULL, &config));

  /* Inside a group a bad argument fails the end too; outside it spoils nothing. */
  WORKS(ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclBcast(in, 2, ncclFloat, 3, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclGroupEnd());
  WORKS(ncclAllReduce(in, out, 2, ncclFloat, ncclSum, comm, NULL));
}

static void children(ncclComm_t comm) {
  ncclComm_t child = (ncclComm_t)(void *)8;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  RETURNS(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, NULL, NULL));
  WORKS(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, NULL));
  CHECK(child == NULL);
  config.splitShare = 3;
  RETURNS(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, &child, &config));
  WORKS(ncclCommSplit(comm, 0, 0, &child, NULL));
  CHECK(child != NULL && child != comm);
  WORKS(ncclCommDestroy(child));
}

static void registration(ncclComm_t comm) {
  static char buffer[8192];
  void *handle = NULL;
  WORKS(ncclCommRegister(comm, buffer, sizeof buffer, &handle));
  WORKS(ncclCommDeregister(comm, NULL));
  RETURNS(ncclInvalidUsage, ncclCommDeregister(comm, (void *)(uintptr_t)0x12345));
}

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "alone";
  life();
  ncclComm_t comm = make(&config);
  explanations(comm);
  descriptions(comm);
  properties(comm);
  refusals(comm);
  windows(comm);
  teams(comm);
  data_calls(comm);
  children(comm);
  registration(comm);
  WORKS(ncclCommDestroy(comm));
  ncclComm_t all[1];
  WORKS(ncclCommInitAll(all, 1, NULL));
  WORKS(ncclCommDestroy(all[0]));
  return 0;
}
