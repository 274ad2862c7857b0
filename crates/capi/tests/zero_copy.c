/* Zero-copy sending and receiving. */
#include "check.h"

#define LEN ((size_t)4 << 20)

/* Receives all data without copies; releases half of each piece. */
static void *receive(void *with) {
  int fd = *(int *)with;
  size_t received = 0;
  const void *at;
  ssize_t len;
  while ((len = hw_recv_zero_copy(fd, &at, SIZE_MAX, 0)) > 0) {
    check_same(at, (size_t)len, received);
    size_t half = ((size_t)len + 1) / 2;
    CHECK(hw_release(fd, half) == 0);
    FAILS(hw_release(fd, (size_t)len), EINVAL);
    received += half;
  }
  CHECK(len == 0);
  CHECK(received == 2 * LEN);
  return NULL;
}

int main(void) {
  int ends[2];
  const void *at;
  char byte;
  alarm(PATIENCE_S);
  check_pair(ends);
  check_attach("HW_ONE");
  pthread_t receiver = check_thread(receive, &ends[1]);
  unsigned char *memory = hw_alloc(LEN);
  CHECK(memory != NULL);
  FAILS(hw_send_zero_copy(ends[0], memory, 0, 0), EINVAL);
  FAILS(hw_send_zero_copy(ends[0], memory, LEN + 1, 0), EINVAL);
  for (int round = 0; round < 2; round++) {
    check_fill(memory, LEN, (size_t)round * LEN);
    CHECK(hw_send_zero_copy(ends[0], memory, LEN, 0) == (ssize_t)LEN);
    FAILS(hw_free(memory), EBUSY);
    FAILS(hw_send_zero_copy(ends[0], memory, LEN, 0), EBUSY);
    FAILS(hw_reclaim(ends[1], memory, 0), EINVAL);
    CHECK(hw_reclaim(ends[0], memory, 0) == 0);
    FAILS(hw_reclaim(ends[0], memory, 0), EINVAL);
  }
  CHECK(hw_shutdown(ends[0], SHUT_WR) == 0);
  check_join(receiver);
  /* Memory that cannot be lent stays unchanged, and this program's. */
  memory[0] = 77;
  FAILS(hw_send_zero_copy(ends[0], memory, 1, 0), EPIPE);
  CHECK(memory[0] == 77);
  /* Bytes that were shown stay until they are released. */
  CHECK(hw_send(ends[1], "shown", 5, 0) == 5);
  for (int round = 0; round < 3; round++) {
    CHECK(hw_recv_zero_copy(ends[0], &at, 1, 0) == 1);
    CHECK(*(const char *)at == 's');
  }
  CHECK(hw_release(ends[0], 1) == 0);
  check_recv(ends[0], &byte, 1);
  CHECK(byte == 'h');
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  CHECK(hw_free(memory) == 0);
  /* The connection is closed while the daemon holds the memory. */
  check_pair(ends);
  check_attach("HW_ONE");
  memory = hw_alloc(LEN);
  CHECK(memory != NULL);
  CHECK(hw_send_zero_copy(ends[0], memory, LEN, 0) == (ssize_t)LEN);
  FAILS(hw_reclaim(ends[0], memory, HW_DONTWAIT), EAGAIN);
  CHECK(hw_set_deadline(ends[0], 1) == 0);
  FAILS(hw_reclaim(ends[0], memory, 0), ETIMEDOUT);
  CHECK(hw_close(ends[0]) == 0);
  CHECK(hw_free(memory) == 0);
  CHECK(hw_close(ends[1]) == 0);
  return 0;
}
