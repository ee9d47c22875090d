/* The header against the published layout: sizes, offsets, values, initializers; as C and as C++. */
#include "check.h"

#ifdef __cplusplus
#define SAME(a, b) static_assert((long long)(a) == (long long)(b), #a)
#else
#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a)
#endif
#define SIZE(type, bytes) SAME(sizeof(type), bytes)
#define AT(type, field, offset) SAME(offsetof(type, field), offset)

SIZE(ncclUniqueId, 128);
AT(ncclUniqueId, internal, 0);

SIZE(ncclConfig_t, 120);
AT(ncclConfig_t, size, 0);
AT(ncclConfig_t, magic, 8);
AT(ncclConfig_t, version, 12);
AT(ncclConfig_t, blocking, 16);
AT(ncclConfig_t, cgaClusterSize, 20);
AT(ncclConfig_t, minCTAs, 24);
AT(ncclConfig_t, maxCTAs, 28);
AT(ncclConfig_t, netName, 32);
AT(ncclConfig_t, splitShare, 40);
AT(ncclConfig_t, trafficClass, 44);
AT(ncclConfig_t, commName, 48);
AT(ncclConfig_t, collnetEnable, 56);
AT(ncclConfig_t, CTAPolicy, 60);
AT(ncclConfig_t, shrinkShare, 64);
AT(ncclConfig_t, nvlsCTAs, 68);
AT(ncclConfig_t, nChannelsPerNetPeer, 72);
AT(ncclConfig_t, nvlinkCentricSched, 76);
AT(ncclConfig_t, graphUsageMode, 80);
AT(ncclConfig_t, numRmaCtx, 84);
AT(ncclConfig_t, maxP2pPeers, 88);
AT(ncclConfig_t, graphStreamOrdering, 92);
AT(ncclConfig_t, launchOrderImplicit, 96);
AT(ncclConfig_t, numRmaSig, 100);
AT(ncclConfig_t, rmaEagerInit, 104);
AT(ncclConfig_t, hostCftMode, 108);
AT(ncclConfig_t, nvlsHostMode, 112);

SIZE(ncclConfigExt_t, 24);
AT(ncclConfigExt_t, next, 0);
AT(ncclConfigExt_t, key, 8);
AT(ncclConfigExt_t, key.vendorId, 8);
AT(ncclConfigExt_t, key.optionId, 12);
AT(ncclConfigExt_t, val, 16);

SIZE(ncclCollConfig_t, 72);
AT(ncclCollConfig_t, size, 0);
AT(ncclCollConfig_t, magic, 8);
AT(ncclCollConfig_t, version, 12);
AT(ncclCollConfig_t, ext, 16);
AT(ncclCollConfig_t, minCTAs, 24);
AT(ncclCollConfig_t, maxCTAs, 28);
AT(ncclCollConfig_t, nvlsCTAs, 32);
AT(ncclCollConfig_t, cgaClusterSize, 36);
AT(ncclCollConfig_t, algSelection, 40);
AT(ncclCollConfig_t, forceAlgSelection, 48);
AT(ncclCollConfig_t, CTAPolicy, 52);
AT(ncclCollConfig_t, userProfilerTag, 56);
AT(ncclCollConfig_t, launchCompletionEvent, 64);

SIZE(ncclSimInfo_t, 24);
AT(ncclSimInfo_t, size, 0);
AT(ncclSimInfo_t, magic, 8);
AT(ncclSimInfo_t, version, 12);
AT(ncclSimInfo_t, estimatedTime, 16);

SIZE(ncclWaitSignalDesc_t, 16);
AT(ncclWaitSignalDesc_t, opCnt, 0);
AT(ncclWaitSignalDesc_t, peer, 4);
AT(ncclWaitSignalDesc_t, sigIdx, 8);
AT(ncclWaitSignalDesc_t, ctx, 12);

SIZE(ncclEncryptionConfig_t, 32);
AT(ncclEncryptionConfig_t, size, 0);
AT(ncclEncryptionConfig_t, magic, 8);
AT(ncclEncryptionConfig_t, version, 12);
AT(ncclEncryptionConfig_t, mode, 16);
AT(ncclEncryptionConfig_t, psk, 24);

SIZE(ncclTeam_t, 12);
AT(ncclTeam_t, nRanks, 0);
AT(ncclTeam_t, rank, 4);
AT(ncclTeam_t, stride, 8);

SIZE(ncclMultimemHandle_t, 8);
AT(ncclMultimemHandle_t, mcBasePtr, 0);

SIZE(ncclLsaBarrierHandle_t, 8);
SIZE(ncclGinBarrierHandle_t, 8);
SIZE(ncclLLA2AHandle_t, 8);
SIZE(ncclDevResourceRequirements_t, 56);
AT(ncclDevResourceRequirements_t, next, 0);
AT(ncclDevResourceRequirements_t, bufferSize, 8);
AT(ncclDevResourceRequirements_t, bufferAlign, 16);
AT(ncclDevResourceRequirements_t, outBufferHandle, 24);
AT(ncclDevResourceRequirements_t, ginSignalCount, 32);
AT(ncclDevResourceRequirements_t, ginCounterCount, 36);
AT(ncclDevResourceRequirements_t, outGinSignalStart, 40);
AT(ncclDevResourceRequirements_t, outGinCounterStart, 48);

SIZE(ncclTeamRequirements_t, 32);
AT(ncclTeamRequirements_t, next, 0);
AT(ncclTeamRequirements_t, team, 8);
AT(ncclTeamRequirements_t, multimem, 20);
AT(ncclTeamRequirements_t, outMultimemHandle, 24);

SIZE(ncclDevCommRequirements_t, 120);
AT(ncclDevCommRequirements_t, size, 0);
AT(ncclDevCommRequirements_t, magic, 8);
AT(ncclDevCommRequirements_t, version, 12);
AT(ncclDevCommRequirements_t, resourceRequirementsList, 16);
AT(ncclDevCommRequirements_t, teamRequirementsList, 24);
AT(ncclDevCommRequirements_t, lsaMultimem, 32);
AT(ncclDevCommRequirements_t, barrierCount, 36);
AT(ncclDevCommRequirements_t, lsaBarrierCount, 40);
AT(ncclDevCommRequirements_t, railGinBarrierCount, 44);
AT(ncclDevCommRequirements_t, lsaLLA2ABlockCount, 48);
AT(ncclDevCommRequirements_t, lsaLLA2ASlotCount, 52);
AT(ncclDevCommRequirements_t, ginForceEnable, 56);
AT(ncclDevCommRequirements_t, ginContextCount, 60);
AT(ncclDevCommRequirements_t, ginSignalCount, 64);
AT(ncclDevCommRequirements_t, ginCounterCount, 68);
AT(ncclDevCommRequirements_t, ginConnectionType, 72);
AT(ncclDevCommRequirements_t, ginExclusiveContexts, 76);
AT(ncclDevCommRequirements_t, ginQueueDepth, 80);
AT(ncclDevCommRequirements_t, ginTrafficClass, 84);
AT(ncclDevCommRequirements_t, worldGinBarrierCount, 88);
AT(ncclDevCommRequirements_t, ginStrongSignalsRequired, 92);
AT(ncclDevCommRequirements_t, ginVaSignalsRequired, 93);
AT(ncclDevCommRequirements_t, ginCustomStride, 96);
AT(ncclDevCommRequirements_t, ginType, 100);
AT(ncclDevCommRequirements_t, useRuntimeVersion, 104);
AT(ncclDevCommRequirements_t, cftCaps, 108);
AT(ncclDevCommRequirements_t, cftBarrierCount, 112);

SIZE(ncclCommProperties_t, 152);
AT(ncclCommProperties_t, size, 0);
AT(ncclCommProperties_t, magic, 8);
AT(ncclCommProperties_t, version, 12);
AT(ncclCommProperties_t, rank, 16);
AT(ncclCommProperties_t, nRanks, 20);
AT(ncclCommProperties_t, cudaDev, 24);
AT(ncclCommProperties_t, nvmlDev, 28);
AT(ncclCommProperties_t, deviceApiSupport, 32);
AT(ncclCommProperties_t, multimemSupport, 33);
AT(ncclCommProperties_t, ginType, 36);
AT(ncclCommProperties_t, nLsaTeams, 40);
AT(ncclCommProperties_t, hostRmaSupport, 44);
AT(ncclCommProperties_t, railedGinType, 48);
AT(ncclCommProperties_t, commHash, 56);
AT(ncclCommProperties_t, ginMinStride, 64);
AT(ncclCommProperties_t, ginConnectionType, 68);
AT(ncclCommProperties_t, ginSupport, 72);
AT(ncclCommProperties_t, devCommRuntimeVersionSize, 136);
AT(ncclCommProperties_t, cftSupport, 144);
AT(ncclCommProperties_t, cftMulticastSupport, 145);
AT(ncclCommProperties_t, cftCountedSupport, 146);

SIZE(ncclGinRequest_t, 16);
SIZE(ncclDevResourceHandle_t, 4);
SIZE(ncclGinSignal_t, 4);
SIZE(ncclGinCounter_t, 4);
SIZE(ncclCftLeId, 4);
SIZE(ncclComm_t, 8);
SIZE(ncclWindow_t, 8);
SIZE(ncclParamHandle_t, 8);
SIZE(cudaStream_t, 8);
SIZE(acclStream_t, 8);
SIZE(ncclResult_t, 4);
SIZE(ncclRedOp_t, 4);
SIZE(ncclRedOp_dummy_t, 4);
SIZE(ncclDataType_t, 4);
SIZE(ncclScalarResidence_t, 4);
SIZE(ncclCommMemStat_t, 4);
SIZE(ncclHostCftMode_t, 4);
SIZE(ncclNvlsHostMode_t, 4);
SIZE(ncclEncryptionMode_t, 4);
SIZE(ncclGinConnectionType_t, 4);
SIZE(ncclGinType_t, 4);
SIZE(ncclCftTeamMode_t, 4);
SIZE(ncclCftCap_t, 4);

SAME(ncclSuccess, 0);
SAME(ncclUnhandledCudaError, 1);
SAME(ncclSystemError, 2);
SAME(ncclInternalError, 3);
SAME(ncclInvalidArgument, 4);
SAME(ncclInvalidUsage, 5);
SAME(ncclRemoteError, 6);
SAME(ncclInProgress, 7);
SAME(ncclTimeout, 8);
SAME(ncclNumResults, 9);
SAME(ncclSum, 0);
SAME(ncclProd, 1);
SAME(ncclMax, 2);
SAME(ncclMin, 3);
SAME(ncclAvg, 4);
SAME(ncclNumOps, 5);
SAME(ncclMaxRedOp, 0x7fffffff);
SAME(ncclNumOps_dummy, 5);
SAME(ncclInt8, 0);
SAME(ncclChar, 0);
SAME(ncclUint8, 1);
SAME(ncclInt32, 2);
SAME(ncclInt, 2);
SAME(ncclUint32, 3);
SAME(ncclInt64, 4);
SAME(ncclUint64, 5);
SAME(ncclFloat16, 6);
SAME(ncclHalf, 6);
SAME(ncclFloat32, 7);
SAME(ncclFloat, 7);
SAME(ncclFloat64, 8);
SAME(ncclDouble, 8);
SAME(ncclBfloat16, 9);
SAME(ncclFloat8e4m3, 10);
SAME(ncclFloat8e5m2, 11);
SAME(ncclNumTypes, 12);
SAME(ncclScalarDevice, 0);
SAME(ncclScalarHostImmediate, 1);
SAME(ncclStatGpuMemSuspend, 0);
SAME(ncclStatGpuMemSuspended, 1);
SAME(ncclStatGpuMemPersist, 2);
SAME(ncclStatGpuMemTotal, 3);
SAME(ncclHostCftDefault, INT_MIN);
SAME(ncclHostCftEnable, 1);
SAME(ncclHostCftDisable, 2);
SAME(ncclHostCftFallback, 3);
SAME(ncclNvlsHostModeDefault, INT_MIN);
SAME(ncclNvlsHostModeEnable, 0);
SAME(ncclNvlsHostModeDisableTransport, 1);
SAME(ncclNvlsHostModeDisableSymmetricMultimem, 2);
SAME(ncclNvlsHostModeDisable, INT_MAX);
SAME(NCCL_ENCRYPTION_MODE_NONE, 0);
SAME(NCCL_ENCRYPTION_MODE_PSK, 1);
SAME(NCCL_GIN_CONNECTION_NONE, 0);
SAME(NCCL_GIN_CONNECTION_FULL, 1);
SAME(NCCL_GIN_CONNECTION_RAIL, 2);
SAME(NCCL_GIN_CONNECTION_CUSTOM_STRIDE, 3);
SAME(NCCL_GIN_TYPE_NONE, 0);
SAME(NCCL_GIN_TYPE_PROXY, 2);
SAME(NCCL_GIN_TYPE_GDAKI, 3);
SAME(NCCL_GIN_TYPE_GPI, 4);
SAME(NCCL_GIN_TYPE_EFA_GDA, 5);
SAME(NCCL_GIN_MAX_TYPES, 6);
SAME(NCCL_CFT_TEAM_FLAT, 0);
SAME(NCCL_CFT_TEAM_HIER_MULTIMEM, 1);
SAME(NCCL_CFT_TEAM_HIER_LSA, 2);
SAME(NCCL_CFT_CAP_NONE, 0);
SAME(NCCL_CFT_CAP_CFT, 1);
SAME(NCCL_CFT_CAP_CFT_MULTIMEM, 2);
SAME(NCCL_MAJOR, 2);
SAME(NCCL_MINOR, 30);
SAME(NCCL_PATCH, 7);
SAME(NCCL_VERSION_CODE, 23007);
SAME(NCCL_VERSION_CODE, NCCL_VERSION(2,30,7));
SAME(NCCL_VERSION(2,7,8), 2708);
SAME(NCCL_VERSION(2,18,1), 21801);
SAME(NCCL_STRUCT_VERSION_CODE, NCCL_VERSION(2,32,3));
SAME(NCCL_UNIQUE_ID_BYTES, 128);
SAME(NCCL_CONFIG_UNDEF_INT, INT_MIN);
SAME(NCCL_API_MAGIC, 0xcafebeef);
SAME(NCCL_SPLIT_NOCOLOR, -1);
SAME(NCCL_WIN_DEFAULT, 0);
SAME(NCCL_WIN_COLL_SYMMETRIC, 1);
SAME(NCCL_WIN_STRICT_ORDERING, 2);
SAME(NCCL_WIN_GIN_ONLY, 4);
SAME(NCCL_WIN_CFT_COUNTED, 8);
SAME(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
SAME(NCCL_CTA_POLICY_DEFAULT, 0);
SAME(NCCL_CTA_POLICY_EFFICIENCY, 1);
SAME(NCCL_CTA_POLICY_ZERO, 2);
SAME(NCCL_SHRINK_DEFAULT, 0);
SAME(NCCL_SHRINK_ABORT, 1);
SAME(NCCL_REVOKE_DEFAULT, 0);
SAME(NCCL_SUSPEND_MEM, 1);
SAME(NCCL_GIN_MAX_CONNECTIONS, 4);
SAME(NCCL_GIN_MAX_ACTIVE_BACKENDS, 4);

static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static const ncclCollConfig_t call = NCCL_COLL_CONFIG_INITIALIZER;
static const ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
static const ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
static const ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
static const ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;

#define HEAD(of, kind) CHECK(of.size == sizeof(kind) && of.magic == 0xcafebeef && of.version == 23203)

int main(void) {
  HEAD(config, ncclConfig_t);
  HEAD(call, ncclCollConfig_t);
  HEAD(properties, ncclCommProperties_t);
  HEAD(requirements, ncclDevCommRequirements_t);
  HEAD(encryption, ncclEncryptionConfig_t);
  CHECK(simulation.size == sizeof(ncclSimInfo_t) && simulation.magic == 0x74685283 && simulation.version == 23203);

  CHECK(config.blocking == INT_MIN);
  CHECK(config.cgaClusterSize == INT_MIN);
  CHECK(config.minCTAs == INT_MIN);
  CHECK(config.maxCTAs == INT_MIN);
  CHECK(config.splitShare == INT_MIN);
  CHECK(config.trafficClass == INT_MIN);
  CHECK(config.collnetEnable == INT_MIN);
  CHECK(config.CTAPolicy == INT_MIN);
  CHECK(config.shrinkShare == INT_MIN);
  CHECK(config.nvlsCTAs == INT_MIN);
  CHECK(config.nChannelsPerNetPeer == INT_MIN);
  CHECK(config.nvlinkCentricSched == INT_MIN);
  CHECK(config.graphUsageMode == INT_MIN);
  CHECK(config.numRmaCtx == INT_MIN);
  CHECK(config.maxP2pPeers == INT_MIN);
  CHECK(config.graphStreamOrdering == INT_MIN);
  CHECK(config.launchOrderImplicit == INT_MIN);
  CHECK(config.numRmaSig == INT_MIN);
  CHECK(config.rmaEagerInit == INT_MIN);
  CHECK(config.hostCftMode == INT_MIN);
  CHECK(config.nvlsHostMode == INT_MIN);
  CHECK(config.netName == NULL && config.commName == NULL);

  CHECK(call.ext == NULL && call.minCTAs == INT_MIN && call.maxCTAs == INT_MIN && call.nvlsCTAs == INT_MIN);
  CHECK(call.cgaClusterSize == INT_MIN && call.algSelection == NULL && call.forceAlgSelection == 1);
  CHECK(call.CTAPolicy == INT_MIN && call.userProfilerTag == 0 && call.launchCompletionEvent == NULL);

  CHECK(simulation.estimatedTime < 0);
  CHECK(encryption.mode == NCCL_ENCRYPTION_MODE_NONE && encryption.psk == NULL);
  CHECK(requirements.ginContextCount == 4 && requirements.ginTrafficClass == INT_MIN);
  CHECK(requirements.ginStrongSignalsRequired && requirements.ginVaSignalsRequired);
  CHECK(requirements.ginCustomStride == 1 && requirements.ginType == NCCL_GIN_TYPE_NONE);
  CHECK(strcmp(NCCL_SUFFIX, "") == 0 && NCCL_COMM_NULL == NULL && NCCL_UNDEF_FLOAT == -1.0f);
  return 0;
}
