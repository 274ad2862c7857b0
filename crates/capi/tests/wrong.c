/* Invalid arguments and descriptors. */
#include "check.h"

static void descriptors(int fd) {
  char buffer[8];
  const void *shown;
  void *memory = hw_alloc(8);
  uint32_t export_id;
  struct sockaddr_in at;
  struct sockaddr *to = (struct sockaddr *)&at;
  socklen_t len = sizeof at;
  CHECK(memory != NULL);
  FAILS(hw_send(fd, "x", 1, 0), EBADF);
  FAILS(hw_recv(fd, buffer, 8, 0), EBADF);
  FAILS(hw_recv_zero_copy(fd, &shown, 8, 0), EBADF);
  FAILS(hw_release(fd, 0), EBADF);
  FAILS(hw_finish(fd, 0), EBADF);
  FAILS(hw_accept(fd, NULL, NULL, 0), EBADF);
  FAILS(hw_getsockname(fd, to, &len), EBADF);
  FAILS(hw_getpeername(fd, to, &len), EBADF);
  FAILS(hw_shutdown(fd, SHUT_WR), EBADF);
  FAILS(hw_set_deadline(fd, 1), EBADF);
  FAILS(hw_set_nonblocking(fd, 1), EBADF);
  FAILS(hw_send_zero_copy(fd, memory, 8, 0), EBADF);
  FAILS(hw_reclaim(fd, memory, 0), EBADF);
  FAILS(hw_export(fd, memory, HW_RIGHT_READ, &export_id), EBADF);
  FAILS(hw_revoke(fd, memory, 0), EBADF);
  FAILS(hw_read(fd, 0, 0, memory, 0), EBADF);
  FAILS(hw_write(fd, 0, 0, memory, 0), EBADF);
  FAILS(hw_fetch_add(fd, 0, 0, 1, NULL), EBADF);
  FAILS(hw_compare_swap(fd, 0, 0, 1, 2, NULL), EBADF);
  FAILS(hw_close(fd), EBADF);
  CHECK(hw_free(memory) == 0);
}

static void addresses(void) {
  struct sockaddr_in at = check_at("0.0.0.0", 0);
  struct sockaddr_in6 six;
  struct sockaddr *to = (struct sockaddr *)&at;
  FAILS(hw_connect(NULL, sizeof at, 0), EFAULT);
  FAILS(hw_connect(to, 1, 0), EINVAL);
  FAILS(hw_connect(to, sizeof at - 1, 0), EINVAL);
  FAILS(hw_connect(to, sizeof at, 1 << 20), EINVAL);
  at.sin_family = AF_UNIX;
  FAILS(hw_connect(to, sizeof at, 0), EAFNOSUPPORT);
  FAILS(hw_listen(to, sizeof at, 1, 0), EAFNOSUPPORT);
  at = check_at("10.0.0.1", 0);
  FAILS(hw_listen(to, sizeof at, 1, 0), EADDRNOTAVAIL);
  FAILS(hw_listen(NULL, 0, 1, 0), EFAULT);
  memset(&six, 0, sizeof six);
  six.sin6_family = AF_INET6;
  FAILS(hw_listen((struct sockaddr *)&six, sizeof at, 1, 0), EINVAL);
  int fd = hw_listen((struct sockaddr *)&six, sizeof six, 0, 0);
  CHECK(fd >= 0);
  socklen_t len = sizeof at;
  CHECK(hw_getsockname(fd, to, &len) == 0);
  FAILS(hw_listen(to, sizeof at, 1, 0), EADDRINUSE);
  CHECK(hw_close(fd) == 0);
  FAILS(hw_attach(NULL, NULL), EFAULT);
  FAILS(hw_attach("/nowhere/at/all.sock", "test"), ENETDOWN);
}

static void arguments(void) {
  struct sockaddr_storage at;
  struct sockaddr *to = (struct sockaddr *)&at;
  struct sockaddr_in near, far;
  socklen_t len = sizeof near;
  uint32_t export_id;
  int ends[2], port;
  char buffer[8], *memory = hw_alloc(8);
  const void *shown;
  check_pair(ends);
  int fd = ends[0], listener = check_listen(&port);
  CHECK(memory != NULL);
  FAILS(hw_send(fd, NULL, 1, 0), EFAULT);
  FAILS(hw_recv(fd, NULL, 1, 0), EFAULT);
  CHECK(hw_send(fd, NULL, 0, 0) == 0);
  CHECK(hw_recv(fd, NULL, 0, 0) == 0);
  FAILS(hw_send(fd, "x", SIZE_MAX, 0), EINVAL);
  FAILS(hw_recv(fd, buffer, SIZE_MAX, 0), EINVAL);
  FAILS(hw_send(fd, "x", 1, HW_NONBLOCK), EINVAL);
  FAILS(hw_recv(fd, buffer, 8, 1 << 30), EINVAL);
  FAILS(hw_recv_zero_copy(fd, NULL, 8, 0), EFAULT);
  FAILS(hw_recv_zero_copy(fd, &shown, 0, 0), EINVAL);
  FAILS(hw_release(fd, 1), EINVAL);
  CHECK(hw_release(fd, 0) == 0);
  FAILS(hw_shutdown(fd, 77), EINVAL);
  FAILS(hw_set_deadline(fd, -2), EINVAL);
  CHECK(hw_set_deadline(fd, INT64_MAX) == 0);
  FAILS(hw_getsockname(fd, NULL, &len), EFAULT);
  FAILS(hw_getpeername(fd, to, NULL), EFAULT);
  FAILS(hw_getpeername(listener, to, &len), ENOTCONN);
  FAILS(hw_accept(fd, NULL, NULL, 0), EINVAL);
  FAILS(hw_accept(listener, to, NULL, 0), EFAULT);
  FAILS(hw_send(listener, "x", 1, 0), EOPNOTSUPP);
  FAILS(hw_recv(listener, buffer, 8, 0), EOPNOTSUPP);
  FAILS(hw_finish(listener, 0), EOPNOTSUPP);
  /* If there is too little room for an address, as much as fits is written. */
  len = 2;
  memset(&at, 0xee, sizeof at);
  CHECK(hw_getsockname(fd, to, &len) == 0);
  CHECK(len == sizeof near && at.ss_family == AF_INET);
  CHECK(((unsigned char *)&at)[2] == 0xee);
  len = sizeof near;
  CHECK(hw_getsockname(ends[0], (struct sockaddr *)&near, &len) == 0);
  CHECK(hw_getpeername(ends[1], (struct sockaddr *)&far, &len) == 0);
  CHECK(near.sin_addr.s_addr == far.sin_addr.s_addr);
  CHECK(near.sin_port == far.sin_port);
  CHECK(near.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
  /* Invalid calls with memory. */
  CHECK(hw_alloc(0) == NULL && errno == EINVAL);
  CHECK(hw_alloc(SIZE_MAX) == NULL && errno == ENOMEM);
  FAILS(hw_free(NULL), EFAULT);
  FAILS(hw_free(buffer), EINVAL);
  FAILS(hw_free(memory + 1), EINVAL);
  FAILS(hw_send_zero_copy(fd, NULL, 1, 0), EFAULT);
  FAILS(hw_send_zero_copy(fd, buffer, 1, 0), EINVAL);
  FAILS(hw_reclaim(fd, memory, 0), EINVAL);
  FAILS(hw_revoke(fd, memory, 0), EINVAL);
  FAILS(hw_export(fd, memory, 0, &export_id), EINVAL);
  FAILS(hw_export(fd, memory, 8, &export_id), EINVAL);
  FAILS(hw_export(fd, memory, -1, &export_id), EINVAL);
  FAILS(hw_export(fd, memory, HW_RIGHT_READ, NULL), EFAULT);
  FAILS(hw_read(fd, 0, 0, NULL, 0), EFAULT);
  FAILS(hw_write(fd, 0, 0, buffer, 0), EINVAL);
  CHECK(hw_free(memory) == 0);
  FAILS(hw_free(memory), EINVAL);
  CHECK(hw_close(listener) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

int main(void) {
  int ends[2];
  alarm(PATIENCE_S);
  CHECK(strcmp(hw_version(), getenv("HW_VERSION")) == 0);
  CHECK(hw_strerror() != NULL);
  check_pair(ends);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  /* Descriptors that are closed, never open, negative, or not of headworks. */
  int plain = dup(0);
  CHECK(plain >= 0);
  const int none[] = {ends[0], ends[1], 100000, -1, plain, 0};
  for (size_t at = 0; at < sizeof none / sizeof *none; at++)
    descriptors(none[at]);
  CHECK(close(plain) == 0);
  addresses();
  arguments();
  return 0;
}
