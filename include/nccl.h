/*
 * nccl.h - the C interface of ACCL-P under the names of NCCL.
 *
 * Programs written against NCCL compile with this header and run with libnccl.so.2 of this project, unchanged.
 * It needs no CUDA header: streams and events are opaque pointers of the same type as CUDA's. Include the CUDA
 * header first where both are wanted.
 *
 * This file is the contract: accl-sys/src/abi.rs is generated from it, and tests/c checks each size, offset and
 * value. It is one file, however long, because programs include one file.
 *
 * Conventions
 *  - Every function has a twin with the prefix `pnccl`, the same code under a second name, for tools that put
 *    themselves in the place of the first and forward to the second.
 *  - "count" is a number of elements, "size" and "offset" are bytes, ranks are 0 .. ranks-1.
 *  - Functions return ncclSuccess or a code that says whose fault it was; ncclGetLastError() has the sentence.
 *  - A NULL or foreign pointer given as communicator is ncclInvalidArgument, never a crash.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__CUDA_RUNTIME_H__) && !defined(__DRIVER_TYPES_H__)
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#endif

/* ---- Version -------------------------------------------------------------------------------------------- */

/* The level of NCCL whose surface is complete here; what ncclGetVersion() says. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007

/* One integer per release, comparable with <; the formula changed with 2.9. */
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

/* The structs below are those of 2.32.3, a superset of the level above. Initializers stamp this number, so that
 * the library honours every field the struct has: it ignores fields that are younger than the stamp. */
#define NCCL_STRUCT_VERSION_CODE 23203

/* ---- Constants ------------------------------------------------------------------------------------------ */

#define NCCL_COMM_NULL NULL
#define NCCL_UNIQUE_ID_BYTES 128

/* "Not given" in configurations. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT (-1.0f)

/* Proof that a struct was made by its initializer. */
#define NCCL_API_MAGIC 0xcafebeefU
#define NCCL_SIM_INFO_MAGIC 0x74685283U

/* The color of ranks that get no communicator from ncclCommSplit(). */
#define NCCL_SPLIT_NOCOLOR (-1)

/* Flags of ncclCommWindowRegister(). */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04
#define NCCL_WIN_CFT_COUNTED 0x08
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* ncclConfig_t.CTAPolicy, a mask. */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

#define NCCL_GIN_MAX_CONNECTIONS 4
#define NCCL_GIN_MAX_ACTIVE_BACKENDS 4

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Opaque handles ------------------------------------------------------------------------------------- */

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;
typedef uint32_t ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef uint32_t ncclCftLeId;
typedef struct ncclGinRequest { uint64_t opaque[2]; } ncclGinRequest_t;

/* Names a communicator to be: rank 0 makes it, and the program carries its 128 bytes to all ranks. */
typedef struct ncclUniqueId { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

/* ---- Enums ---------------------------------------------------------------------------------------------- */

typedef enum ncclResult {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a call of the device driver failed */
  ncclSystemError = 2,        /* the operating system refused: memory, descriptors, sockets, files */
  ncclInternalError = 3,      /* a defect of this library */
  ncclInvalidArgument = 4,    /* a bad argument of this one call */
  ncclInvalidUsage = 5,       /* good arguments in an illegal situation, or a feature that is not there */
  ncclRemoteError = 6,        /* a peer is gone or unreachable */
  ncclInProgress = 7,         /* not an error: a non-blocking operation is still running */
  ncclTimeout = 8,            /* a time limit passed */
  ncclNumResults = 9
} ncclResult_t;

/* Only there to give ncclRedOp_t its size. */
typedef enum ncclRedOpDummy { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;

/* Values from ncclNumOps on are operators made by ncclRedOpCreatePreMulSum(). */
typedef enum ncclRedOp {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum ncclDataType {
  ncclInt8 = 0, ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2, ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6, ncclHalf = 6,
  ncclFloat32 = 7, ncclFloat = 7,
  ncclFloat64 = 8, ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the factor of ncclRedOpCreatePreMulSum() lies, and so when it is read. */
typedef enum ncclScalarResidence {
  ncclScalarDevice = 0,       /* read while the operation runs; must stay valid until then */
  ncclScalarHostImmediate = 1 /* read before the call that makes the operator returns */
} ncclScalarResidence_t;

typedef enum ncclCommMemStat {
  ncclStatGpuMemSuspend = 0,   /* bytes that ncclCommSuspend() can release */
  ncclStatGpuMemSuspended = 1, /* 1 between ncclCommSuspend() and ncclCommResume() */
  ncclStatGpuMemPersist = 2,   /* bytes that stay */
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef enum ncclHostCftMode {
  ncclHostCftDefault = INT_MIN,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

/* A mask, apart from the two ends of the range. */
typedef enum ncclNvlsHostMode {
  ncclNvlsHostModeDefault = INT_MIN,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

typedef enum ncclEncryptionMode { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

typedef enum ncclGinConnectionType {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

/* 1 is unused on purpose. */
typedef enum ncclGinType {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

typedef enum ncclCftTeamMode {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

typedef enum ncclCftCap { NCCL_CFT_CAP_NONE = 0, NCCL_CFT_CAP_CFT = 1, NCCL_CFT_CAP_CFT_MULTIMEM = 2 } ncclCftCap_t;

/* ---- Configuration of a communicator -------------------------------------------------------------------- */

/* Start from NCCL_CONFIG_INITIALIZER and set what matters; fields left undefined take the library's default.
 * An environment variable, where one is named, beats the field. blocking, commName and netName have an
 * effect; the others are checked, and left to libraries that have such devices. */
typedef struct ncclConfig_v23203 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 0: calls return ncclInProgress; ask ncclCommGetAsyncError(). NCCL_COMM_BLOCKING */
  int cgaClusterSize;      /* >= 0 */
  int minCTAs;             /* > 0, <= maxCTAs */
  int maxCTAs;             /* > 0 */
  const char *netName;     /* the network between hosts: "IB" or "Socket". NCCL_NET */
  int splitShare;          /* 0 or 1: children of a split share resources with the parent */
  int trafficClass;        /* of the network, any value */
  const char *commName;    /* for logs and tools */
  int collnetEnable;       /* 0 or 1 */
  int CTAPolicy;           /* mask of NCCL_CTA_POLICY_* */
  int shrinkShare;         /* 0 or 1 */
  int nvlsCTAs;            /* > 0 */
  int nChannelsPerNetPeer; /* 1 .. 64 */
  int nvlinkCentricSched;  /* 0 or 1 */
  int graphUsageMode;      /* 0 .. 2 */
  int numRmaCtx;           /* >= 0 */
  int maxP2pPeers;         /* > 0 */
  int graphStreamOrdering; /* 0 or 1 */
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;         /* ncclHostCftMode_t */
  int nvlsHostMode;        /* ncclNvlsHostMode_t */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER {                                                  \
  sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_STRUCT_VERSION_CODE,                  \
  NCCL_CONFIG_UNDEF_INT, /* blocking */                                            \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* CTAs */  \
  NCCL_CONFIG_UNDEF_PTR, /* netName */                                             \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* splitShare, trafficClass */     \
  NCCL_CONFIG_UNDEF_PTR, /* commName */                                            \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* collnetEnable, CTAPolicy */     \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* shrinkShare, nvlsCTAs */        \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* nChannelsPerNetPeer, nvlink */  \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* graphUsageMode, numRmaCtx */    \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* maxP2pPeers, graphStream... */  \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* launchOrder..., numRmaSig */    \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* rmaEagerInit, hostCftMode */    \
  NCCL_CONFIG_UNDEF_INT  /* nvlsHostMode */                                        \
}

/* One option of a vendor, in a list without order or duplicates; entries of other vendors are ignored. */
typedef struct ncclConfigExt {
  struct ncclConfigExt *next;
  struct { int vendorId; int optionId; } key; /* vendorId: not 0, below 2^24 */
  union { int i; const char *s; void *raw; } val;
} ncclConfigExt_t;

/* Configuration of one collective call: the same on all ranks, read only during the call. */
typedef struct ncclCollConfig_v23203 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t *ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char *algSelection;          /* restricts the algorithms of this call */
  int forceAlgSelection;             /* 1: an unsatisfiable selection is an error; 0: it is a wish */
  int CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent; /* recorded in the call's stream before the call; devices only */
} ncclCollConfig_t;

/* As this header called it before NVIDIA's was at hand. */
#define NCCL_COLL_CONFIG_INITIALIZER NCCL_COLLCONFIG_INITIALIZER

#define NCCL_COLLCONFIG_INITIALIZER {                                                        \
  sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_STRUCT_VERSION_CODE,                        \
  NULL, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* ext, minCTAs, maxCTAs */            \
  NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,       /* nvlsCTAs, cgaClusterSize */         \
  NULL, 1, NCCL_CONFIG_UNDEF_INT,                     /* algSelection, force, CTAPolicy */   \
  0, NULL                                             /* userProfilerTag, event */           \
}

/* ---- Other structs -------------------------------------------------------------------------------------- */

typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), NCCL_SIM_INFO_MAGIC, NCCL_STRUCT_VERSION_CODE, NCCL_UNDEF_FLOAT }

typedef struct ncclWaitSignalDesc {
  int opCnt;  /* signals to wait for */
  int peer;   /* from this rank */
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

typedef struct ncclEncryptionConfig_v23203 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;        /* ncclEncryptionMode_t */
  const char *psk; /* the pre-shared key */
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
  { sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_STRUCT_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, NULL }

/* What a communicator can do. The library decides by `version` which fields it writes. */
typedef struct ncclCommProperties_v23203 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev; /* -1: no device */
  int nvmlDev; /* -1: no device */
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
  uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER {                                                         \
  sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_STRUCT_VERSION_CODE, 0, 0, 0, 0,              \
  false, false, NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE, 0, 0, NCCL_GIN_CONNECTION_NONE,  \
  {false}, 0, false, false, false                                                                  \
}

/* Ranks in a regular pattern: rank i of the team is `stride` world ranks after rank i-1. */
typedef struct ncclTeam {
  int nRanks;
  int rank; /* of the caller */
  int stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle { void *mcBasePtr; } ncclMultimemHandle_t;
typedef struct ncclLsaBarrierHandle { uint32_t opaque[2]; } ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle { uint32_t opaque[2]; } ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle { uint32_t opaque[2]; } ncclLLA2AHandle_t;

typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements *next;
  size_t bufferSize;
  size_t bufferAlign;
  ncclDevResourceHandle_t *outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t *outGinSignalStart;
  ncclGinCounter_t *outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements *next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements_t;

typedef struct ncclDevCommRequirements_v23203 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t *resourceRequirementsList;
  ncclTeamRequirements_t *teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount;
  int lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
  int ginCustomStride;
  ncclGinType_t ginType;
  bool useRuntimeVersion;
  ncclCftCap_t cftCaps;
  int cftBarrierCount;
} ncclDevCommRequirements_t;

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER {                                                  \
  sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_STRUCT_VERSION_CODE, NULL, NULL,        \
  false, 0, 0, 0, 0, 0,                           /* lsaMultimem, barriers, LLA2A */              \
  false, 4, 0, 0, NCCL_GIN_CONNECTION_NONE,       /* ginForceEnable .. ginConnectionType */       \
  false, 0, NCCL_CONFIG_UNDEF_INT, 0, true, true, /* ginExclusiveContexts .. VaSignals */         \
  1, NCCL_GIN_TYPE_NONE, false, NCCL_CFT_CAP_NONE, 0                                              \
}

/* ---- Management ----------------------------------------------------------------------------------------- */

/* NCCL_VERSION_CODE of the library that is loaded. Needs nothing but the library. */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* Makes the name of a new communicator. The calling process must live until all ranks have joined. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Joins the communicator `commId` as `rank` of `nranks`; returns when all have joined, or inside a group at the
 * end of the group. On failure *comm is NULL. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* Makes all ranks of a communicator in this process: comms[i] has rank i. `devlist` holds `ndev` different
 * numbers, or is NULL for 0 .. ndev-1; in host memory the numbers have no meaning. A number twice is
 * ncclInvalidUsage. */
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist);

/* ncclCommInitRank() with a configuration; NULL means all defaults. A communicator that does not block is
 * returned at once, with ncclInProgress. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t
    *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t
    *config);

/* ncclCommInitRankConfig() with `nId` unique ids, each made by another rank, that share the work of meeting. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId
    *commIds, ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId
    *commIds, ncclConfig_t *config);

/* Called by all ranks of `comm`: those of one color become a new communicator, in the order of their keys, ties
 * in the order of their ranks. NCCL_SPLIT_NOCOLOR takes part and gets NULL. Config NULL: the parent's. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* A new communicator without the excluded ranks, which do not call; the list is sorted. With NCCL_SHRINK_ABORT what is under way is ended
 * first, and the communicator may have failed. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t
    *newcomm, ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t
    *newcomm, ncclConfig_t *config, int shrinkFlags);

/* Makes the unique id that new ranks give to ncclCommGrow(). One rank calls. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/* A new communicator with more ranks: those of `comm` pass rank -1 and keep theirs, new ones pass comm NULL and the id. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t
    *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t
    *newcomm, ncclConfig_t *config);

/* Stops what runs on the communicator and refuses more; split, shrink, destroy and abort still work. NULL is no error. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Completes what was started; at most once. NULL is no error. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Finalizes where that was not done, and frees. The handle is dead after it. NULL is no error. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Wakes every call that waits on the communicator and frees it, without help of the peers. From any thread. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* *asyncError becomes ncclInProgress, ncclSuccess, or the error that spoilt the communicator. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/* Number of ranks. */
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

/* Number of the device; -1 in host memory. */
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);

/* The caller's rank. */
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* Fills `props`, made by NCCL_COMM_PROPERTIES_INITIALIZER; anything else is ncclInvalidUsage. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

/* Gives memory back in which data goes from rank to rank, of the host and of devices, until ncclCommResume(). All ranks call, when
   all is over, replays of graphs too; calls are ncclInvalidUsage meanwhile. `flags` is NCCL_SUSPEND_MEM. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/* Undoes ncclCommSuspend(). All ranks call; if one cannot get its memory, all stay suspended. */
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* Bytes of memory by use, of the host and of devices: this rank's, and its share of what the ranks of its host have in common; for
   ncclStatGpuMemSuspended 1 or 0. ncclInvalidUsage while an operation is under way. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* A short fixed text for the code. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* The sentence of the last failure in this process, "" before the first; `comm` is ignored and may be NULL.
 * At most 1023 bytes; the text stays until the calling thread asks again. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Has the settings of the log read anew. */
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);

/* Encrypts what goes over TCP with a key that all processes of the job have (NCCL_ENCRYPTION_MODE_PSK), or does not. It holds for the process;
   to be called before its first communicator, later it is ncclInvalidUsage. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t *config);

/* ---- Memory --------------------------------------------------------------------------------------------- */

/* Memory that peers on this host can read in place. No communicator is needed. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/* Gives back what ncclMemAlloc() gave; NULL is no error. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* Announces a buffer that will be used again and again. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);

/* Takes the announcement back; NULL is no error, an unknown handle is ncclInvalidUsage. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* Makes a buffer a window. Where windows are not supported, success with *win NULL: use the buffer as it is. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int
    winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int
    winFlags);

/* Undoes ncclCommWindowRegister(); NULL is no error. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* The buffer of a window; NULL where windows are not supported. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* Addresses of a window's parts at peers, in bytes from its start. An unknown window is ncclInvalidArgument. */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
    void **outPtr);
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
    void **outPtr);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId *leId, size_t
    *leOffset);
ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId *leId, size_t
    *leOffset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int worldPeer, ncclCftLeId *leId,
    size_t *leOffset);
ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int worldPeer, ncclCftLeId *leId,
    size_t *leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int cftPeer, ncclTeam_t team,
    ncclCftLeId *leId, size_t *leOffset);
ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int cftPeer, ncclTeam_t team,
    ncclCftLeId *leId, size_t *leOffset);

/* ---- Collectives ----------------------------------------------------------------------------------------
 * All ranks call with the same count, type, operator and root, in the same order. With stream NULL a call is
 * complete when it returns (in a group: when the group's end returns); with a stream of accl.h it is complete
 * when the stream is. Count 0 is checked and does nothing. Buffers may overlap only in the in-place form that
 * is named. n is the number of ranks. */

/* Every rank's recvbuff gets the reduction of all sendbuffs, `count` elements. In place: recvbuff == sendbuff. */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* The root's recvbuff gets the reduction; elsewhere recvbuff is unused. In place: recvbuff == sendbuff. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* Every recvbuff gets the root's sendbuff; elsewhere sendbuff is unused. In place: recvbuff == sendbuff. */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream);

/* ncclBroadcast() in place. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
    cudaStream_t stream);

/* Every recvbuff, n*sendcount elements, gets all sendbuffs by rank. In place: sendbuff is one's own part. */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);

/* Rank r's recvbuff gets part r of the reduction of n*recvcount elements. In place: recvbuff is that part. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t
    datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t
    datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* Part r of every sendbuff goes to rank r; both buffers hold n*count elements. Not in place. */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);

/* The root's recvbuff, n*count elements, gets all sendbuffs. In place: the root's sendbuff is its own part. */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream);

/* Rank r's recvbuff gets part r of the root's sendbuff. In place: the root's recvbuff is its own part. */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream);

/* The same with a configuration of the call; config NULL is the plain call. A wrong magic or forceAlgSelection is
 * ncclInvalidArgument. algSelection has the syntax of NCCL_ALGO (docs/settings.md), and restricts further what that leaves; a name that is unknown is
 * ncclInvalidArgument, a selection that is forced and of which nothing can serve is ncclInvalidUsage. All ranks must select alike. An event is
 * ncclInvalidUsage; the profiler plugins of versions 4 to 6 have no room for userProfilerTag, which is accepted without effect. */
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t
    datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t
    datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t
    datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t
    datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int
    root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ---- Point to point ------------------------------------------------------------------------------------- */

/* Sends `count` elements to `peer`, who receives as many bytes. Sends and receives of a pair match in order; put
 * those that depend on each other in one group. A send to oneself needs a receive in the same group. */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);

/* ---- One-sided ------------------------------------------------------------------------------------------
 * Windows are not supported in host memory yet, so these answer ncclInvalidArgument, as NCCL does there. */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t
    stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t
    stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t
    stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t
    stream);

/* ---- Operators ------------------------------------------------------------------------------------------ */

/* An operator of one communicator and one type: each rank's input times that rank's scalar, then summed. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
    ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
    ncclScalarResidence_t residence, ncclComm_t comm);

/* Forgets the operator; calls that returned are not concerned. A built-in operator is ncclInvalidArgument. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Groups --------------------------------------------------------------------------------------------- */

/* Opens a group in this thread; groups nest, and calls inside are started at the outermost end. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/* Closes the group. If any call in it failed nothing is started and that error is returned. Without a start:
 * ncclInvalidUsage. */
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* With NULL the same as ncclGroupEnd(). With `simInfo` nothing of the group is carried out or kept, and estimatedTime gets the microseconds
 * that it should take by the figures of the machine (docs/tuning.md): what one rank does adds up, and so do communicators; ranks of one communicator that
 * are in the same group count once. An empty group takes 0. In a group inside another one nothing is written. A wrong magic, or a size without
 * room for the answer: ncclInvalidArgument; a group that makes communicators: ncclInvalidUsage; a call of the group has failed: its error. The
 * group is dropped in each case. Communicators that do not block are no exception. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* ---- Device side ----------------------------------------------------------------------------------------
 * There is no device code in host memory: ncclCommQueryProperties() says so, and what creates answers
 * ncclInvalidUsage. Teams describe the communicator: world and rail are all ranks, lsa is the caller alone. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t
    *outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t
    *outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t pncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
ncclTeam_t pncclTeamCftMultimem(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t
    *outHandle, ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t
    *outHandle, ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
    ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
    ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int sizeLog2, ncclGinOutboxHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinOutboxCreateRequirement(int nBlocks, int sizeLog2, ncclGinOutboxHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int sizeLog2,
    ncclGinInboxA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int sizeLog2,
    ncclGinInboxA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

/* ---- Parameters -----------------------------------------------------------------------------------------
 * Reads settings by key: the name with the prefix NCCL_ (or PCCL_, ACCL_). The value is the one that a communicator made now would
 * be given, whoever has set it and by whichever prefix. An unknown key or handle, and a value that is no integer of the type that is asked
 * for, is ncclInvalidArgument. A handle is the library's, and lasts as long as the process. Strings last until the thread asks by
 * the same function again. ncclParamGet() copies an int64_t (switches, bytes, numbers), a double (seconds), or a string with its end;
 * where `maxLen` is too small, *len says what is needed. The table of keys has those that have an effect here; with
 * NCCL_PARAM_DUMP_ALL=true all others, too. ncclParamDumpAll() writes the same, with values, as lines of NCCL_DEBUG=INFO. */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t handle, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t handle, int8_t *out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t handle, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t handle, int16_t *out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t handle, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t handle, int32_t *out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t handle, int64_t *out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t handle, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t handle, uint8_t *out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t handle, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t handle, uint16_t *out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t handle, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t handle, uint32_t *out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t handle, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t handle, uint64_t *out);
ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t handle, const char **out);
ncclResult_t ncclParamGet(ncclParamHandle_t handle, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t handle, void *out, int maxLen, int *len);
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *len);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *len);
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *len);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *len);
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NCCL_H_ */
