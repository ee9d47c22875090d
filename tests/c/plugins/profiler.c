/* A profiler plugin of VERSION 4, 5 or 6, which writes all that it is told into the file that PROFILED names. FAULT: 1 refuses communicators,
 * 2 refuses events, 3 lacks a function. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* What all versions have in common: version 4's type is the first byte, and it ends earlier. */
typedef struct {
#if VERSION == 4
  uint8_t type;
#else
  uint64_t type;
#endif
  void *parent;
  int rank;
  union {
    struct {
      _Bool captured;
      int depth;
    } group_api;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      int root;
      void *stream;
      _Bool captured;
    } coll_api;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      void *stream;
      _Bool captured;
    } p2p_api;
    struct {
      uint64_t sequence;
      const char *func;
      const void *send;
      void *recv;
      size_t count;
      int root;
      const char *datatype;
      uint8_t channels;
      uint8_t warps;
      const char *algo;
      const char *proto;
    } coll;
    struct {
      const char *func;
      void *buffer;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
  } of;
} Event;

typedef struct { int rank; Logger logger; } Context;
typedef struct { int number; Context *context; } Handle;

static FILE *out;
static int events;

static int begin(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, Logger logger) {
  if (!out) out = fopen(getenv("PROFILED"), "a");
  if (!out || id == 0) return 2;
#if FAULT == 1
  (void)context, (void)mask, (void)name, (void)nodes, (void)ranks, (void)rank, (void)logger;
  fprintf(out, "refused\n");
  fflush(out);
  return 5;
#else
  Context *made = malloc(sizeof *made);
  if (!made) return 2;
  made->rank = rank;
  made->logger = logger;
  *context = made;
  /* Whoever asks for these hears of the calls and groups that they descend from. */
  *mask = 2 | 4;
  logger(3, 1, __FILE__, __LINE__, "plugin %d: rank %d of %d on %d host, %.1f %s %s %c", VERSION, rank, ranks, nodes, 0.5, "of",
         name ? name : "nameless", '!');
  logger(2, 0, __FILE__, __LINE__, "plugin %d warns of %lu", VERSION, 1234567890123ul);
  return 0;
#endif
}

#if VERSION == 4
static int begin4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, Logger logger) {
  return begin(context, id, mask, name, nodes, ranks, rank, logger);
}
#define BEGIN begin4
#else
#define BEGIN begin
#endif

static int start(void *given, void **handle, Event *event) {
#if FAULT == 2
  fprintf(out, "start refused\n");
  (void)given, (void)handle, (void)event, (void)events;
  return 3;
#else
  Context *context = given;
  Handle *made = malloc(sizeof *made);
  if (!made || event->rank != context->rank) return 2;
  made->number = events++;
  made->context = context;
  *handle = made;
  int parent = event->parent ? ((Handle *)event->parent)->number : -1;
  fprintf(out, "start %d rank %d parent %d ", made->number, event->rank, parent);
  switch ((int)event->type) {
    case 2:
      fprintf(out, "Coll %lu %s %zu %s root %d %s %s %s\n", (unsigned long)event->of.coll.sequence, event->of.coll.func,
              event->of.coll.count, event->of.coll.datatype, event->of.coll.root, event->of.coll.algo, event->of.coll.proto,
              event->of.coll.send && event->of.coll.recv ? "buffers" : "none");
      break;
    case 4:
      fprintf(out, "P2p %s %zu %s peer %d %s\n", event->of.p2p.func, event->of.p2p.count, event->of.p2p.datatype,
              event->of.p2p.peer, event->of.p2p.buffer ? "buffer" : "none");
      break;
    case 256: fprintf(out, "GroupApi depth %d captured %d\n", event->of.group_api.depth, event->of.group_api.captured); break;
    case 512:
      fprintf(out, "CollApi %s %zu %s root %d captured %d\n", event->of.coll_api.func, event->of.coll_api.count,
              event->of.coll_api.datatype, event->of.coll_api.root, event->of.coll_api.captured);
      break;
    case 1024:
      fprintf(out, "P2pApi %s %zu %s captured %d\n", event->of.p2p_api.func, event->of.p2p_api.count,
              event->of.p2p_api.datatype, event->of.p2p_api.captured);
      break;
    default: fprintf(out, "unknown\n");
  }
  return 0;
#endif
}

static int stop(void *given) {
  Handle *handle = given;
  fprintf(out, "stop %d\n", handle->number);
  free(handle);
  return 0;
}

static int record(void *handle, int state, void *arguments) {
  fprintf(out, "state %d of %d%s\n", state, ((Handle *)handle)->number, arguments ? " with arguments" : "");
  return 0;
}

static int finalize(void *given) {
  Context *context = given;
  fprintf(out, "finalize rank %d\n", context->rank);
  fflush(out);
  free(context);
  return 0;
}

typedef struct {
  const char *name;
#if VERSION == 4
  int (*init)(void **, int *, const char *, uint64_t, int, int, int, Logger);
#else
  int (*init)(void **, uint64_t, int *, const char *, int, int, int, Logger);
#endif
  int (*start)(void *, void **, Event *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
} Table;

#define JOIN(name, version) name##version
#define NAMED(name, version) JOIN(name, version)
extern const Table NAMED(ncclProfiler_v, VERSION);
const Table NAMED(ncclProfiler_v, VERSION) = {"test", BEGIN, FAULT == 3 ? NULL : start, stop, record, finalize};
