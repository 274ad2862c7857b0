/* Helpers of the tests. Each test is a program that exits with 0, or prints the
 * failed check and its line. $HW_ONE and $HW_OTHER are the sockets of the
 * daemons of 127.0.0.1 and 127.0.0.2. A program may attach to both, one after
 * the other, and so have both ends of a connection. */
#ifndef CHECK_H
#define CHECK_H

/* For fork(), threads and POSIX signals, which C11 lacks. */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <headworks.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds)                                                          \
  do {                                                                        \
    if (!(holds))                                                             \
      check_failed(__FILE__, __LINE__, #holds);                               \
  } while (0)

/* The call fails with `expected` in errno, and hw_strerror() has a text. */
#define FAILS(call, expected)                                                 \
  do {                                                                        \
    errno = 0;                                                                \
    CHECK((call) == -1);                                                      \
    CHECK(errno == (expected));                                               \
    CHECK(hw_strerror()[0] != '\0');                                          \
  } while (0)

/* A program that runs longer than this hangs, and is ended. */
#define PATIENCE_S 80

static inline void check_failed(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: not so: %s (errno %d: %s; %s)\n", file, line, what,
          errno, strerror(errno), hw_strerror());
  _exit(1);
}

static inline struct sockaddr_in check_at(const char *host, int port) {
  struct sockaddr_in at;
  memset(&at, 0, sizeof at);
  at.sin_family = AF_INET;
  at.sin_port = htons((uint16_t)port);
  CHECK(inet_pton(AF_INET, host, &at.sin_addr) == 1);
  return at;
}

static inline int check_connect(const char *host, int port, int flags) {
  struct sockaddr_in to = check_at(host, port);
  return hw_connect((struct sockaddr *)&to, sizeof to, flags);
}

static inline void check_attach(const char *variable) {
  const char *path = getenv(variable);
  CHECK(path != NULL);
  CHECK(hw_attach(path, NULL) == 0);
}

/* Listens at a free port of the attached daemon, and sets `*port` to it. */
static inline int check_listen(int *port) {
  struct sockaddr_in any = check_at("0.0.0.0", 0);
  socklen_t len = sizeof any;
  int fd = hw_listen((struct sockaddr *)&any, sizeof any, 16, 0);
  CHECK(fd >= 0);
  CHECK(hw_getsockname(fd, (struct sockaddr *)&any, &len) == 0);
  CHECK(len == sizeof any && any.sin_family == AF_INET);
  *port = ntohs(any.sin_port);
  CHECK(*port != 0);
  return fd;
}

/* Makes a connection: ends[0] is at HW_ONE, ends[1] at HW_OTHER. Afterwards the
 * program is attached to HW_OTHER. */
static inline void check_pair(int ends[2]) {
  int port, listener;
  check_attach("HW_OTHER");
  listener = check_listen(&port);
  check_attach("HW_ONE");
  ends[0] = check_connect("127.0.0.2", port, 0);
  CHECK(ends[0] >= 0);
  check_attach("HW_OTHER");
  ends[1] = hw_accept(listener, NULL, NULL, 0);
  CHECK(ends[1] >= 0);
  CHECK(hw_close(listener) == 0);
}

/* Receives exactly `len` bytes. */
static inline void check_recv(int fd, void *into, size_t len) {
  char *at = into;
  while (len > 0) {
    ssize_t got = hw_recv(fd, at, len, 0);
    CHECK(got > 0);
    at += got;
    len -= (size_t)got;
  }
}

/* Waits until the descriptor is ready, and returns its events. */
static inline short check_poll(int fd, short events) {
  struct pollfd polled = {fd, events, 0};
  while (poll(&polled, 1, -1) < 0)
    CHECK(errno == EINTR);
  return polled.revents;
}

/* Byte `at` of the test data. */
static inline unsigned char check_byte(size_t at) {
  return (unsigned char)(at ^ at >> 7 ^ at >> 15);
}

static inline void check_fill(void *bytes, size_t len, size_t from) {
  unsigned char *to = bytes;
  for (size_t at = 0; at < len; at++)
    to[at] = check_byte(from + at);
}

static inline void check_same(const void *bytes, size_t len, size_t from) {
  const unsigned char *found = bytes;
  for (size_t at = 0; at < len; at++)
    CHECK(found[at] == check_byte(from + at));
}

static inline pthread_t check_thread(void *(*run)(void *), void *with) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, run, with) == 0);
  return thread;
}

static inline void *check_join(pthread_t thread) {
  void *ended;
  CHECK(pthread_join(thread, &ended) == 0);
  return ended;
}

#endif
