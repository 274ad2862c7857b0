/* One-sided operations on memory of the other end. */
#include "check.h"

#define LEN ((size_t)1 << 16)

int main(void) {
  int ends[2];
  uint32_t told, export_id;
  uint64_t before;
  alarm(PATIENCE_S);
  check_pair(ends);
  int near = ends[0], far = ends[1];
  unsigned char *exported = hw_alloc(LEN);
  check_attach("HW_ONE");
  unsigned char *memory = hw_alloc(LEN), *small = hw_alloc(8);
  CHECK(exported != NULL && memory != NULL && small != NULL);
  memset(exported, 0, LEN);
  const int all = HW_RIGHT_READ | HW_RIGHT_WRITE | HW_RIGHT_ATOMIC;
  /* This memory is of the other daemon. */
  FAILS(hw_export(far, memory, all, &export_id), EINVAL);
  CHECK(hw_export(far, exported, all, &told) == 0);
  FAILS(hw_free(exported), EBUSY);
  FAILS(hw_reclaim(far, exported, 0), EINVAL);
  CHECK(hw_send(far, &told, sizeof told, 0) == sizeof told);
  check_recv(near, &export_id, sizeof export_id);
  CHECK(export_id == told);
  check_fill(memory, LEN, 0);
  CHECK(hw_write(near, export_id, 0, memory, 0) == (ssize_t)LEN);
  check_same(exported, LEN, 0);
  memset(memory, 0, LEN);
  CHECK(hw_read(near, export_id, 0, memory, HW_START) == (ssize_t)LEN);
  CHECK(hw_reclaim(near, memory, 0) == 0);
  check_same(memory, LEN, 0);
  /* Writes only as many bytes as the local memory has. */
  memset(small, 7, 8);
  CHECK(hw_write(near, export_id, 8, small, 0) == 8);
  CHECK(exported[7] == check_byte(7) && exported[16] == check_byte(16));
  CHECK(memcmp(exported + 8, small, 8) == 0);
  /* Atomic operations wait even if the descriptor is non-blocking. */
  memset(small, 0, 8);
  CHECK(hw_write(near, export_id, 0, small, 0) == 8);
  CHECK(hw_set_nonblocking(near, 1) == 0);
  for (uint64_t round = 0; round < 1000; round++) {
    CHECK(hw_fetch_add(near, export_id, 0, 2, &before) == 0);
    CHECK(before == 2 * round);
  }
  CHECK(hw_compare_swap(near, export_id, 0, 1, 5, &before) == 0);
  CHECK(before == 2000);
  CHECK(hw_compare_swap(near, export_id, 0, 2000, 5, NULL) == 0);
  CHECK(hw_fetch_add(near, export_id, 0, 0, &before) == 0);
  CHECK(before == 5);
  CHECK(__atomic_load_n((uint64_t *)(void *)exported, __ATOMIC_ACQUIRE) == 5);
  /* Invalid operations; the local memory stays this end's. */
  FAILS(hw_read(near, export_id, 1, memory, 0), ERANGE);
  FAILS(hw_fetch_add(near, export_id, 4, 1, NULL), ERANGE);
  FAILS(hw_fetch_add(near, export_id, UINT64_MAX, 1, NULL), ERANGE);
  FAILS(hw_read(near, export_id + 1, 0, memory, 0), ENXIO);
  CHECK(hw_read(near, export_id, 0, exported, HW_START) == -1 && errno == EBUSY);
  CHECK(hw_revoke(far, exported, 0) == 0);
  FAILS(hw_revoke(far, exported, 0), EINVAL);
  FAILS(hw_fetch_add(near, export_id, 0, 1, NULL), ENXIO);
  /* Data sent after an export arrives after the other daemon knows of it. */
  CHECK(hw_export(far, exported, HW_RIGHT_READ, &told) == 0);
  CHECK(hw_send(far, &told, sizeof told, 0) == sizeof told);
  CHECK(hw_set_nonblocking(near, 0) == 0);
  check_recv(near, &export_id, sizeof export_id);
  CHECK(hw_set_nonblocking(near, 1) == 0);
  CHECK(hw_read(near, export_id, 0, memory, 0) == (ssize_t)LEN);
  FAILS(hw_write(near, export_id, 0, memory, 0), EACCES);
  FAILS(hw_fetch_add(near, export_id, 0, 1, NULL), EACCES);
  CHECK(hw_write(near, export_id, 0, memory, HW_START) == (ssize_t)LEN);
  CHECK(hw_set_nonblocking(near, 0) == 0);
  FAILS(hw_reclaim(near, memory, 0), EACCES);
  FAILS(hw_reclaim(near, memory, 0), EINVAL);
  /* The connection is closed without a call to hw_revoke(). */
  CHECK(hw_close(far) == 0);
  CHECK(hw_free(exported) == 0);
  do {
    CHECK(hw_fetch_add(near, export_id, 0, 1, NULL) == -1);
    /* Repeats until the other daemon knows of the close. */
  } while (errno == EACCES);
  CHECK(errno == ENXIO || errno == ECONNRESET);
  CHECK(hw_close(near) == 0);
  CHECK(hw_free(memory) == 0 && hw_free(small) == 0);
  return 0;
}
