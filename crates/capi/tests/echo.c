/* An echo server returns all data, with blocking calls and with epoll(7). */
#include "check.h"

#include <sys/epoll.h>

#define PIECE 100000

static int listener;

/* Sends received data back, until the stream ends. */
static void *serve(void *unused) {
  static char buffer[PIECE];
  int fd;
  (void)unused;
  while ((fd = hw_accept(listener, NULL, NULL, 0)) >= 0) {
    ssize_t got;
    while ((got = hw_recv(fd, buffer, sizeof buffer, 0)) > 0)
      CHECK(hw_send(fd, buffer, (size_t)got, 0) == got);
    CHECK(got == 0);
    CHECK(hw_shutdown(fd, SHUT_WR) == 0);
    CHECK(hw_close(fd) == 0);
  }
  CHECK(errno == EBADF);
  return NULL;
}

struct sending {
  int fd;
  size_t total;
};

static void *send_all(void *with) {
  struct sending *sending = with;
  unsigned char *bytes = malloc(sending->total + 1);
  CHECK(bytes != NULL);
  check_fill(bytes, sending->total, 0);
  CHECK(hw_send(sending->fd, bytes, sending->total, 0) ==
        (ssize_t)sending->total);
  CHECK(hw_shutdown(sending->fd, SHUT_WR) == 0);
  free(bytes);
  return NULL;
}

/* Sends and receives in two threads, with blocking calls. */
static void exchange(int port, size_t total) {
  static unsigned char buffer[PIECE];
  struct sending sending = {check_connect("127.0.0.2", port, 0), total};
  size_t received = 0;
  ssize_t got;
  CHECK(sending.fd >= 0);
  pthread_t sender = check_thread(send_all, &sending);
  while ((got = hw_recv(sending.fd, buffer, sizeof buffer, 0)) > 0) {
    check_same(buffer, (size_t)got, received);
    received += (size_t)got;
  }
  CHECK(got == 0);
  CHECK(received == total);
  check_join(sender);
  CHECK(hw_close(sending.fd) == 0);
}

/* Sends and receives in one thread, with epoll(7). */
static void exchange_polling(int port, size_t total) {
  static unsigned char out[PIECE], in[PIECE];
  size_t sent = 0, received = 0;
  int is_over = 0, is_ended = 0;
  int fd = check_connect("127.0.0.2", port, HW_NONBLOCK);
  int queue = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
  CHECK(fd >= 0 && queue >= 0);
  CHECK(epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event) == 0);
  while (!is_over) {
    CHECK(epoll_wait(queue, &event, 1, -1) == 1 || errno == EINTR);
    for (;;) {
      size_t len = total - sent < PIECE ? total - sent : PIECE;
      if (len == 0) {
        if (!is_ended && hw_shutdown(fd, SHUT_WR) == 0)
          is_ended = 1;
        /* Nothing more to send: do not wait for room any more. */
        event.events = EPOLLIN;
        if (is_ended)
          CHECK(epoll_ctl(queue, EPOLL_CTL_MOD, fd, &event) == 0);
        else
          CHECK(errno == EAGAIN);
        break;
      }
      check_fill(out, len, sent);
      ssize_t some = hw_send(fd, out, len, 0);
      if (some < 0) {
        CHECK(errno == EAGAIN);
        break;
      }
      sent += (size_t)some;
    }
    for (;;) {
      ssize_t got = hw_recv(fd, in, sizeof in, 0);
      if (got < 0) {
        CHECK(errno == EAGAIN);
        break;
      }
      if (got == 0) {
        is_over = 1;
        break;
      }
      check_same(in, (size_t)got, received);
      received += (size_t)got;
    }
  }
  CHECK(received == total);
  CHECK(hw_close(fd) == 0);
  CHECK(close(queue) == 0);
}

int main(void) {
  static const size_t totals[] = {0,     1,       64,      4095,
                                  70000, 1 << 20, 16 << 20};
  int port;
  alarm(PATIENCE_S);
  check_attach("HW_OTHER");
  listener = check_listen(&port);
  pthread_t server = check_thread(serve, NULL);
  check_attach("HW_ONE");
  for (size_t at = 0; at < sizeof totals / sizeof *totals; at++) {
    exchange(port, totals[at]);
    exchange_polling(port, totals[at]);
  }
  CHECK(hw_close(listener) == 0);
  check_join(server);
  return 0;
}
