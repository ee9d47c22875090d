/* Says what a nccl.h has of structs and values, as far as release LEVEL had them: the header of NVIDIA and ours must say the same. */
#include <cuda_runtime.h>
#include <nccl.h>
/* NVIDIA has the host's part of the device interface in a header of its own, before 2.31 in C++ only; ours has it in nccl.h. */
#if LEVEL >= 23100 || (LEVEL >= 22900 && defined(__cplusplus))
#define HAS_DEVICE_INTERFACE
#ifdef DEVICE_HEADER
#include DEVICE_HEADER
#endif
#endif

#include <stdio.h>

/* Where a field is, and how long. */
#define FIELD(type, field) \
  printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))
#define VALUE(name) printf(#name " %lld\n", (long long)(name))
#define SIZE(type) printf("sizeof " #type " %zu\n", sizeof(type))

static void values(void) {
  VALUE(NCCL_UNIQUE_ID_BYTES);
  SIZE(ncclUniqueId);
  VALUE(ncclSuccess);
  VALUE(ncclUnhandledCudaError);
  VALUE(ncclSystemError);
  VALUE(ncclInternalError);
  VALUE(ncclInvalidArgument);
  VALUE(ncclInvalidUsage);
  VALUE(ncclRemoteError);
  VALUE(ncclInProgress);
  SIZE(ncclResult_t);
  VALUE(ncclSum);
  VALUE(ncclProd);
  VALUE(ncclMax);
  VALUE(ncclMin);
  VALUE(ncclAvg);
  VALUE(ncclNumOps);
  VALUE(ncclMaxRedOp);
  SIZE(ncclRedOp_t);
  VALUE(ncclInt8);
  VALUE(ncclChar);
  VALUE(ncclUint8);
  VALUE(ncclInt32);
  VALUE(ncclInt);
  VALUE(ncclUint32);
  VALUE(ncclInt64);
  VALUE(ncclUint64);
  VALUE(ncclFloat16);
  VALUE(ncclHalf);
  VALUE(ncclFloat32);
  VALUE(ncclFloat);
  VALUE(ncclFloat64);
  VALUE(ncclDouble);
  SIZE(ncclDataType_t);
  VALUE(ncclScalarDevice);
  VALUE(ncclScalarHostImmediate);
  SIZE(ncclScalarResidence_t);
  VALUE(NCCL_VERSION(2, 7, 8));
  VALUE(NCCL_VERSION(2, 18, 1));
  FIELD(ncclConfig_t, size);
  FIELD(ncclConfig_t, magic);
  FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking);
}

static void until_2_26(void) {
#if LEVEL >= 21700
  VALUE(NCCL_CONFIG_UNDEF_INT);
  FIELD(ncclConfig_t, cgaClusterSize);
  FIELD(ncclConfig_t, minCTAs);
  FIELD(ncclConfig_t, maxCTAs);
  FIELD(ncclConfig_t, netName);
#endif
#if LEVEL >= 21800
  VALUE(NCCL_SPLIT_NOCOLOR);
  FIELD(ncclConfig_t, splitShare);
#endif
#if LEVEL >= 22200
  SIZE(ncclSimInfo_t);
  FIELD(ncclSimInfo_t, size);
  FIELD(ncclSimInfo_t, magic);
  FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
#endif
#if LEVEL >= 22400
  VALUE(ncclFloat8e4m3);
  VALUE(ncclFloat8e5m2);
#endif
#if LEVEL >= 22600
  FIELD(ncclConfig_t, trafficClass);
#endif
}

static void until_2_30(void) {
#if LEVEL >= 22700
  VALUE(NCCL_WIN_DEFAULT);
  VALUE(NCCL_WIN_COLL_SYMMETRIC);
  VALUE(NCCL_CTA_POLICY_DEFAULT);
  VALUE(NCCL_CTA_POLICY_EFFICIENCY);
  VALUE(NCCL_SHRINK_DEFAULT);
  VALUE(NCCL_SHRINK_ABORT);
  FIELD(ncclConfig_t, commName);
  FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy);
  FIELD(ncclConfig_t, shrinkShare);
  FIELD(ncclConfig_t, nvlsCTAs);
  SIZE(ncclWindow_t);
#endif
#if LEVEL >= 22800
  VALUE(NCCL_CTA_POLICY_ZERO);
  VALUE(NCCL_WIN_REQUIRED_ALIGNMENT);
  FIELD(ncclConfig_t, nChannelsPerNetPeer);
  FIELD(ncclConfig_t, nvlinkCentricSched);
#endif
#if LEVEL >= 22807
  VALUE(NCCL_REVOKE_DEFAULT);
#endif
#if LEVEL >= 22900
  FIELD(ncclConfig_t, graphUsageMode);
  FIELD(ncclConfig_t, numRmaCtx);
  SIZE(ncclWaitSignalDesc_t);
  FIELD(ncclWaitSignalDesc_t, opCnt);
  FIELD(ncclWaitSignalDesc_t, peer);
  FIELD(ncclWaitSignalDesc_t, sigIdx);
  FIELD(ncclWaitSignalDesc_t, ctx);
#endif
#if LEVEL >= 22907
  VALUE(NCCL_SUSPEND_MEM);
  VALUE(ncclStatGpuMemSuspend);
  VALUE(ncclStatGpuMemSuspended);
  VALUE(ncclStatGpuMemPersist);
  VALUE(ncclStatGpuMemTotal);
#endif
#if LEVEL >= 23003
  VALUE(ncclTimeout);
  VALUE(ncclNumResults);
  FIELD(ncclConfig_t, maxP2pPeers);
#endif
#if LEVEL >= 23007
  FIELD(ncclConfig_t, graphStreamOrdering);
#endif
}

static void since_2_31(void) {
#if LEVEL >= 23100
  FIELD(ncclConfig_t, launchOrderImplicit);
  FIELD(ncclConfig_t, numRmaSig);
  FIELD(ncclConfig_t, rmaEagerInit);
  FIELD(ncclConfig_t, hostCftMode);
  VALUE(ncclHostCftDefault);
  VALUE(ncclHostCftEnable);
  VALUE(ncclHostCftDisable);
  VALUE(ncclHostCftFallback);
  SIZE(ncclConfigExt_t);
  FIELD(ncclConfigExt_t, next);
  FIELD(ncclConfigExt_t, key.vendorId);
  FIELD(ncclConfigExt_t, key.optionId);
  FIELD(ncclConfigExt_t, val);
  FIELD(ncclCollConfig_t, size);
  FIELD(ncclCollConfig_t, magic);
  FIELD(ncclCollConfig_t, version);
  FIELD(ncclCollConfig_t, ext);
  FIELD(ncclCollConfig_t, minCTAs);
  FIELD(ncclCollConfig_t, maxCTAs);
  FIELD(ncclCollConfig_t, nvlsCTAs);
  FIELD(ncclCollConfig_t, cgaClusterSize);
  FIELD(ncclCollConfig_t, algSelection);
  FIELD(ncclCollConfig_t, forceAlgSelection);
  FIELD(ncclCollConfig_t, CTAPolicy);
  FIELD(ncclCollConfig_t, userProfilerTag);
#endif
#if LEVEL >= 23200
  VALUE(NCCL_WIN_GIN_ONLY);
  VALUE(NCCL_WIN_CFT_COUNTED);
  FIELD(ncclConfig_t, nvlsHostMode);
  SIZE(ncclConfig_t);
  VALUE(ncclNvlsHostModeDefault);
  VALUE(ncclNvlsHostModeEnable);
  VALUE(ncclNvlsHostModeDisableTransport);
  VALUE(ncclNvlsHostModeDisableSymmetricMultimem);
  VALUE(ncclNvlsHostModeDisable);
  FIELD(ncclCollConfig_t, launchCompletionEvent);
  SIZE(ncclCollConfig_t);
  SIZE(ncclEncryptionConfig_t);
  FIELD(ncclEncryptionConfig_t, mode);
  FIELD(ncclEncryptionConfig_t, psk);
#endif
}

/* The structs of the device interface, in the state that their ends have since these releases. */
static void device_interface(void) {
#ifdef HAS_DEVICE_INTERFACE
  SIZE(ncclTeam_t);
  FIELD(ncclTeam_t, nRanks);
  FIELD(ncclTeam_t, rank);
  FIELD(ncclTeam_t, stride);
  FIELD(ncclCommProperties_t, size);
  FIELD(ncclCommProperties_t, magic);
  FIELD(ncclCommProperties_t, version);
  FIELD(ncclCommProperties_t, rank);
  FIELD(ncclCommProperties_t, nRanks);
  FIELD(ncclCommProperties_t, cudaDev);
  FIELD(ncclCommProperties_t, nvmlDev);
  FIELD(ncclCommProperties_t, deviceApiSupport);
  FIELD(ncclCommProperties_t, multimemSupport);
#endif
#if defined(HAS_DEVICE_INTERFACE) && LEVEL >= 22904
  /* Before, it is a byte at 34: both places are 0 here, which is NONE. */
  FIELD(ncclCommProperties_t, ginType);
  FIELD(ncclCommProperties_t, nLsaTeams);
  FIELD(ncclCommProperties_t, hostRmaSupport);
  FIELD(ncclCommProperties_t, railedGinType);
#endif
#if LEVEL >= 23100
  FIELD(ncclCommProperties_t, commHash);
  FIELD(ncclCommProperties_t, ginMinStride);
  FIELD(ncclCommProperties_t, ginConnectionType);
  FIELD(ncclCommProperties_t, ginSupport);
  FIELD(ncclCommProperties_t, devCommRuntimeVersionSize);
  SIZE(ncclDevResourceRequirements_t);
  SIZE(ncclTeamRequirements_t);
#endif
#if LEVEL >= 23200
  FIELD(ncclCommProperties_t, cftSupport);
  FIELD(ncclCommProperties_t, cftMulticastSupport);
  FIELD(ncclCommProperties_t, cftCountedSupport);
  SIZE(ncclCommProperties_t);
  FIELD(ncclDevCommRequirements_t, ginContextCount);
  FIELD(ncclDevCommRequirements_t, ginConnectionType);
  FIELD(ncclDevCommRequirements_t, ginTrafficClass);
  FIELD(ncclDevCommRequirements_t, ginCustomStride);
  FIELD(ncclDevCommRequirements_t, cftCaps);
  FIELD(ncclDevCommRequirements_t, cftBarrierCount);
  SIZE(ncclDevCommRequirements_t);
#endif
}

int main(void) {
  values();
  until_2_26();
  until_2_30();
  since_2_31();
  device_interface();
  return 0;
}
