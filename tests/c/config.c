/* ncclConfig_t of every release, as long as its header made it and followed by a page that nobody may touch. */
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static const struct { unsigned int version; size_t bytes; } clients[] = {
    {21400, 24}, {21703, 40}, {21801, 48}, {22105, 48}, {22503, 48},  {22602, 48},
    {22703, 72}, {22803, 80}, {22902, 88}, {23003, 96}, {23007, 96}, {23102, 112}, {23203, 120}};

/* Where a struct of that many bytes ends with its page; made once. */
static char *end_of_page(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
  return pages + page;
}

static ncclResult_t init(ncclConfig_t *config) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  WORKS(ncclGetUniqueId(&id));
  ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, config);
  CHECK((comm != NULL) == (result == ncclSuccess));
  if (comm != NULL) WORKS(ncclCommDestroy(comm));
  return result;
}

int main(void) {
  char *end = end_of_page();
  for (size_t i = 0; i < sizeof clients / sizeof *clients; i++) {
    ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
    whole.size = clients[i].bytes;
    whole.version = clients[i].version;
    whole.blocking = 1;
    void *config = end - clients[i].bytes;
    memcpy(config, &whole, clients[i].bytes);
    WORKS(init(config));

    /* Padding that a later release made a field holds anything. */
    if (clients[i].version < 21700) memset(end - 4, 0xa5, 4);
    if (clients[i].version >= 21801 && clients[i].version < 22600) memset(end - 4, 0xa5, 4);
    if (clients[i].version == 23003) memset(end - 4, 0xa5, 4);
    WORKS(init(config));

    whole.blocking = 5;
    memcpy(config, &whole, clients[i].bytes);
    RETURNS(ncclInvalidArgument, init(config));
    whole.magic = 0;
    memcpy(config, &whole, clients[i].bytes);
    RETURNS(ncclInvalidArgument, init(config));
  }
  return 0;
}
