/* Settings by key: values as each type, keys, and what is refused. The test gives the environment that is set here. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include "check.h"

#define BAD ncclInvalidArgument

static ncclParamHandle_t bound(const char *key) {
  ncclParamHandle_t handle = NULL;
  WORKS(ncclParamBind(&handle, key));
  CHECK(handle != NULL);
  return handle;
}

static void set(const char *name, const char *value) { CHECK(setenv(name, value, 1) == 0); }

static void handles(void) {
  /* One for each parameter, by whichever prefix, and unmodified for a key that there is not. */
  CHECK(bound("NCCL_TIMEOUT") == bound("ACCL_TIMEOUT") && bound("NCCL_TIMEOUT") != bound("NCCL_ALGO"));
  ncclParamHandle_t handle = (ncclParamHandle_t)(void *)&handle, before = handle;
  RETURNS(BAD, ncclParamBind(&handle, "NCCL_NO_SUCH_PARAMETER"));
  RETURNS(BAD, ncclParamBind(&handle, NULL));
  RETURNS(BAD, ncclParamBind(NULL, "NCCL_ALGO"));
  CHECK(handle == before);
  int32_t number = 7;
  RETURNS(BAD, ncclParamGetI32(NULL, &number));
  RETURNS(BAD, ncclParamGetI32(handle, &number));
  RETURNS(BAD, ncclParamGetI32(bound("NCCL_TIMEOUT"), NULL));
  CHECK(number == 7);
}

#define READS(name, type, key, expected)                 \
  do {                                                   \
    type number = 0;                                     \
    WORKS(ncclParamGet##name(bound(key), &number));      \
    CHECK(number == (type)(expected));                   \
  } while (0)
#define REFUSES(name, type, key)                         \
  do {                                                   \
    type number = 77;                                    \
    RETURNS(BAD, ncclParamGet##name(bound(key), &number)); \
    CHECK(number == 77);                                 \
  } while (0)

static void integers(void) {
  set("NCCL_SEGMENT_BYTES", "64K");
  READS(I32, int32_t, "NCCL_SEGMENT_BYTES", 65536);
  READS(U32, uint32_t, "NCCL_SEGMENT_BYTES", 65536);
  READS(I64, int64_t, "NCCL_SEGMENT_BYTES", 65536);
  READS(U64, uint64_t, "NCCL_SEGMENT_BYTES", 65536);
  REFUSES(I8, int8_t, "NCCL_SEGMENT_BYTES");
  REFUSES(U8, uint8_t, "NCCL_SEGMENT_BYTES");
  REFUSES(I16, int16_t, "NCCL_SEGMENT_BYTES");
  REFUSES(U16, uint16_t, "NCCL_SEGMENT_BYTES");
  /* Defaults, and signs. */
  READS(I8, int8_t, "NCCL_IB_GID_INDEX", -1);
  REFUSES(U64, uint64_t, "NCCL_IB_GID_INDEX");
  READS(U8, uint8_t, "NCCL_CROSS_MEMORY", 1);
  READS(I16, int16_t, "NCCL_WARN_AFTER", 10);
  set("NCCL_WARN_AFTER", "0.5");
  REFUSES(I64, int64_t, "NCCL_WARN_AFTER");
  /* A value is read when it is asked for; the nearest prefix counts, whatever the key's. */
  set("NCCL_WARN_AFTER", "6");
  READS(U16, uint16_t, "NCCL_WARN_AFTER", 6);
  set("ACCL_WARN_AFTER", "5");
  READS(I32, int32_t, "NCCL_WARN_AFTER", 5);
  REFUSES(I32, int32_t, "NCCL_ALGO");
  /* What has no effect here is known as well. */
  REFUSES(I32, int32_t, "NCCL_NTHREADS");
  set("NCCL_NTHREADS", "0x200");
  READS(I32, int32_t, "NCCL_NTHREADS", 512);
}

static void texts(void) {
  const char *text = NULL, *other = NULL;
  int length = -1;
  set("NCCL_ALGO", "ring");
  WORKS(ncclParamGetStr(bound("NCCL_ALGO"), &text));
  CHECK(strcmp(text, "ring") == 0);
  WORKS(ncclParamGetParameter("NCCL_SEGMENT_BYTES", &other, &length));
  CHECK(strcmp(other, "64K") == 0 && length == 3 && strcmp(text, "ring") == 0);
  WORKS(ncclParamGetParameter("NCCL_HOSTID", &other, &length));
  CHECK(strcmp(other, "") == 0 && length == 0);
  RETURNS(BAD, ncclParamGetStr(NULL, &text));
  RETURNS(BAD, ncclParamGetStr(bound("NCCL_ALGO"), NULL));
  RETURNS(BAD, ncclParamGetParameter(NULL, &text, &length));
  RETURNS(BAD, ncclParamGetParameter("NCCL_NO_SUCH_PARAMETER", &text, &length));
  RETURNS(BAD, ncclParamGetParameter("NCCL_ALGO", NULL, &length));
  RETURNS(BAD, ncclParamGetParameter("NCCL_ALGO", &text, NULL));
}

static void raw(void) {
  char text[8];
  int64_t number = 0;
  double seconds = 0;
  int length = 0;
  WORKS(ncclParamGet(bound("NCCL_ALGO"), text, sizeof text, &length));
  CHECK(length == 5 && strcmp(text, "ring") == 0);
  RETURNS(BAD, ncclParamGet(bound("NCCL_ALGO"), text, 4, &length));
  CHECK(length == 5);
  WORKS(ncclParamGet(bound("NCCL_SEGMENT_BYTES"), &number, sizeof number, &length));
  CHECK(length == 8 && number == 65536);
  WORKS(ncclParamGet(bound("NCCL_WARN_AFTER"), &seconds, sizeof seconds, &length));
  CHECK(length == 8 && seconds == 5);
  RETURNS(BAD, ncclParamGet(bound("NCCL_ALGO"), NULL, 4, &length));
  RETURNS(BAD, ncclParamGet(bound("NCCL_ALGO"), text, -1, &length));
  RETURNS(BAD, ncclParamGet(bound("NCCL_ALGO"), text, sizeof text, NULL));
}

static int listed(const char **table, int length, const char *key) {
  int count = 0;
  for (int i = 0; i < length; i++) count += strcmp(table[i], key) == 0;
  return count;
}

static void keys(void) {
  const char **table = NULL;
  int length = -1, all = -1;
  RETURNS(BAD, ncclParamGetAllParameterKeys(NULL, &length));
  RETURNS(BAD, ncclParamGetAllParameterKeys(&table, NULL));
  WORKS(ncclParamGetAllParameterKeys(&table, &length));
  CHECK(listed(table, length, "NCCL_ALGO") == 1 && listed(table, length, "NCCL_NTHREADS") == 0);
  for (int i = 0; i < length; i++) CHECK(listed(table, length, table[i]) == 1 && bound(table[i]) != NULL);
  set("NCCL_PARAM_DUMP_ALL", "TRUE");
  WORKS(ncclParamGetAllParameterKeys(&table, &all));
  CHECK(all > length && listed(table, all, "NCCL_NTHREADS") == 1 && table[all] == NULL);
  set("NCCL_PARAM_DUMP_ALL", "perhaps");
  RETURNS(BAD, ncclParamGetAllParameterKeys(&table, &all));
  set("NCCL_PARAM_DUMP_ALL", "0");
}

int main(void) {
  handles();
  integers();
  texts();
  raw();
  keys();
  ncclParamDumpAll();
  pncclParamDumpAll();
  return 0;
}
