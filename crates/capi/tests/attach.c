/* Any call attaches to a daemon at most once, and again after a restart. */
#include "check.h"

static void use(char *memory) {
  int port, listener = check_listen(&port), ends[2];
  char got[8];
  ends[0] = check_connect("127.0.0.1", port, 0);
  CHECK(ends[0] >= 0);
  ends[1] = hw_accept(listener, NULL, NULL, 0);
  CHECK(ends[1] >= 0);
  memcpy(memory, "the same", sizeof got);
  CHECK(hw_send_zero_copy(ends[0], memory, sizeof got, 0) == sizeof got);
  check_recv(ends[1], got, sizeof got);
  CHECK(memcmp(got, "the same", sizeof got) == 0);
  CHECK(hw_reclaim(ends[0], memory, 0) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  CHECK(hw_close(listener) == 0);
}

int main(void) {
  CHECK(setenv("HEADWORKS_DAEMON", getenv("HW_ONE"), 1) == 0);
  /* This call attaches to HW_ONE, so the memory and later connections match. */
  char *memory = hw_alloc(8);
  CHECK(memory != NULL);
  check_attach("HW_ONE");
  use(memory);
  check_attach("HW_OTHER");
  check_attach("HW_ONE");
  use(memory);
  CHECK(hw_free(memory) == 0);
  /* The daemon is killed and restarts. */
  CHECK(putchar('1') == '1' && fflush(stdout) == 0);
  CHECK(getchar() == '1');
  memory = hw_alloc(8);
  CHECK(memory != NULL);
  use(memory);
  check_attach("HW_ONE");
  use(memory);
  CHECK(hw_free(memory) == 0);
  return 0;
}
