/* Non-blocking calls, deadlines, and connections that cannot be made. */
#include "check.h"

static void nothing_there(void) {
  int ends[2], port;
  char buffer[4];
  const void *shown;
  check_pair(ends);
  FAILS(hw_recv(ends[0], buffer, 4, HW_DONTWAIT), EAGAIN);
  FAILS(hw_recv_zero_copy(ends[0], &shown, 4, HW_DONTWAIT), EAGAIN);
  CHECK(hw_set_nonblocking(ends[0], 1) == 0);
  FAILS(hw_recv(ends[0], buffer, 4, 0), EAGAIN);
  CHECK(hw_set_nonblocking(ends[0], 0) == 0);
  int listener = check_listen(&port);
  FAILS(hw_accept(listener, NULL, NULL, HW_DONTWAIT), EAGAIN);
  CHECK(hw_close(listener) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

/* Without a receiver the sender finds no room in the end; it finds room again
 * once the other end has received. */
static void no_room(void) {
  static char piece[1 << 16];
  size_t sent = 0, received = 0;
  ssize_t some;
  int ends[2];
  check_pair(ends);
  while ((some = hw_send(ends[0], piece, sizeof piece, HW_DONTWAIT)) > 0)
    sent += (size_t)some;
  CHECK(some == -1 && errno == EAGAIN);
  /* More may fit once data that is under way has arrived. */
  CHECK(hw_set_deadline(ends[0], 20) == 0);
  while ((some = hw_send(ends[0], piece, sizeof piece, 0)) > 0)
    sent += (size_t)some;
  CHECK(some == -1 && errno == ETIMEDOUT);
  CHECK(sent > 0);
  CHECK(hw_set_deadline(ends[0], -1) == 0);
  while (received < sent) {
    some = hw_recv(ends[1], piece, sizeof piece, 0);
    CHECK(some > 0);
    received += (size_t)some;
  }
  CHECK(check_poll(ends[0], POLLOUT) & POLLOUT);
  CHECK(hw_send(ends[0], "x", 1, 0) == 1);
  check_recv(ends[1], piece, 1);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

static void deadlines(void) {
  int ends[2], port;
  char byte;
  const void *shown;
  check_pair(ends);
  CHECK(hw_set_deadline(ends[0], 5) == 0);
  FAILS(hw_recv(ends[0], &byte, 1, 0), ETIMEDOUT);
  /* The deadline is an absolute time, so it stays passed. */
  FAILS(hw_recv(ends[0], &byte, 1, 0), ETIMEDOUT);
  FAILS(hw_recv_zero_copy(ends[0], &shown, 1, 0), ETIMEDOUT);
  /* Calls that need not wait succeed after the deadline. */
  CHECK(hw_send(ends[0], "x", 1, 0) == 1);
  check_recv(ends[1], &byte, 1);
  CHECK(hw_send(ends[1], "y", 1, 0) == 1);
  CHECK(hw_set_deadline(ends[0], -1) == 0);
  check_recv(ends[0], &byte, 1);
  CHECK(byte == 'y');
  int listener = check_listen(&port);
  CHECK(hw_set_deadline(listener, 0) == 0);
  FAILS(hw_accept(listener, NULL, NULL, 0), ETIMEDOUT);
  CHECK(hw_close(listener) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

/* Connecting where nobody listens, or where no daemon is. */
static void refused(void) {
  struct sockaddr_in6 six;
  char byte;
  check_attach("HW_ONE");
  FAILS(check_connect("127.0.0.2", 9, 0), ECONNREFUSED);
  FAILS(check_connect("127.0.0.9", 9, 0), EHOSTUNREACH);
  memset(&six, 0, sizeof six);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(9);
  six.sin6_addr = in6addr_loopback;
  FAILS(hw_connect((struct sockaddr *)&six, sizeof six, 0), EHOSTUNREACH);
  /* Without waiting: the descriptor is hung up, and the next call says why. */
  int fd = check_connect("127.0.0.2", 9, HW_NONBLOCK);
  CHECK(fd >= 0);
  CHECK(check_poll(fd, 0) & POLLHUP);
  FAILS(hw_recv(fd, &byte, 1, 0), ECONNREFUSED);
  FAILS(hw_recv(fd, &byte, 1, 0), ENOTCONN);
  FAILS(hw_finish(fd, 0), ENOTCONN);
  /* The descriptor keeps its number until it is closed. */
  int other = dup(0);
  CHECK(other >= 0 && other != fd);
  CHECK(close(other) == 0);
  CHECK(hw_close(fd) == 0);
  FAILS(hw_close(fd), EBADF);
}

static void connecting(void) {
  int port, fd;
  char byte;
  check_attach("HW_OTHER");
  int listener = check_listen(&port);
  check_attach("HW_ONE");
  fd = check_connect("127.0.0.2", port, HW_NONBLOCK);
  CHECK(fd >= 0);
  while (hw_finish(fd, 0) != 0) {
    CHECK(errno == EINPROGRESS);
    CHECK(check_poll(fd, POLLOUT) & POLLOUT);
  }
  CHECK(hw_finish(fd, 0) == 0);
  FAILS(hw_recv(fd, &byte, 1, 0), EAGAIN);
  CHECK(hw_close(fd) == 0);
  /* One connection becomes blocking, and one is closed while connecting. */
  fd = check_connect("127.0.0.2", port, HW_NONBLOCK);
  CHECK(fd >= 0);
  CHECK(hw_set_nonblocking(fd, 0) == 0);
  CHECK(hw_send(fd, "x", 1, 0) == 1);
  CHECK(hw_close(fd) == 0);
  fd = check_connect("127.0.0.2", port, HW_NONBLOCK);
  CHECK(fd >= 0);
  CHECK(hw_close(fd) == 0);
  CHECK(hw_close(listener) == 0);
}

int main(void) {
  alarm(PATIENCE_S);
  nothing_there();
  no_room();
  deadlines();
  refused();
  connecting();
  return 0;
}
