/* What programs that were written for sockets rely on. */
#include "check.h"

#include <fcntl.h>

#define HERE "127.0.0.2"

static int listen_at(const char *host, int port, int backlog, int flags) {
  struct sockaddr_in at = check_at(host, port);
  return hw_listen((struct sockaddr *)&at, sizeof at, backlog, flags);
}

static int bind_at(const char *host, int flags) {
  struct sockaddr_in at = check_at(host, 0);
  return hw_bind((struct sockaddr *)&at, sizeof at, flags);
}

/* Checks that the descriptor has an address of HERE, and returns its port. */
static int port_of(int fd) {
  struct sockaddr_in at;
  socklen_t len = sizeof at;
  CHECK(fd >= 0);
  CHECK(hw_getsockname(fd, (struct sockaddr *)&at, &len) == 0);
  CHECK(len == sizeof at && at.sin_family == AF_INET);
  CHECK(at.sin_addr.s_addr == inet_addr(HERE) && at.sin_port != 0);
  return ntohs(at.sin_port);
}

static int peer_of(int fd, struct sockaddr_in *at) {
  socklen_t len = sizeof *at;
  return hw_getpeername(fd, (struct sockaddr *)at, &len);
}

/* Listeners and message sockets may name the daemon's own address. */
static void own_address(void) {
  static const char *const good[] = {HERE, "0.0.0.0"};
  static const char *const bad[] = {"127.0.0.1", "10.0.0.1"};
  struct sockaddr_in6 six;
  check_attach("HW_OTHER");
  for (int at = 0; at < 2; at++) {
    int listener = listen_at(good[at], 0, 16, 0), port = port_of(listener);
    int fd = check_connect(HERE, port, 0);
    CHECK(fd >= 0);
    FAILS(listen_at(good[at], port, 16, 0), EADDRINUSE);
    CHECK(hw_close(fd) == 0 && hw_close(listener) == 0);
    int bound = bind_at(good[at], 0);
    CHECK(port_of(bound) != 0);
    CHECK(hw_close(bound) == 0);
  }
  for (int at = 0; at < 2; at++) {
    FAILS(listen_at(bad[at], 0, 16, 0), EADDRNOTAVAIL);
    CHECK(strstr(hw_strerror(), HERE) != NULL);
    FAILS(bind_at(bad[at], 0), EADDRNOTAVAIL);
    CHECK(strstr(hw_strerror(), HERE) != NULL);
  }
  memset(&six, 0, sizeof six);
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  FAILS(hw_listen((struct sockaddr *)&six, sizeof six, 1, 0), EADDRNOTAVAIL);
  static const char *const mapped[] = {"::", "::ffff:" HERE};
  for (int at = 0; at < 2; at++) {
    CHECK(inet_pton(AF_INET6, mapped[at], &six.sin6_addr) == 1);
    int listener = hw_listen((struct sockaddr *)&six, sizeof six, 1, 0);
    CHECK(port_of(listener) != 0);
    CHECK(hw_close(listener) == 0);
  }
}

/* Flags for what the library does anyway are accepted, and no others. */
static void flags(void) {
  static const int others[] = {MSG_PEEK, MSG_WAITALL,  MSG_OOB,  MSG_TRUNC,
                               MSG_MORE, MSG_ERRQUEUE, MSG_CONFIRM};
  char buffer[8];
  const void *shown;
  check_attach("HW_OTHER");
  int listener = listen_at(HERE, 0, 16, SOCK_CLOEXEC);
  int port = port_of(listener), bound = bind_at(HERE, SOCK_CLOEXEC);
  struct sockaddr_in to = check_at(HERE, port_of(bound));
  struct sockaddr *at = (struct sockaddr *)&to;
  int fd = check_connect(HERE, port, SOCK_CLOEXEC);
  int far = hw_accept(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const int all[] = {listener, bound, fd, far};
  for (size_t each = 0; each < sizeof all / sizeof *all; each++) {
    CHECK(all[each] >= 0);
    CHECK(fcntl(all[each], F_GETFD) & FD_CLOEXEC);
  }
  CHECK(hw_send(far, "signal", 6, MSG_NOSIGNAL) == 6);
  CHECK(hw_recv(fd, buffer, 3, MSG_NOSIGNAL) == 3);
  CHECK(hw_recv_zero_copy(fd, &shown, 3, MSG_NOSIGNAL) == 3);
  CHECK(hw_release(fd, 3) == 0);
  FAILS(hw_recv(far, buffer, 3, MSG_NOSIGNAL | MSG_DONTWAIT), EAGAIN);
  char *memory = hw_alloc(8);
  CHECK(memory != NULL);
  CHECK(hw_send_zero_copy(fd, memory, 8, MSG_NOSIGNAL) == 8);
  CHECK(hw_reclaim(fd, memory, 0) == 0);
  CHECK(hw_sendto(bound, "one", 3, MSG_NOSIGNAL, at, sizeof to) == 3);
  CHECK(hw_sendto(bound, "two", 3, MSG_NOSIGNAL, at, sizeof to) == 3);
  CHECK(hw_recvfrom(bound, buffer, 8, MSG_NOSIGNAL, NULL, NULL) == 3);
  CHECK(hw_recvfrom_zero_copy(bound, &shown, MSG_NOSIGNAL, NULL, NULL) == 3);
  for (size_t each = 0; each < sizeof others / sizeof *others; each++) {
    int other = others[each] | MSG_NOSIGNAL;
    FAILS(hw_send(fd, "x", 1, other), EINVAL);
    FAILS(hw_send_zero_copy(fd, memory, 8, other), EINVAL);
    FAILS(hw_recv(fd, buffer, 1, other), EINVAL);
    FAILS(hw_recv_zero_copy(fd, &shown, 1, other), EINVAL);
    FAILS(hw_sendto(bound, "x", 1, other, at, sizeof to), EINVAL);
    FAILS(hw_recvfrom(bound, buffer, 1, other, NULL, NULL), EINVAL);
    FAILS(hw_recvfrom_zero_copy(bound, &shown, other, NULL, NULL), EINVAL);
  }
  FAILS(check_connect(HERE, port, SOCK_CLOEXEC | MSG_NOSIGNAL), EINVAL);
  FAILS(hw_accept(listener, NULL, NULL, SOCK_STREAM), EINVAL);
  CHECK(hw_free(memory) == 0);
  CHECK(hw_close(fd) == 0 && hw_close(far) == 0);
  CHECK(hw_close(bound) == 0 && hw_close(listener) == 0);
}

/* A caller beyond the backlog is still connecting, until the listener accepts
 * another. */
static void connecting(void) {
  struct sockaddr_in peer;
  check_attach("HW_OTHER");
  int listener = listen_at(HERE, 0, 0, 0), port = port_of(listener);
  check_attach("HW_ONE");
  int first = check_connect(HERE, port, 0);
  int fd = check_connect(HERE, port, HW_NONBLOCK);
  CHECK(first >= 0 && fd >= 0);
  FAILS(hw_finish(fd, 0), EINPROGRESS);
  FAILS(peer_of(fd, &peer), ENOTCONN);
  FAILS(hw_send(fd, "x", 1, 0), EAGAIN);
  /* A deadline that passes does not look like a host that does not answer. */
  CHECK(hw_set_nonblocking(fd, 0) == 0);
  CHECK(hw_set_deadline(fd, 20) == 0);
  FAILS(hw_finish(fd, 0), EINPROGRESS);
  FAILS(hw_send(fd, "x", 1, 0), EAGAIN);
  FAILS(hw_shutdown(fd, SHUT_RDWR), ENOTCONN);
  CHECK(hw_set_deadline(fd, -1) == 0);
  FAILS(hw_shutdown(fd, SHUT_WR), ENOTCONN);
  CHECK(hw_set_nonblocking(fd, 1) == 0);
  int accepted = hw_accept(listener, NULL, NULL, 0);
  CHECK(accepted >= 0);
  /* The first call after POLLOUT may be one for the addresses. */
  CHECK(check_poll(fd, POLLOUT) & POLLOUT);
  for (int tries = 0; peer_of(fd, &peer) != 0; tries++) {
    CHECK(errno == ENOTCONN && tries < 1000);
    poll(NULL, 0, 1);
  }
  CHECK(peer.sin_addr.s_addr == inet_addr(HERE));
  CHECK(ntohs(peer.sin_port) == port);
  CHECK(hw_shutdown(fd, SHUT_WR) == 0);
  CHECK(hw_close(fd) == 0 && hw_close(first) == 0);
  CHECK(hw_close(accepted) == 0 && hw_close(listener) == 0);
  /* It also tells why there is no connection. */
  fd = check_connect(HERE, port, HW_NONBLOCK);
  CHECK(fd >= 0);
  CHECK(check_poll(fd, 0) & POLLHUP);
  FAILS(peer_of(fd, &peer), ENOTCONN);
  FAILS(hw_shutdown(fd, SHUT_WR), ENOTCONN);
  FAILS(hw_finish(fd, 0), ECONNREFUSED);
  FAILS(peer_of(fd, &peer), ENOTCONN);
  FAILS(hw_finish(fd, 0), ENOTCONN);
  CHECK(hw_close(fd) == 0);
}

static void *poll_read(void *with) {
  struct pollfd polled = {*(int *)with, POLLIN | POLLRDHUP, 0};
  while (poll(&polled, 1, PATIENCE_S * 250) < 0)
    CHECK(errno == EINTR);
  return (void *)(intptr_t)polled.revents;
}

/* SHUT_RD makes the descriptor readable, and changes nothing for sending. */
static void shut_read(void) {
  static char piece[1 << 16];
  size_t sent = 0, received = 0;
  ssize_t some;
  int ends[2];
  check_pair(ends);
  struct pollfd polled = {ends[1], POLLIN | POLLRDHUP, 0};
  do
    FAILS(hw_recv(ends[1], piece, 1, HW_DONTWAIT), EAGAIN);
  while (poll(&polled, 1, 100) != 0);
  pthread_t polls = check_thread(poll_read, &ends[1]);
  CHECK(hw_shutdown(ends[1], SHUT_RD) == 0);
  CHECK((intptr_t)check_join(polls) == (POLLIN | POLLRDHUP));
  CHECK(hw_recv(ends[1], piece, 1, 0) == 0);
  CHECK(hw_shutdown(ends[1], SHUT_RD) == 0);
  /* What arrives is not received. */
  CHECK(hw_send(ends[0], "unheard", 7, 0) == 7);
  CHECK(hw_recv(ends[1], piece, 1, 0) == 0);
  CHECK(check_poll(ends[1], POLLIN | POLLRDHUP) == (POLLIN | POLLRDHUP));
  /* Room is still signalled. */
  for (int round = 0; round < 3; round++) {
    while ((some = hw_send(ends[1], piece, sizeof piece, HW_DONTWAIT)) > 0)
      sent += (size_t)some;
    CHECK(some == -1 && errno == EAGAIN);
    while (received < sent) {
      some = hw_recv(ends[0], piece, sizeof piece, 0);
      CHECK(some > 0);
      received += (size_t)some;
    }
    CHECK(check_poll(ends[1], POLLOUT) == POLLOUT);
  }
  CHECK(hw_send(ends[1], "x", 1, 0) == 1);
  check_recv(ends[0], piece, 1);
  /* So is a reset. */
  CHECK(hw_send(ends[1], "unread", 6, 0) == 6);
  CHECK(check_poll(ends[0], POLLIN) & POLLIN);
  CHECK(hw_close(ends[0]) == 0);
  CHECK(check_poll(ends[1], 0) & POLLHUP);
  CHECK(hw_recv(ends[1], piece, 1, 0) == 0);
  FAILS(hw_send(ends[1], piece, 1, 0), ECONNRESET);
  FAILS(hw_send(ends[1], piece, 0, 0), ECONNRESET);
  CHECK(hw_close(ends[1]) == 0);
}

/* Calls that send nothing, or nowhere. */
static void nothing_sent(void) {
  int ends[2];
  char buffer[4];
  check_pair(ends);
  CHECK(hw_send(ends[0], "", 0, 0) == 0);
  CHECK(hw_shutdown(ends[0], SHUT_WR) == 0);
  FAILS(hw_send(ends[0], "", 0, 0), EPIPE);
  FAILS(hw_send(ends[0], NULL, 0, MSG_NOSIGNAL), EPIPE);
  /* Messages need an address, and streams have none. */
  int bound = bind_at(HERE, 0);
  struct sockaddr_in to = check_at(HERE, port_of(bound));
  struct sockaddr *at = (struct sockaddr *)&to;
  FAILS(hw_sendto(bound, "x", 1, 0, NULL, 0), EDESTADDRREQ);
  FAILS(hw_sendto(ends[1], "x", 1, 0, NULL, 0), EOPNOTSUPP);
  FAILS(hw_sendto(ends[1], "x", 1, 0, at, sizeof to), EOPNOTSUPP);
  FAILS(hw_recvfrom(ends[1], buffer, 4, 0, NULL, NULL), EOPNOTSUPP);
  FAILS(hw_send(bound, "x", 1, 0), EOPNOTSUPP);
  CHECK(hw_close(bound) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

int main(void) {
  alarm(PATIENCE_S);
  own_address();
  flags();
  connecting();
  shut_read();
  nothing_sent();
  return 0;
}
