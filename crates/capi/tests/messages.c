/* Sockets for messages. */
#include "check.h"

#define LONGEST (1 << 20)

static int bound(int *port) {
  struct sockaddr_in any = check_at("0.0.0.0", 0);
  socklen_t len = sizeof any;
  int fd = hw_bind((struct sockaddr *)&any, sizeof any, 0);
  CHECK(fd >= 0);
  CHECK(hw_getsockname(fd, (struct sockaddr *)&any, &len) == 0);
  *port = ntohs(any.sin_port);
  CHECK(*port != 0);
  return fd;
}

static ssize_t to(int fd, const void *bytes, size_t len, const char *host,
                  int port) {
  struct sockaddr_in at = check_at(host, port);
  return hw_sendto(fd, bytes, len, 0, (struct sockaddr *)&at, sizeof at);
}

int main(void) {
  static unsigned char out[LONGEST], in[LONGEST];
  const size_t sizes[] = {0, 1, 5000, LONGEST};
  struct sockaddr_in from;
  socklen_t len;
  int one_port, other_port;
  const void *shown;
  for (size_t at = 0; at < LONGEST; at++)
    out[at] = (unsigned char)(at ^ at >> 8);
  check_attach("HW_ONE");
  int one = bound(&one_port);
  check_attach("HW_OTHER");
  int other = bound(&other_port);
  for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
    CHECK(to(one, out, sizes[at], "127.0.0.2", other_port) ==
          (ssize_t)sizes[at]);
    len = sizeof from;
    CHECK(hw_recvfrom(other, in, sizeof in, 0, (struct sockaddr *)&from,
                      &len) == (ssize_t)sizes[at]);
    CHECK(memcmp(in, out, sizes[at]) == 0);
    CHECK(len == sizeof from && ntohs(from.sin_port) == one_port);
    CHECK(from.sin_addr.s_addr == inet_addr("127.0.0.1"));
    /* Replies to the sender; a receiver gets as much as fits. */
    CHECK(hw_sendto(other, "answered", 8, 0, (struct sockaddr *)&from, len) ==
          8);
    CHECK(hw_recvfrom(one, in, 3, 0, NULL, NULL) == 3);
    CHECK(memcmp(in, "ans", 3) == 0);
  }
  /* Zero copy shows the same message until it is released. */
  CHECK(to(one, "first", 5, "127.0.0.2", other_port) == 5);
  CHECK(to(one, "second", 6, "127.0.0.2", other_port) == 6);
  for (int twice = 0; twice < 2; twice++) {
    CHECK(hw_recvfrom_zero_copy(other, &shown, 0, NULL, NULL) == 5);
    CHECK(memcmp(shown, "first", 5) == 0);
  }
  CHECK(hw_release(other, 5) == 0);
  CHECK(hw_recvfrom(other, in, sizeof in, 0, NULL, NULL) == 6);
  CHECK(memcmp(in, "second", 6) == 0);
  /* The descriptor becomes readable when a message arrives. */
  FAILS(hw_recvfrom(other, in, 1, HW_DONTWAIT, NULL, NULL), EAGAIN);
  CHECK(to(one, "third", 5, "127.0.0.2", other_port) == 5);
  struct pollfd polled = {other, POLLIN, 0};
  CHECK(poll(&polled, 1, PATIENCE_S * 1000) == 1);
  CHECK(hw_recvfrom(other, in, sizeof in, 0, NULL, NULL) == 5);
  CHECK(hw_set_deadline(other, 20) == 0);
  FAILS(hw_recvfrom(other, in, 1, 0, NULL, NULL), ETIMEDOUT);
  /* A slow receiver delays only messages to itself. */
  int third_port, third = bound(&third_port);
  int slow_port, slow = bound(&slow_port);
  CHECK(to(one, out, LONGEST, "127.0.0.2", slow_port) == LONGEST);
  CHECK(hw_set_deadline(one, PATIENCE_S * 1000) == 0);
  for (int times = 0; times < 64; times++) {
    from = check_at("127.0.0.2", slow_port);
    if (hw_sendto(one, out, LONGEST, HW_DONTWAIT, (struct sockaddr *)&from,
                  sizeof from) < 0)
      CHECK(errno == EAGAIN);
    CHECK(to(one, "past it", 7, "127.0.0.2", third_port) == 7);
    CHECK(hw_recvfrom(third, in, sizeof in, 0, NULL, NULL) == 7);
  }
  /* Only the next send to the same address reports that it is unreachable. */
  from = check_at("127.0.0.2", 1);
  FAILS(hw_sendto(one, "who", 3, HW_DONTWAIT, (struct sockaddr *)&from,
                  sizeof from),
        EAGAIN);
  for (int times = 0; times < 64; times++)
    CHECK(to(one, "you", 3, "127.0.0.2", third_port) == 3);
  FAILS(to(one, "who", 3, "127.0.0.2", 1), ECONNREFUSED);
  CHECK(hw_set_deadline(one, -1) == 0);
  CHECK(hw_close(third) == 0 && hw_close(slow) == 0);
  /* Invalid calls. */
  FAILS(to(one, out, LONGEST + 1, "127.0.0.2", other_port), EMSGSIZE);
  FAILS(to(one, "nobody", 6, "127.0.0.2", 1), ECONNREFUSED);
  FAILS(hw_recv(one, in, 1, 0), EOPNOTSUPP);
  FAILS(hw_recvfrom(one, NULL, 1, 0, NULL, NULL), EFAULT);
  struct sockaddr_in other_host = check_at("127.0.0.1", 0);
  FAILS(hw_bind((struct sockaddr *)&other_host, sizeof other_host, 0),
        EADDRNOTAVAIL);
  /* Streams with each kind of transfer. */
  int ends[2];
  check_pair(ends);
  FAILS(hw_set_transfer(ends[0], 4), EINVAL);
  FAILS(hw_send(ends[0], "x", 1, HW_BY_SEND | HW_BY_READ), EINVAL);
  for (int transfer = HW_TRANSFER_ANY; transfer <= HW_TRANSFER_READ;
       transfer++) {
    CHECK(hw_set_transfer(ends[0], transfer) == 0);
    CHECK(hw_send(ends[0], out, 3000, 0) == 3000);
    check_recv(ends[1], (char *)in, 3000);
    CHECK(memcmp(in, out, 3000) == 0);
  }
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  CHECK(hw_close(one) == 0 && hw_close(other) == 0);
  FAILS(to(one, "closed", 6, "127.0.0.2", other_port), EBADF);
  return 0;
}
