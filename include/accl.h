/*
 * accl.h - what ACCL-P offers beyond the interface of NCCL.
 *
 * Host streams make calls in host memory asynchronous: operations given the same stream run one after the other,
 * in the order of the calls, while the program goes on. Pass a host stream wherever nccl.h wants a cudaStream_t.
 *
 * acclExplain(), acclDescribe() and acclTune() are for tools: how a call is carried out, who reaches whom by what, and the
 * figures by which that is chosen.
 */
#ifndef ACCL_H_
#define ACCL_H_

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The same type as cudaStream_t, so that calls of nccl.h take it as it is. */
typedef cudaStream_t acclStream_t;

/* Makes a stream. `stream` NULL: ncclInvalidArgument. */
ncclResult_t acclStreamCreate(cudaStream_t *stream);

/* Waits until everything given to the stream is done. NULL, which is no stream of ours, is always done. What failed
 * on the way is in the state of its communicator: ncclCommGetAsyncError(). */
ncclResult_t acclStreamSynchronize(cudaStream_t stream);

/* ncclSuccess when everything given to the stream is done, ncclInProgress while it is not. */
ncclResult_t acclStreamQuery(cudaStream_t stream);

/* Waits as acclStreamSynchronize() does, then frees the stream. NULL is no error. */
ncclResult_t acclStreamDestroy(cudaStream_t stream);

/* As ncclCommInitRankConfig(), for a communicator of host memory, whatever devices the process uses; its calls take NULL or a stream
 * from above. All ranks must make it so, within `limit_ms` (0: what ACCL_INIT_TIMEOUT says), else it fails with ncclTimeout and the names
 * of those who have not. */
ncclResult_t acclCommInitRankHost(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config,
                                  int64_t limit_ms);

/* Messages with tags. Any number of sends and receives of a rank may be under way, on as many threads as there are; none keeps another
 * one, or a collective call of another communicator, waiting. A receive takes the first message with its tag that `peer` (ACCL_ANY_RANK: any
 * other rank) has sent; of several that suit a message, the one that was asked for first gets it. A message that nobody
 * has asked for stays at its sender, unless a receive waits for one behind it: then it is kept in memory of this library. Sizes must be equal.
 *
 * They take a communicator of their own, of host memory: there ncclSend and ncclRecv are ncclInvalidUsage, and so are these where those were
 * used. A tag is not negative. The buffer belongs to the library until the request is over. One that is not over after `limit_ms` (0: no
 * limit) fails with ncclTimeout, and with it, as with any failure of one, all that is under way on the communicator.
 * Whatever is under way when that is destroyed or aborted fails with ncclInvalidUsage. */
typedef struct acclRequest *acclRequest_t;
#define ACCL_ANY_RANK (-1)
ncclResult_t acclIsend(const void *buffer, size_t bytes, int peer, int tag, ncclComm_t comm, int64_t limit_ms,
                       acclRequest_t *request);
ncclResult_t acclIrecv(void *buffer, size_t bytes, int peer, int tag, ncclComm_t comm, int64_t limit_ms,
                       acclRequest_t *request);

/* ncclSuccess once a request is over, ncclInProgress before, else what it failed with. Waits for at most so long; 0: without an end.
 * Who waits moves all messages of the communicator meanwhile; what nobody waits for moves as well, and a little later. */
ncclResult_t acclRequestTest(acclRequest_t request);
ncclResult_t acclRequestWait(acclRequest_t request, int64_t limit_ms);

/* Of a receive that is over: the rank that has sent the message. */
ncclResult_t acclRequestSource(acclRequest_t request, int *source);

/* Forgets a request; what is under way goes on. NULL is no error. */
ncclResult_t acclRequestFree(acclRequest_t request);

/* The sentence of the last call that failed on this thread, valid until its next call of this function: ncclGetLastError() tells of all
 * threads. "" if none has. */
const char *acclLastErrorOfThread(void);

/* Time limits of one communicator, beside those that ACCL_TIMEOUT and ACCL_WARN_AFTER give to all: options for the list `ext` of
 * the ncclCollConfig_t of any collective call. Each rank sets its own; they hold for this call and those that come after it on that
 * communicator, even if it fails for another reason, until another call changes them. What is queued on streams by then keeps its own limits. val.i is in milliseconds, 0: no limit. A negative value, or another option of
 * this vendor: ncclInvalidArgument. NCCL ignores them.
 *
 *     ncclConfigExt_t limit = { NULL, { ACCL_VENDOR, ACCL_OPTION_TIMEOUT_MS }, { .i = 5000 } };
 *     ncclCollConfig_t config = NCCL_COLL_CONFIG_INITIALIZER;
 *     config.ext = &limit;
 */
#define ACCL_VENDOR 0x4143
/* How long an operation may stand still before it fails (ncclTimeout) with a text that names the late ranks. */
#define ACCL_OPTION_TIMEOUT_MS 1
/* After how long a wait explains itself, once, as a warning. */
#define ACCL_OPTION_WARN_AFTER_MS 2

/* More options for the same list, for the one call that brings them; all ranks must give the same.
 * 1: the result of a reduction depends on nothing but the inputs in the order of ranks, as with ACCL_DETERMINISTIC=1: the call goes direct, whatever ACCL_ALGO and
 * algSelection say (with a forced selection that has no direct: ncclInvalidUsage). 0: nothing. Other values: ncclInvalidArgument. */
#define ACCL_OPTION_DETERMINISTIC 3
/* Any number, without an effect: calls of one communicator keep their order, and nothing is shared that one stream could have before others. */
#define ACCL_OPTION_PRIORITY 4

/* Says what a call would do, without doing it: a local question, which no peer needs to ask as well. `operation` is
 * allreduce, reduce, broadcast, allgather, reducescatter, alltoall, gather or scatter; `count` and `datatype` are those of
 * the call. `way` gets a name of at most 31 characters, and its end, cut at `way_bytes`: copied, lent-flat, lent-owned, passed, ring, tree,
 * rd, alone (one rank), nothing (no elements), and others between hosts (docs/tuning.md). `predicted_ns` gets the nanoseconds that it should take by the figures of
 * the machine (docs/tuning.md). A pointer is NULL, or an argument unknown: ncclInvalidArgument. */
ncclResult_t acclExplain(ncclComm_t comm, const char *operation, size_t count, ncclDataType_t datatype, char *way,
                         size_t way_bytes, double *predicted_ns);

/* Writes what the rank of `comm` knows into `text`, as a JSON object: "rank", "ranks", "host", "host_key" (equal for ranks that
 * share memory), "pid", "port", "interfaces" (told to others, best first), and for each of the "peers" its "rank", the
 * "transport" (threads, shared-memory, shared-memory-rings or tcp), the "reason", and for tcp "address", "interface" and
 * whether it was "proved" by a connection from here. A local question. `comm` NULL: what this process would tell
 * others of itself: "told" and "not_told" interfaces, "port" (null: see "port_error"), "tune_cache" (a file, or null). More fields
 * may come. `text` NULL, or too small for all of it with its end: ncclInvalidArgument; the error's text says what is needed. */
ncclResult_t acclDescribe(ncclComm_t comm, char *text, size_t text_bytes);

/* Measures the figures of this machine, in half a second and with 200 MB of memory, best while nothing else runs; then
 * writes them to the file `path`. NULL: where communicators look for them until the machine is started anew. "": nowhere.
 * `text`, unless it is NULL, gets what was written, and its end, cut at `text_bytes` (16 KiB are enough). */
ncclResult_t acclTune(const char *path, char *text, size_t text_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ACCL_H_ */
