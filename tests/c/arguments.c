/* NULL and nonsense for every function: a code, never a crash. */
#include "check.h"

#define BAD ncclInvalidArgument

static ncclTeam_t no_team;
static ncclMultimemHandle_t no_multimem;
static ncclUniqueId no_id;

static void management(ncclComm_t comm) {
  int number;
  ncclResult_t state;
  ncclUniqueId id;
  uint64_t bytes;
  int excluded = 0;
  ncclComm_t child = NULL;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  RETURNS(BAD, ncclCommSplit(comm, 0, 0, &child, NULL));
  RETURNS(BAD, ncclCommShrink(comm, &excluded, 1, &child, NULL, 0));
  RETURNS(BAD, ncclCommGetUniqueId(comm, &id));
  RETURNS(BAD, ncclCommGetAsyncError(comm, &state));
  RETURNS(BAD, ncclCommCount(comm, &number));
  RETURNS(BAD, ncclCommCuDevice(comm, &number));
  RETURNS(BAD, ncclCommUserRank(comm, &number));
  RETURNS(BAD, ncclCommQueryProperties(comm, &properties));
  RETURNS(BAD, ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  RETURNS(BAD, ncclCommResume(comm));
  RETURNS(BAD, ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  CHECK(child == NULL);
}

static void memory(ncclComm_t comm) {
  char buffer[64];
  void *pointer = NULL;
  ncclWindow_t window = NULL;
  RETURNS(BAD, ncclCommRegister(comm, buffer, sizeof buffer, &pointer));
  RETURNS(BAD, ncclCommDeregister(comm, buffer));
  RETURNS(BAD, ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, NCCL_WIN_COLL_SYMMETRIC));
  RETURNS(BAD, ncclCommWindowDeregister(comm, (ncclWindow_t)(void *)buffer));
  RETURNS(BAD, ncclWinGetUserPtr(comm, window, &pointer));
  CHECK(pointer == NULL && window == NULL);
}

static void collectives(ncclComm_t comm) {
  float in[4] = {0}, out[4] = {0};
  ncclRedOp_t op;
  ncclWaitSignalDesc_t signal = {1, 0, 0, 0};
  ncclCollConfig_t config = NCCL_COLL_CONFIG_INITIALIZER;
  RETURNS(BAD, ncclAllReduce(in, out, 4, ncclFloat, ncclSum, comm, NULL));
  RETURNS(BAD, ncclReduce(in, out, 4, ncclFloat, ncclSum, 0, comm, NULL));
  RETURNS(BAD, ncclBroadcast(in, out, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclBcast(in, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclAllGather(in, out, 4, ncclFloat, comm, NULL));
  RETURNS(BAD, ncclReduceScatter(in, out, 4, ncclFloat, ncclSum, comm, NULL));
  RETURNS(BAD, ncclAlltoAll(in, out, 4, ncclFloat, comm, NULL));
  RETURNS(BAD, ncclGather(in, out, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclScatter(in, out, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, comm, NULL, &config));
  RETURNS(BAD, ncclReduceConfig(in, out, 4, ncclFloat, ncclSum, 0, comm, NULL, &config));
  RETURNS(BAD, ncclBroadcastConfig(in, out, 4, ncclFloat, 0, comm, NULL, &config));
  RETURNS(BAD, ncclAllGatherConfig(in, out, 4, ncclFloat, comm, NULL, &config));
  RETURNS(BAD, ncclReduceScatterConfig(in, out, 4, ncclFloat, ncclSum, comm, NULL, &config));
  RETURNS(BAD, ncclAlltoAllConfig(in, out, 4, ncclFloat, comm, NULL, &config));
  RETURNS(BAD, ncclGatherConfig(in, out, 4, ncclFloat, 0, comm, NULL, &config));
  RETURNS(BAD, ncclScatterConfig(in, out, 4, ncclFloat, 0, comm, NULL, &config));
  RETURNS(BAD, ncclSend(in, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclRecv(out, 4, ncclFloat, 0, comm, NULL));
  RETURNS(BAD, ncclPutSignal(in, 4, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, NULL));
  RETURNS(BAD, ncclSignal(0, 0, 0, 0, comm, NULL));
  RETURNS(BAD, ncclWaitSignal(1, &signal, comm, NULL));
  RETURNS(BAD, ncclRedOpCreatePreMulSum(&op, in, ncclFloat, ncclScalarHostImmediate, comm));
  RETURNS(BAD, ncclRedOpDestroy(ncclSum, comm));
  RETURNS(BAD, ncclRedOpDestroy((ncclRedOp_t)5, comm));
}

static void device(ncclComm_t comm) {
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclGinBarrierHandle_t handle;
  ncclDevResourceRequirements_t resources;
  char space[512];
  RETURNS(BAD, ncclDevCommCreate(comm, &requirements, (ncclDevComm_t *)(void *)space));
  RETURNS(BAD, ncclDevCommDestroy(comm, (ncclDevComm_t *)(void *)space));
  RETURNS(BAD, ncclGinBarrierCreateRequirement(comm, no_team, 1, &handle, &resources));
  CHECK(ncclTeamWorld(comm).nRanks == 0);
  CHECK(ncclTeamLsa(comm).nRanks == 0);
  CHECK(ncclTeamRail(comm).nRanks == 0);
  CHECK(ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT).nRanks == 0);
  CHECK(ncclTeamCftMultimem(comm).nRanks == 0);
  CHECK(ncclTeamRankToWorld(comm, no_team, 0) == -1);
  CHECK(ncclTeamRankToLsa(comm, no_team, 0) == -1);
}

/* Everything that takes a communicator, with a bad one. */
static void bad_communicator(ncclComm_t comm) {
  management(comm);
  memory(comm);
  collectives(comm);
  device(comm);
}

static void null_is_nothing_to_do(void) {
  WORKS(ncclCommFinalize(NULL));
  WORKS(ncclCommDestroy(NULL));
  WORKS(ncclCommAbort(NULL));
  WORKS(ncclCommRevoke(NULL, 0));
  WORKS(ncclCommDeregister(NULL, NULL));
  WORKS(ncclCommWindowDeregister(NULL, NULL));
  WORKS(ncclMemFree(NULL));
  ncclResetDebugInit();
  ncclParamDumpAll();
}

static void bad_places(void) {
  ncclComm_t comm = (ncclComm_t)(void *)8;
  int twice[2] = {1, 1}, negative[1] = {-1};
  ncclComm_t comms[2];
  RETURNS(BAD, ncclGetUniqueId(NULL));
  RETURNS(BAD, ncclCommInitRank(NULL, 1, no_id, 0));
  RETURNS(BAD, ncclCommInitRankConfig(NULL, 1, no_id, 0, NULL));
  RETURNS(BAD, ncclCommInitRankScalable(NULL, 1, 0, 1, &no_id, NULL));
  RETURNS(BAD, ncclCommInitRank(&comm, 0, no_id, 0));
  CHECK(comm == NULL);
  RETURNS(BAD, ncclCommInitRank(&comm, -1, no_id, 0));
  RETURNS(BAD, ncclCommInitRank(&comm, 2, no_id, 2));
  RETURNS(BAD, ncclCommInitRank(&comm, 2, no_id, -1));
  RETURNS(BAD, ncclCommInitRankScalable(&comm, 1, 0, 0, &no_id, NULL));
  RETURNS(BAD, ncclCommInitRankScalable(&comm, 1, 0, 2, &no_id, NULL));
  RETURNS(BAD, ncclCommInitRankScalable(&comm, 1, 0, 1, NULL, NULL));
  RETURNS(BAD, ncclCommInitAll(NULL, 1, NULL));
  RETURNS(BAD, ncclCommInitAll(comms, -1, NULL));
  RETURNS(BAD, ncclCommInitAll(comms, 1, negative));
  RETURNS(ncclInvalidUsage, ncclCommInitAll(comms, 2, twice));
  RETURNS(BAD, ncclCommGrow(NULL, 2, NULL, 1, &comm, NULL));
  RETURNS(BAD, ncclCommGrow(NULL, 2, &no_id, 2, &comm, NULL));
  RETURNS(BAD, ncclCommGrow(NULL, 0, &no_id, 0, &comm, NULL));
  RETURNS(BAD, ncclCommGrow(NULL, 2, &no_id, 1, NULL, NULL));
  RETURNS(BAD, ncclCommGrow(NULL, 2, &no_id, 1, &comm, NULL));
}

static void windows(void) {
  ncclWindow_t strange = (ncclWindow_t)(void *)&no_id;
  void *pointer;
  ncclCftLeId endpoint;
  size_t offset;
  ncclMultimemHandle_t multimem;
  multimem.mcBasePtr = &offset;
  ncclWindow_t each[2];
  each[0] = NULL;
  each[1] = strange;
  for (int i = 0; i < 2; i++) {
    RETURNS(BAD, ncclGetLsaDevicePointer(each[i], 0, 0, &pointer));
    RETURNS(BAD, ncclGetPeerDevicePointer(each[i], 0, 0, &pointer));
    RETURNS(BAD, ncclGetLsaMultimemDevicePointer(each[i], 0, &pointer));
    RETURNS(BAD, ncclGetMultimemDevicePointer(each[i], 0, multimem, &pointer));
    RETURNS(BAD, ncclGetMultimemDeviceLeInfo(each[i], 0, &endpoint, &offset));
    RETURNS(BAD, ncclGetPeerDeviceLeInfo(each[i], 0, 0, &endpoint, &offset));
    RETURNS(BAD, ncclGetCftDeviceLeInfo(each[i], 0, 0, no_team, &endpoint, &offset));
  }
  RETURNS(BAD, ncclGetLsaDevicePointer(strange, 0, 0, NULL));
  RETURNS(BAD, ncclGetMultimemDevicePointer(strange, 0, no_multimem, &pointer));
}

static void requirements(void) {
  ncclLsaBarrierHandle_t barrier;
  ncclLLA2AHandle_t exchange;
  ncclDevResourceRequirements_t resources;
  char space[64];
  RETURNS(BAD, ncclLsaBarrierCreateRequirement(no_team, 1, NULL, NULL));
  RETURNS(BAD, ncclLLA2ACreateRequirement(1, 1, NULL, NULL));
  RETURNS(BAD, ncclGinOutboxCreateRequirement(1, 1, NULL, NULL));
  RETURNS(BAD, ncclGinInboxA2ACreateRequirement(no_team, 1, 1, NULL, NULL));
  RETURNS(ncclInvalidUsage, ncclLsaBarrierCreateRequirement(no_team, 1, &barrier, &resources));
  RETURNS(ncclInvalidUsage, ncclLLA2ACreateRequirement(1, 1, &exchange, &resources));
  RETURNS(ncclInvalidUsage, ncclGinOutboxCreateRequirement(1, 1, (ncclGinOutboxHandle_t *)(void *)space, &resources));
  RETURNS(ncclInvalidUsage,
          ncclGinInboxA2ACreateRequirement(no_team, 1, 1, (ncclGinInboxA2AHandle_t *)(void *)space, &resources));
  CHECK(ncclLLA2ACalcSlots(4, 8) == 0);
}

#define NUMBER(name, type)                                            \
  do {                                                                \
    type number;                                                      \
    RETURNS(BAD, ncclParamGet##name(NULL, &number));                  \
    RETURNS(BAD, ncclParamGet##name(strange, &number));               \
    RETURNS(BAD, ncclParamGet##name(strange, NULL));                  \
  } while (0)

static void parameters(void) {
  ncclParamHandle_t strange = (ncclParamHandle_t)(void *)&no_id, handle = NULL;
  const char *text = NULL, **table = NULL;
  int length = -1;
  RETURNS(BAD, ncclParamBind(NULL, "NCCL_ALGO"));
  RETURNS(BAD, ncclParamBind(&handle, NULL));
  RETURNS(BAD, ncclParamBind(&handle, "NCCL_NO_SUCH_PARAMETER"));
  NUMBER(I8, int8_t);
  NUMBER(I16, int16_t);
  NUMBER(I32, int32_t);
  NUMBER(I64, int64_t);
  NUMBER(U8, uint8_t);
  NUMBER(U16, uint16_t);
  NUMBER(U32, uint32_t);
  NUMBER(U64, uint64_t);
  RETURNS(BAD, ncclParamGetStr(NULL, &text));
  RETURNS(BAD, ncclParamGet(strange, &length, 4, &length));
  RETURNS(BAD, ncclParamGetParameter("NCCL_NO_SUCH_PARAMETER", &text, &length));
  RETURNS(BAD, ncclParamGetParameter(NULL, &text, &length));
  RETURNS(BAD, ncclParamGetAllParameterKeys(NULL, &length));
  RETURNS(BAD, ncclParamGetAllParameterKeys(&table, NULL));
}

static void encryption(void) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  RETURNS(BAD, ncclSetEncryption(NULL));
  RETURNS(BAD, pncclSetEncryption(NULL));
  WORKS(ncclSetEncryption(&config));
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  RETURNS(BAD, ncclSetEncryption(&config));
  config.psk = "";
  RETURNS(BAD, ncclSetEncryption(&config));
  config.psk = "a key for this program alone";
  WORKS(pncclSetEncryption(&config));
  config.mode = 2;
  RETURNS(BAD, ncclSetEncryption(&config));
  config.mode = -1;
  RETURNS(BAD, ncclSetEncryption(&config));
  config.mode = NCCL_ENCRYPTION_MODE_NONE;
  config.size -= 1;
  RETURNS(BAD, ncclSetEncryption(&config));
  config.size += 1;
  config.version = 23202;
  RETURNS(BAD, ncclSetEncryption(&config));
  config.version = NCCL_STRUCT_VERSION_CODE;
  config.magic = 0;
  RETURNS(BAD, ncclSetEncryption(&config));
}

static void all(void) {
  /* First: also a communicator that could not be made settles it. */
  encryption();
  bad_communicator(NULL);
  null_is_nothing_to_do();
  bad_places();
  windows();
  requirements();
  parameters();
  unsigned long long state = 88172645463325252ULL;
  for (int i = 0; i < 1000; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uintptr_t value = (uintptr_t)(i % 3 == 0 ? state : state >> (state % 64));
    if (value == 0) continue;
    ncclComm_t comm = (ncclComm_t)value;
    bad_communicator(comm);
    RETURNS(BAD, ncclCommFinalize(comm));
    RETURNS(BAD, ncclCommDestroy(comm));
    RETURNS(BAD, ncclCommAbort(comm));
    RETURNS(BAD, ncclCommRevoke(comm, 0));
  }
  /* Valid memory that is no communicator. */
  bad_communicator((ncclComm_t)(void *)&state);
}

int main(void) {
  all();
  return 0;
}
