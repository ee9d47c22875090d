/* A tool takes the place of ncclX and forwards to pncclX: the twin must not come back to the tool's function. */
#include "check.h"

static int seen;

ncclResult_t ncclGetVersion(int *version) {
  seen++;
  return pncclGetVersion(version);
}

int main(void) {
  int version = 0;
  WORKS(ncclGetVersion(&version));
  CHECK(version == 23007 && seen == 1);
  return 0;
}
