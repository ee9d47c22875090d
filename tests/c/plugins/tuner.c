/* A tuner plugin of VERSION 4, 5 or 6, which makes the tree the cheapest from 1 KiB on, and writes what it is told into the file that TUNED names.
 * FAULT: 1 refuses communicators, 2 fails when it is asked, 3 writes nonsense, 4 chooses what is not there, 5 lacks a function. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TREE = 0, RING = 1, NVLS = 4, SIMPLE = 2, PROTOCOLS = 3 };

typedef void (*Logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef struct { int count, least, most; } Domains;

static FILE *out;
static int context;

static int begin(void **given, size_t ranks, size_t nodes, Logger logger) {
  if (!out) out = fopen(getenv("TUNED"), "a");
  if (!out) return 2;
  fprintf(out, "init %d ranks %zu nodes %zu\n", VERSION, ranks, nodes);
  fflush(out);
  *given = &context;
  logger(3, 0x40, __FILE__, __LINE__, "tuner %d", VERSION);
  return FAULT == 1 ? 5 : 0;
}

#if VERSION == 4
static int init(size_t ranks, size_t nodes, Logger logger, void **given) { return begin(given, ranks, nodes, logger); }
#else
static int init(void **given, uint64_t id, size_t ranks, size_t nodes, Logger logger, Domains *domains, double *constants) {
  if (id == 0 || domains->count != 1 || domains->least != 2 || domains->most != 2) return 4;
  for (int i = 0; i < 200; i++) constants[i] = i;
  return begin(given, ranks, nodes, logger);
}
#endif

static int ask(void *given, int function, size_t bytes, int operations, float **given_costs, int algorithms, int protocols,
               int registered, int *channels) {
  float(*costs)[PROTOCOLS] = (float(*)[PROTOCOLS])given_costs;
  if (given != &context || algorithms != 7 || protocols != PROTOCOLS || operations != 1 || registered != 0) return 4;
  fprintf(out, "ask %d %zu tree %d ring %d nvls %d\n", function, bytes, costs[TREE][SIMPLE] > 0, costs[RING][SIMPLE] > 0,
          costs[NVLS][SIMPLE] == -1);
  fflush(out);
  *channels = 1;
#if FAULT == 2
  return 3;
#elif FAULT == 3
  costs[RING][SIMPLE] = -7;
#elif FAULT == 4
  costs[NVLS][SIMPLE] = 0;
#else
  if (bytes >= 1024 && costs[TREE][SIMPLE] > 0) costs[TREE][SIMPLE] = 0;
#endif
  return 0;
}

static int end(void *given) {
  fprintf(out, "end %d\n", given == &context);
  fflush(out);
  return 0;
}

#if VERSION == 6
static int chunk(void *given, int function, size_t bytes, int algorithm, int protocol, int channels, size_t *chunk_bytes) {
  (void)given, (void)function, (void)bytes, (void)algorithm, (void)protocol, (void)channels, (void)chunk_bytes;
  return 0;
}
#endif

typedef struct {
  const char *name;
#if VERSION == 4
  int (*init)(size_t, size_t, Logger, void **);
#else
  int (*init)(void **, uint64_t, size_t, size_t, Logger, Domains *, double *);
#endif
  int (*ask)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*end)(void *);
#if VERSION == 6
  int (*chunk)(void *, int, size_t, int, int, int, size_t *);
#endif
} Table;

#define JOIN(name, version) name##version
#define NAMED(name, version) JOIN(name, version)
extern const Table NAMED(ncclTunerPlugin_v, VERSION);
const Table NAMED(ncclTunerPlugin_v, VERSION) = {
    .name = "test", .init = init, .ask = FAULT == 5 ? NULL : ask, .end = end,
#if VERSION == 6
    .chunk = chunk,
#endif
};
