/* What needs no communicator: version, texts, the last error, groups, host streams, memory. */
#include <stddef.h>

#include "check.h"

static void version(void) {
  int version = 0;
  WORKS(ncclGetVersion(&version));
  CHECK(version == 23007 && version == NCCL_VERSION_CODE);
  version = 0;
  WORKS(pncclGetVersion(&version));
  CHECK(version == 23007);
}

static void texts(void) {
  static const char *const wanted[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
      "timeout",
      "unknown result code",
  };
  for (int code = 0; code < 10; code++) CHECK(strcmp(ncclGetErrorString((ncclResult_t)code), wanted[code]) == 0);
  CHECK(strcmp(ncclGetErrorString((ncclResult_t)100), "unknown result code") == 0);
  CHECK(strcmp(pncclGetErrorString((ncclResult_t)-1), "unknown result code") == 0);
}

static void last_error(void) {
  CHECK(strcmp(ncclGetLastError(NULL), "") == 0);
  RETURNS(ncclInvalidArgument, ncclGetVersion(NULL));
  const char *first = ncclGetLastError(NULL);
  CHECK(strstr(first, "ncclGetVersion") != NULL && strstr(first, "NULL") != NULL);
  /* Success leaves the text alone, and the communicator does not matter. */
  version();
  CHECK(strcmp(ncclGetLastError((ncclComm_t)(void *)16), first) == 0);
}

static void groups(void) {
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(NULL));
  WORKS(ncclGroupStart());
  WORKS(ncclGroupStart());
  WORKS(ncclGroupEnd());
  WORKS(ncclGroupEnd());
  RETURNS(ncclInvalidUsage, ncclGroupEnd());

  WORKS(ncclGroupStart());
  WORKS(ncclGroupSimulateEnd(NULL));

  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(&info));
  WORKS(ncclGroupStart());
  WORKS(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime == 0);
  for (size_t bytes = 0; bytes < sizeof info; bytes++) {
    ncclSimInfo_t shorter = NCCL_SIM_INFO_INITIALIZER;
    shorter.size = bytes;
    WORKS(ncclGroupStart());
    ncclResult_t expected = bytes < offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float) ? ncclInvalidArgument : ncclSuccess;
    RETURNS(expected, ncclGroupSimulateEnd(&shorter));
    CHECK(shorter.estimatedTime == (expected == ncclSuccess ? 0 : -1));
  }
  info.magic = 0;
  WORKS(ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclGroupSimulateEnd(&info));
  /* Each of them ended its group. */
  RETURNS(ncclInvalidUsage, ncclGroupEnd());

  /* What fails inside also fails the end, and the next group is a new one. */
  ncclComm_t comm;
  WORKS(ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclCommInitAll(&comm, -1, NULL));
  RETURNS(ncclInvalidArgument, ncclGroupEnd());
  WORKS(ncclGroupStart());
  WORKS(ncclGroupEnd());
}

static void streams(void) {
  acclStream_t stream = NULL, other = NULL;
  WORKS(acclStreamCreate(&stream));
  WORKS(acclStreamCreate(&other));
  CHECK(stream != NULL && other != NULL && stream != other);
  WORKS(acclStreamSynchronize(stream));
  WORKS(acclStreamQuery(stream));
  WORKS(acclStreamDestroy(stream));
  RETURNS(ncclInvalidArgument, acclStreamSynchronize(stream));
  CHECK(strstr(ncclGetLastError(NULL), "already been destroyed") != NULL);
  RETURNS(ncclInvalidArgument, acclStreamQuery(stream));
  RETURNS(ncclInvalidArgument, acclStreamDestroy(stream));
  WORKS(acclStreamDestroy(other));
  RETURNS(ncclInvalidArgument, acclStreamSynchronize((cudaStream_t)(void *)0x1234));
  RETURNS(ncclInvalidArgument, acclStreamCreate(NULL));
  WORKS(acclStreamSynchronize(NULL));
  WORKS(acclStreamQuery(NULL));
  WORKS(acclStreamDestroy(NULL));
}

/* Measuring, without and with room for what it found. */
static void tuning(void) {
  char text[16 << 10];
  memset(text, 'x', sizeof text);
  WORKS(acclTune("", NULL, 0));
  WORKS(acclTune("", text, 12));
  CHECK(strcmp(text, "accl-tune 1") == 0 && text[12] == 'x');
  WORKS(acclTune("", text, sizeof text));
  CHECK(strstr(text, "\nhandover = ") != NULL && strstr(text, "\n# not written\n") != NULL);
  RETURNS(ncclInvalidArgument, acclTune("", text, 0));
  RETURNS(ncclSystemError, acclTune("/proc/nowhere/figures", text, sizeof text));
  CHECK(strstr(ncclGetLastError(NULL), "cannot write /proc/nowhere/figures") != NULL);
}

static void memory(void) {
  void *memory = NULL;
  WORKS(ncclMemAlloc(&memory, 100000));
  CHECK(memory != NULL);
  memset(memory, 0x5a, 100000);
  WORKS(ncclMemFree(memory));
  WORKS(ncclMemFree(NULL));
  RETURNS(ncclInvalidArgument, ncclMemFree(&memory));
  RETURNS(ncclUnhandledCudaError, ncclMemAlloc(NULL, 16));
  memory = &memory;
  WORKS(ncclMemAlloc(&memory, 0));
  CHECK(memory == NULL);
}

static void configurations(void) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  ncclComm_t comm = (ncclComm_t)(void *)16;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "NCCL_CONFIG_INITIALIZER") != NULL);
  ncclConfig_t bad = NCCL_CONFIG_INITIALIZER;
  bad.blocking = 2;
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &bad));
  CHECK(strstr(ncclGetLastError(NULL), "blocking") != NULL);
  RETURNS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 1, 0, 1, &id, &bad));
}

int main(void) {
  last_error();
  version();
  texts();
  groups();
  streams();
  tuning();
  memory();
  configurations();
  return 0;
}
