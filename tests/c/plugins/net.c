/* A network plugin of VERSION 8 to 12, over TCP connections of this machine. It counts what it is asked for, and says so at the end of the process in a
 * file beside the one that NET_TEST_LOG names. How it behaves is told by variables: see `settings`. FAULT: 1 lacks a function. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef void (*Logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
#define DEVICES (VERSION >= 12 ? 8 : 4)
#define REQUESTS 32
#define GROUP 8

typedef struct {
  char *name, *pci;
  uint64_t guid;
  int pointers, global;
#if VERSION >= 9
  int flush;
#endif
  int speed, port;
  float latency;
  int comms, receives, kind, kind_version;
#if VERSION >= 9
  struct { int count, devices[DEVICES]; } parts;
  size_t bytes, collective_bytes;
#endif
#if VERSION >= 11
  int multi;
#endif
#if VERSION >= 12
  int16_t rail, plane;
#endif
} Properties;

#if VERSION >= 9
typedef size_t Size;
#else
typedef int Size;
#endif

typedef struct { int traffic_class; } Config;
typedef struct { uint16_t port; char pad[90]; unsigned char asked; } Handle;
typedef struct { int tag; uint32_t bytes; } Head;
typedef struct { char *data; size_t bytes; } Memory;
typedef struct Comm Comm;

typedef struct {
  Comm *comm;
  int used, kind, done, late, count, flushed;
  char *data[GROUP];
  char *hidden[GROUP];
  size_t room[GROUP];
  int tag[GROUP], size[GROUP], came[GROUP];
  Head head;
  size_t gone;
} Request;

struct Comm {
  int socket, is_send, memories, asked;
  unsigned first, last; /* of the requests that move data, in their order */
  Request *queue[REQUESTS];
  Request requests[REQUESTS];
  /* What is being received. */
  Head head;
  size_t got, got_head;
  int into;
};

enum { SEND = 1, RECEIVE, FLUSH };

static struct {
  int devices, receives, flush, pointers, kind, null, late, hang, size, fail_after, code;
  const char *fail, *log;
} settings;
static struct {
  long init, finalize, listen, connect, accept, connect_again, accept_again, regMr, deregMr, isend, irecv, refused, group, iflush, closeSend, closeRecv,
      closeListen, bytes, open, wrong, device1;
} counts;
#define COUNT(what) __atomic_add_fetch(&counts.what, 1, __ATOMIC_RELAXED)
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Logger logger;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
  settings.devices = number("NET_TEST_DEVICES", 2);
  settings.receives = number("NET_TEST_RECEIVES", 1);
  settings.flush = number("NET_TEST_FLUSH", 0);
  settings.pointers = number("NET_TEST_POINTERS", 1);
  settings.kind = number("NET_TEST_KIND", 0);
  settings.null = number("NET_TEST_NULL", 0);  /* so many of ten requests are refused */
  settings.late = number("NET_TEST_LATE", 0);  /* a request that has ended is asked for so often before that is said */
  settings.hang = number("NET_TEST_HANG", 0);  /* nothing ends any more after so many requests */
  settings.size = number("NET_TEST_SIZE", 0);  /* added to the sizes of what was received */
  settings.fail = getenv("NET_TEST_FAIL");     /* this function fails, after so many calls, with this code */
  settings.fail_after = number("NET_TEST_FAIL_AFTER", 0);
  settings.code = number("NET_TEST_CODE", 2);
  settings.log = getenv("NET_TEST_LOG");
}

__attribute__((destructor)) static void end(void) {
  char name[512];
  if (!settings.log) return;
  snprintf(name, sizeof name, "%s.%d", settings.log, (int)getpid());
  FILE *out = fopen(name, "w");
  if (!out) return;
#define SAY(what) fprintf(out, #what " %ld\n", counts.what)
  SAY(init), SAY(finalize), SAY(listen), SAY(connect), SAY(accept), SAY(connect_again), SAY(accept_again), SAY(regMr), SAY(deregMr);
  SAY(isend), SAY(irecv), SAY(refused), SAY(group), SAY(iflush), SAY(closeSend), SAY(closeRecv), SAY(closeListen), SAY(bytes), SAY(open);
  SAY(wrong), SAY(device1);
  fclose(out);
}

static int fails(const char *function) {
  static int calls;
  if (!settings.fail || strcmp(settings.fail, function)) return 0;
  return __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) >= settings.fail_after;
}
#define MAY_FAIL(function) \
  if (fails(function)) return settings.code

static void wrong(const char *what) {
  COUNT(wrong);
  if (logger) logger(2, 16, __FILE__, __LINE__, "the test plugin: %s", what);
}

static int refuses(void) {
  static unsigned calls;
  if ((int)(__atomic_fetch_add(&calls, 7, __ATOMIC_RELAXED) % 10) >= settings.null) return 0;
  COUNT(refused);
  return 1;
}

static int init_common(Logger given) {
  logger = given;
  MAY_FAIL("init");
  COUNT(init);
  logger(3, 16, __FILE__, __LINE__, "the test plugin of version %d begins", VERSION);
  return 0;
}

#if VERSION >= 11
static int net_init(void **context, uint64_t number, Config *config, Logger given, void *profiler) {
  (void)profiler;
  if (number == 0 || config->traffic_class != -1) wrong("init is told no communicator");
  *context = &counts;
  return init_common(given);
}
static int net_finalize(void *context) {
  if (context != &counts) wrong("finalize with another context");
  COUNT(finalize);
  MAY_FAIL("finalize");
  return 0;
}
#elif VERSION == 10
static int net_init(Logger given, void *profiler) { (void)profiler; return init_common(given); }
#else
static int net_init(Logger given) { return init_common(given); }
#endif

static int net_devices(int *count) {
  MAY_FAIL("devices");
  *count = settings.devices;
  return 0;
}

static int net_properties(int device, void *out) {
  static char *names[] = {"test0", "test1", "test2", "test3"};
  Properties *told = out;
  MAY_FAIL("getProperties");
  if (device < 0 || device >= settings.devices) wrong("a device that is none");
  memset(told, 0, sizeof *told);
  told->name = names[device & 3];
  told->pointers = settings.pointers;
  told->speed = 10000;
  told->comms = 1024;
  told->receives = settings.receives;
  told->kind = settings.kind;
#if VERSION >= 9
  told->flush = settings.flush;
  told->bytes = told->collective_bytes = 1 << 30;
#endif
  return 0;
}

static Comm *make(int socket, int is_send) {
  Comm *comm = calloc(1, sizeof *comm);
  if (!comm) abort();
  comm->socket = socket;
  comm->is_send = is_send;
  COUNT(open);
  return comm;
}

static int listen_on(int device, void *out, void **made) {
  Handle *handle = out;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  MAY_FAIL("listen");
  COUNT(listen);
  if (device == 1) COUNT(device1);
  int made_socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (bind(made_socket, (struct sockaddr *)&at, sizeof at) || listen(made_socket, 1)) return 2;
  if (getsockname(made_socket, (struct sockaddr *)&at, &length)) return 2;
  memset(handle, 0, 128);
  handle->port = at.sin_port;
  *made = make(made_socket, 0);
  return 0;
}

/* How far a connection is stands in the handle. */
static int connect_to(void *out, void **made) {
  Handle *handle = out;
  *made = NULL;
  MAY_FAIL("connect");
  if (handle->asked++ < 3) {
    COUNT(connect_again);
    return 0;
  }
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = handle->port};
  int made_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(made_socket, (struct sockaddr *)&to, sizeof to)) {
    close(made_socket);
    return 6;
  }
  COUNT(connect);
  fcntl(made_socket, F_SETFL, O_NONBLOCK);
  *made = make(made_socket, 1);
  return 0;
}

#if VERSION >= 11
static int net_listen(void *context, int device, void *handle, void **made) {
  if (context != &counts) wrong("listen with another context");
  return listen_on(device, handle, made);
}
static int net_connect(void *context, int device, void *handle, void **made, void **on_device) {
  (void)device, (void)on_device;
  if (context != &counts) wrong("connect with another context");
  return connect_to(handle, made);
}
#else
static int net_listen(int device, void *handle, void **made) { return listen_on(device, handle, made); }
#if VERSION == 10
static int net_connect(int device, Config *config, void *handle, void **made, void **on_device) {
  (void)device, (void)on_device;
  if (config->traffic_class != -1) wrong("connect without a config");
  return connect_to(handle, made);
}
#else
static int net_connect(int device, void *handle, void **made, void **on_device) {
  (void)device, (void)on_device;
  return connect_to(handle, made);
}
#endif
#endif

static int net_accept(void *listener, void **made, void **on_device) {
  Comm *from = listener;
  (void)on_device;
  *made = NULL;
  MAY_FAIL("accept");
  if (from->asked++ < 3) {
    COUNT(accept_again);
    return 0;
  }
  int taken = accept4(from->socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (taken < 0) {
    COUNT(accept_again);
    return errno == EAGAIN ? 0 : 2;
  }
  COUNT(accept);
  *made = make(taken, 0);
  return 0;
}

static int net_register(void *of, void *data, size_t bytes, int kind, void **made) {
  Comm *comm = of;
  MAY_FAIL("regMr");
  COUNT(regMr);
  comm->memories++;
  if (kind != 1) wrong("memory that is not the host's");
  Memory *memory = malloc(sizeof *memory);
  if (!memory) abort();
  memory->data = data;
  memory->bytes = bytes;
  *made = memory;
  return 0;
}

static int net_deregister(void *of, void *given) {
  Comm *comm = of;
  MAY_FAIL("deregMr");
  COUNT(deregMr);
  comm->memories--;
  free(given);
  return 0;
}

static void check(const Memory *memory, const char *data, size_t bytes) {
  if (!memory || data < memory->data || data + bytes > memory->data + memory->bytes) wrong("memory that is not registered");
}

static Request *begin_request(Comm *comm, int kind) {
  for (int at = 0; at < REQUESTS; at++) {
    Request *request = &comm->requests[at];
    if (request->used) continue;
    memset(request, 0, sizeof *request);
    request->used = 1;
    request->kind = kind;
    request->comm = comm;
    request->late = settings.late;
    if (kind != FLUSH) comm->queue[comm->last++ % REQUESTS] = request;
    return request;
  }
  wrong("more than 32 requests");
  return NULL;
}

static int send_one(Comm *comm, char *data, size_t bytes, int tag, Memory *memory, void **out) {
  *out = NULL;
  MAY_FAIL("isend");
  check(memory, data, bytes);
  if (refuses()) return 0;
  COUNT(isend);
  Request *request = begin_request(comm, SEND);
  if (!request) return 3;
  request->count = 1;
  request->data[0] = data;
  request->room[0] = bytes;
  request->head = (Head){tag, (uint32_t)bytes};
  *out = request;
  return 0;
}

static int receive_some(Comm *comm, int count, void **data, Size *bytes, int *tags, void **memories, void **out) {
  *out = NULL;
  MAY_FAIL("irecv");
  if (count < 1 || count > settings.receives || count > GROUP) wrong("more receives in a request than it can have");
  for (int at = 0; at < count; at++) check(memories[at], data[at], bytes[at]);
  if (refuses()) return 0;
  COUNT(irecv);
  if (count > 1) COUNT(group);
  Request *request = begin_request(comm, RECEIVE);
  if (!request) return 3;
  request->count = count;
  for (int at = 0; at < count; at++) {
    request->data[at] = data[at];
    request->room[at] = bytes[at];
    request->tag[at] = tags[at];
    for (int other = 0; other < at; other++)
      if (tags[other] == tags[at]) wrong("two receives of a request with one tag");
  }
  *out = request;
  return 0;
}

#if VERSION >= 10
static int net_send(void *comm, void *data, size_t bytes, int tag, void *memory, void *profile, void **out) {
  if (profile) wrong("a handle of a profiler");
  return send_one(comm, data, bytes, tag, memory, out);
}
static int net_receive(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories, void **profiles, void **out) {
  if (!profiles || profiles[0]) wrong("handles of a profiler");
  return receive_some(comm, count, data, bytes, tags, memories, out);
}
#else
static int net_send(void *comm, void *data, Size bytes, int tag, void *memory, void **out) {
  return send_one(comm, data, bytes, tag, memory, out);
}
static int net_receive(void *comm, int count, void **data, Size *bytes, int *tags, void **memories, void **out) {
  return receive_some(comm, count, data, bytes, tags, memories, out);
}
#endif

/* What was received stays in memory of the plugin's own until it is flushed. */
static int net_flush(void *of, int count, void **data, int *sizes, void **memories, void **out) {
  Comm *comm = of;
  *out = NULL;
  MAY_FAIL("iflush");
  COUNT(iflush);
  if (!settings.flush) wrong("a flush that nobody needs");
  Request *request = begin_request(comm, FLUSH);
  if (!request) return 3;
  request->count = count;
  request->done = 1;
  for (int at = 0; at < count; at++) {
    check(memories[at], data[at], sizes[at]);
    request->data[at] = data[at];
    request->size[at] = sizes[at];
  }
  *out = request;
  return 0;
}

static int move_out(Comm *comm) {
  while (comm->first != comm->last) {
    Request *request = comm->queue[comm->first % REQUESTS];
    size_t whole = sizeof(Head) + request->room[0];
    while (request->gone < whole) {
      int in_head = request->gone < sizeof(Head);
      const char *from = in_head ? (char *)&request->head + request->gone : request->data[0] + request->gone - sizeof(Head);
      size_t left = in_head ? sizeof(Head) - request->gone : whole - request->gone;
      ssize_t sent = send(comm->socket, from, left, MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN ? 0 : 6;
      request->gone += sent;
    }
    __atomic_add_fetch(&counts.bytes, request->room[0], __ATOMIC_RELAXED);
    request->done = 1;
    comm->first++;
  }
  return 0;
}

/* Memory of the plugin's own, by the place for which it is meant: as many as there are slots under way. */
#define HIDDEN 4096
static struct { Comm *comm; char *place, *data; size_t bytes; } hidden[HIDDEN];

static void hide(Comm *comm, char *place, const char *data, size_t bytes) {
  for (int at = 0; at < HIDDEN; at++) {
    if (hidden[at].data) continue;
    hidden[at].comm = comm;
    hidden[at].place = place;
    hidden[at].bytes = bytes;
    hidden[at].data = malloc(bytes ? bytes : 1);
    if (!hidden[at].data) abort();
    memcpy(hidden[at].data, data, bytes);
    memset(place, 0xee, bytes);
    return;
  }
  wrong("too much that is not flushed");
}

static void show(Comm *comm, char *place, int bytes) {
  for (int at = 0; at < HIDDEN; at++) {
    if (!hidden[at].data || hidden[at].comm != comm || hidden[at].place != place) continue;
    if ((int)hidden[at].bytes != bytes) wrong("a flush of another size");
    memcpy(place, hidden[at].data, hidden[at].bytes);
    free(hidden[at].data);
    hidden[at].data = NULL;
    return;
  }
  wrong("a flush of what has not come");
}

static int move_in(Comm *comm) {
  while (comm->first != comm->last) {
    Request *request = comm->queue[comm->first % REQUESTS];
    int here = 0;
    while (comm->got_head < sizeof(Head)) {
      ssize_t got = recv(comm->socket, (char *)&comm->head + comm->got_head, sizeof(Head) - comm->got_head, 0);
      if (got < 0) return errno == EAGAIN ? 0 : 6;
      if (got == 0) return 6;
      comm->got_head += got;
      if (comm->got_head < sizeof(Head)) continue;
      for (here = 0; here < request->count; here++)
        if (!request->came[here] && request->tag[here] == comm->head.tag) break;
      if (here == request->count || comm->head.bytes > request->room[here]) {
        wrong("a message that nobody asked for");
        return 3;
      }
      comm->into = here;
      comm->got = 0;
    }
    here = comm->into;
    while (comm->got < comm->head.bytes) {
      ssize_t got = recv(comm->socket, request->data[here] + comm->got, comm->head.bytes - comm->got, 0);
      if (got < 0) return errno == EAGAIN ? 0 : 6;
      if (got == 0) return 6;
      comm->got += got;
    }
    comm->got_head = 0;
    request->came[here] = 1;
    request->size[here] = (int)comm->head.bytes;
    if (settings.flush) {
      pthread_mutex_lock(&lock);
      hide(comm, request->data[here], request->data[here], comm->head.bytes);
      pthread_mutex_unlock(&lock);
    }
    for (here = 0; here < request->count && request->came[here]; here++) {}
    if (here == request->count) {
      request->done = 1;
      comm->first++;
    }
  }
  return 0;
}

static int net_test(void *of, int *done, int *sizes) {
  static int ended;
  Request *request = of;
  *done = 0;
  MAY_FAIL("test");
  if (!request->used) {
    wrong("a request that has ended");
    return 3;
  }
  if (settings.hang && __atomic_load_n(&ended, __ATOMIC_RELAXED) >= settings.hang) return 0;
  int code = request->comm->is_send ? move_out(request->comm) : move_in(request->comm);
  if (code && !request->done) return code;
  if (!request->done || request->late-- > 0) return 0;
  for (int at = 0; at < request->count; at++) {
    if (request->kind == FLUSH) {
      pthread_mutex_lock(&lock);
      show(request->comm, request->data[at], request->size[at]);
      pthread_mutex_unlock(&lock);
    }
    if (request->kind == RECEIVE && sizes) sizes[at] = request->size[at] + settings.size;
  }
  __atomic_add_fetch(&ended, 1, __ATOMIC_RELAXED);
  request->used = 0;
  *done = 1;
  return 0;
}

static int close_comm(Comm *comm) {
  int open = 0;
  for (int at = 0; at < REQUESTS; at++) open += comm->requests[at].used;
  if (open && !settings.hang && !settings.fail && !settings.size) wrong("closed with requests under way");
  if (comm->memories && !(settings.fail && !strcmp(settings.fail, "deregMr"))) wrong("closed with memory registered");
  close(comm->socket);
  free(comm);
  __atomic_sub_fetch(&counts.open, 1, __ATOMIC_RELAXED);
  return 0;
}
static int net_close_send(void *comm) { COUNT(closeSend); return close_comm(comm); }
static int net_close_receive(void *comm) { COUNT(closeRecv); return close_comm(comm); }
static int net_close_listen(void *comm) { COUNT(closeListen); return close_comm(comm); }

#define JOINED(one, other) one##other
#define NAMED(version) JOINED(ncclNetPlugin_v, version)

const struct {
  const char *name;
#if VERSION >= 11
  int (*init)(void **, uint64_t, Config *, Logger, void *);
#elif VERSION == 10
  int (*init)(Logger, void *);
#else
  int (*init)(Logger);
#endif
  int (*devices)(int *);
  int (*properties)(int, void *);
#if VERSION >= 11
  int (*listen)(void *, int, void *, void **);
  int (*connect)(void *, int, void *, void **, void **);
#elif VERSION == 10
  int (*listen)(int, void *, void **);
  int (*connect)(int, Config *, void *, void **, void **);
#else
  int (*listen)(int, void *, void **);
  int (*connect)(int, void *, void **, void **);
#endif
  int (*accept)(void *, void **, void **);
  int (*register_memory)(void *, void *, size_t, int, void **);
  void *register_buffer;
  int (*deregister)(void *, void *);
#if VERSION >= 10
  int (*send)(void *, void *, size_t, int, void *, void *, void **);
  int (*receive)(void *, int, void **, size_t *, int *, void **, void **, void **);
#else
  int (*send)(void *, void *, Size, int, void *, void **);
  int (*receive)(void *, int, void **, Size *, int *, void **, void **);
#endif
  int (*flush)(void *, int, void **, int *, void **, void **);
  int (*test)(void *, int *, int *);
  int (*close_send)(void *);
  int (*close_receive)(void *);
  int (*close_listen)(void *);
  void *get_device_memory, *consumed;
#if VERSION >= 9
  void *make_device;
#endif
#if VERSION >= 11
  int (*finalize)(void *);
  void *set_attributes;
#endif
} NAMED(VERSION) = {
    .name = "Test",
    .init = net_init,
    .devices = net_devices,
    .properties = net_properties,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .register_memory = net_register,
    .deregister = net_deregister,
    .send = net_send,
    .receive = net_receive,
    .flush = net_flush,
    .test = FAULT == 1 ? NULL : net_test,
    .close_send = net_close_send,
    .close_receive = net_close_receive,
    .close_listen = net_close_listen,
#if VERSION >= 11
    .finalize = net_finalize,
#endif
};
