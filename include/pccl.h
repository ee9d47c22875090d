/*
 * pccl.h - the C interface of ACCL-P under the names of PCCL, T-Head's library for the PPU.
 *
 * Programs written against PCCL compile with this header and run with libpccl.so.2 of this project. It needs no HGGC
 * header: streams are opaque pointers of the same type as HGGC's. Include hggc_runtime.h first where both are wanted.
 *
 * PCCL's own header is not public. Functions, types, values and constants here are those of its published guide (2.1.1),
 * which gives the numbers of codes, element types and operators as NCCL has them. What the guide does not say, and this header
 * had to choose:
 *  - The layout of pcclConfig_t, and what its initializer puts into it: here those of NCCL 2.27's ncclConfig_t, from which PCCL
 *    comes. A program that fills one must be compiled with this header. One of another layout is refused by its first words
 *    (pcclInvalidArgument) and not read any further.
 *  - How the version becomes a number: here by NCCL's formula.
 *  - The texts of pcclGetErrorString().
 *
 * The functions are those of nccl.h under other names: what is said there of arguments, results and buffers holds here too. Handles
 * are the same, so that accl.h, whose functions the library has as well, takes them after a cast. Time limits, which PCCL does not
 * have, end with pcclRemoteError.
 */
#ifndef PCCL_H_
#define PCCL_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __HGGC_RUNTIME_H__
typedef struct HGstream_st *hggcStream_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version -------------------------------------------------------------------------------------------- */

#define PCCL_MAJOR 2
#define PCCL_MINOR 1
#define PCCL_PATCH 1
#define PCCL_SUFFIX ""
#define PCCL_VERSION_CODE 2101

#define PCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

/* ---- Constants ------------------------------------------------------------------------------------------ */

#define PCCL_COMM_NULL NULL
#define PCCL_UNIQUE_ID_BYTES 128

#define PCCL_CONFIG_UNDEF_INT INT_MIN
#define PCCL_CONFIG_UNDEF_PTR NULL

#define PCCL_SPLIT_NOCOLOR (-1)

#define PCCL_WIN_DEFAULT 0x00
#define PCCL_WIN_COLL_SYMMETRIC 0x01

#define PCCL_CTA_POLICY_DEFAULT 0x00
#define PCCL_CTA_POLICY_EFFICIENCY 0x01
#define PCCL_CTA_POLICY_ZERO 0x02

#define PCCL_SHRINK_DEFAULT 0x00
#define PCCL_SHRINK_ABORT 0x01

/* ---- Types ---------------------------------------------------------------------------------------------- */

typedef struct pcclComm *pcclComm_t;
typedef struct pcclWindow *pcclWindow_t;

typedef struct pcclUniqueId { char internal[PCCL_UNIQUE_ID_BYTES]; } pcclUniqueId;

typedef enum pcclResult {
  pcclSuccess = 0,
  pcclUnhandledHggcError = 1, /* a call of the device driver failed */
  pcclSystemError = 2,        /* the operating system refused: memory, descriptors, sockets, files */
  pcclInternalError = 3,      /* a defect of this library */
  pcclInvalidArgument = 4,    /* a bad argument of this one call */
  pcclInvalidUsage = 5,       /* good arguments in an illegal situation, or a feature that is not there */
  pcclRemoteError = 6,        /* a peer is gone, unreachable, or has not come within a time limit */
  pcclInProgress = 7,         /* not an error: a non-blocking operation is still running */
  pcclNumResults = 8
} pcclResult_t;

typedef enum pcclRedOp {
  pcclSum = 0,
  pcclProd = 1,
  pcclMax = 2,
  pcclMin = 3,
  pcclAvg = 4,
  pcclNumOps = 5,
  pcclMaxRedOp = 0x7fffffff
} pcclRedOp_t;

typedef enum pcclDataType {
  pcclInt8 = 0, pcclChar = 0,
  pcclUint8 = 1,
  pcclInt32 = 2, pcclInt = 2,
  pcclUint32 = 3,
  pcclInt64 = 4,
  pcclUint64 = 5,
  pcclFloat16 = 6, pcclHalf = 6,
  pcclFloat32 = 7, pcclFloat = 7,
  pcclFloat64 = 8, pcclDouble = 8,
  pcclBfloat16 = 9,
  pcclFloat8e4m3 = 10,
  pcclFloat8e5m2 = 11,
  pcclNumTypes = 12
} pcclDataType_t;

typedef enum pcclScalarResidence { pcclScalarDevice = 0, pcclScalarHostImmediate = 1 } pcclScalarResidence_t;

/* Start from PCCL_CONFIG_INITIALIZER and set what matters. The guide documents blocking, minCTAs, maxCTAs, netName, splitShare,
 * commName, CTAPolicy and shrinkShare; the others keep the place that they have in NCCL. */
typedef struct pcclConfig {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 0: calls return pcclInProgress; ask pcclCommGetAsyncError() */
  int cgaClusterSize;
  int minCTAs;             /* > 0, <= maxCTAs */
  int maxCTAs;             /* > 0 */
  const char *netName;
  int splitShare;          /* 0 or 1 */
  int trafficClass;
  const char *commName;    /* for logs and tools */
  int collnetEnable;
  int CTAPolicy;           /* mask of PCCL_CTA_POLICY_* */
  int shrinkShare;         /* 0 or 1 */
  int nvlsCTAs;
} pcclConfig_t;

#define PCCL_CONFIG_INITIALIZER {                                                 \
  sizeof(pcclConfig_t), 0xcafebeefU, PCCL_VERSION_CODE,                           \
  PCCL_CONFIG_UNDEF_INT, PCCL_CONFIG_UNDEF_INT, /* blocking, cgaClusterSize */    \
  PCCL_CONFIG_UNDEF_INT, PCCL_CONFIG_UNDEF_INT, /* minCTAs, maxCTAs */            \
  PCCL_CONFIG_UNDEF_PTR,                        /* netName */                     \
  PCCL_CONFIG_UNDEF_INT, PCCL_CONFIG_UNDEF_INT, /* splitShare, trafficClass */    \
  PCCL_CONFIG_UNDEF_PTR,                        /* commName */                    \
  PCCL_CONFIG_UNDEF_INT, PCCL_CONFIG_UNDEF_INT, /* collnetEnable, CTAPolicy */    \
  PCCL_CONFIG_UNDEF_INT, PCCL_CONFIG_UNDEF_INT  /* shrinkShare, nvlsCTAs */       \
}

/* ---- Management ----------------------------------------------------------------------------------------- */

/* PCCL_VERSION_CODE of the library that is loaded. */
pcclResult_t pcclGetVersion(int *version);

pcclResult_t pcclGetUniqueId(pcclUniqueId *uniqueId);

pcclResult_t pcclCommInitRank(pcclComm_t *comm, int nranks, pcclUniqueId commId, int rank);
pcclResult_t pcclCommInitAll(pcclComm_t *comms, int ndev, const int *devlist);
pcclResult_t pcclCommInitRankConfig(pcclComm_t *comm, int nranks, pcclUniqueId commId, int rank,
                                    pcclConfig_t *config);
pcclResult_t pcclCommInitRankScalable(pcclComm_t *newcomm, int nranks, int myrank, int nId, pcclUniqueId *commIds,
                                      pcclConfig_t *config);
pcclResult_t pcclCommSplit(pcclComm_t comm, int color, int key, pcclComm_t *newcomm, pcclConfig_t *config);
pcclResult_t pcclCommShrink(pcclComm_t comm, int *excludeRanksList, int excludeRanksCount, pcclComm_t *newcomm,
                            pcclConfig_t *config, int shrinkFlags);

pcclResult_t pcclCommFinalize(pcclComm_t comm);
pcclResult_t pcclCommDestroy(pcclComm_t comm);
pcclResult_t pcclCommAbort(pcclComm_t comm);
pcclResult_t pcclCommGetAsyncError(pcclComm_t comm, pcclResult_t *asyncError);

pcclResult_t pcclCommCount(const pcclComm_t comm, int *count);
/* Number of the device; -1 in host memory. */
pcclResult_t pcclCommCuDevice(const pcclComm_t comm, int *device);
pcclResult_t pcclCommUserRank(const pcclComm_t comm, int *rank);

const char *pcclGetErrorString(pcclResult_t result);
const char *pcclGetLastError(pcclComm_t comm);

/* ---- Memory --------------------------------------------------------------------------------------------- */

pcclResult_t pcclMemAlloc(void **ptr, size_t size);
pcclResult_t pcclMemFree(void *ptr);
pcclResult_t pcclCommRegister(const pcclComm_t comm, void *buff, size_t size, void **handle);
pcclResult_t pcclCommDeregister(const pcclComm_t comm, void *handle);
pcclResult_t pcclCommWindowRegister(pcclComm_t comm, void *buff, size_t size, pcclWindow_t *win, int winFlags);
pcclResult_t pcclCommWindowDeregister(pcclComm_t comm, pcclWindow_t win);

/* ---- Data ----------------------------------------------------------------------------------------------- */

pcclResult_t pcclAllReduce(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype,
                           pcclRedOp_t op, pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclReduce(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype, pcclRedOp_t op,
                        int root, pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclBroadcast(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype, int root,
                           pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclBcast(void *buff, size_t count, pcclDataType_t datatype, int root, pcclComm_t comm,
                       hggcStream_t stream);
pcclResult_t pcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, pcclDataType_t datatype,
                           pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, pcclDataType_t datatype,
                               pcclRedOp_t op, pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype,
                          pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclGather(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype, int root,
                        pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclScatter(const void *sendbuff, void *recvbuff, size_t count, pcclDataType_t datatype, int root,
                         pcclComm_t comm, hggcStream_t stream);
pcclResult_t pcclSend(const void *sendbuff, size_t count, pcclDataType_t datatype, int peer, pcclComm_t comm,
                      hggcStream_t stream);
pcclResult_t pcclRecv(void *recvbuff, size_t count, pcclDataType_t datatype, int peer, pcclComm_t comm,
                      hggcStream_t stream);

pcclResult_t pcclGroupStart(void);
pcclResult_t pcclGroupEnd(void);

/* The guide says that PCCL itself has no operators of programs; here they work. */
pcclResult_t pcclRedOpCreatePreMulSum(pcclRedOp_t *op, void *scalar, pcclDataType_t datatype,
                                      pcclScalarResidence_t residence, pcclComm_t comm);
pcclResult_t pcclRedOpDestroy(pcclRedOp_t op, pcclComm_t comm);

/* ---- Variables ------------------------------------------------------------------------------------------
 * Tools look in the library of ACCL-P for whether it keeps C4 statistics. This one keeps none: each is and stays 0, whatever a
 * tool stores there; what it keeps instead is shown by `accl status`. */
extern bool nccl_c4_stats_enable;
extern int nccl_c4_stats_mode;
extern bool nccl_coll_stats_enable;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PCCL_H_ */
