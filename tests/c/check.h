/* What the C tests share: a check that says what it saw and where. */
#ifndef CHECK_H_
#define CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accl.h"

static inline void check_code(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t wanted) {
  if (got == wanted) return;
  fprintf(stderr, "%s:%d: %s returned %d (%s), not %d; last error: %s\n", file, line, call, (int)got,
          ncclGetErrorString(got), (int)wanted, ncclGetLastError(NULL));
  exit(1);
}

static inline void check_true(const char *file, int line, const char *condition, int holds) {
  if (holds) return;
  fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", file, line, condition, ncclGetLastError(NULL));
  exit(1);
}

#define RETURNS(wanted, call) check_code(__FILE__, __LINE__, #call, (call), (wanted))
#define WORKS(call) RETURNS(ncclSuccess, call)
#define CHECK(condition) check_true(__FILE__, __LINE__, #condition, (condition) ? 1 : 0)

#endif
