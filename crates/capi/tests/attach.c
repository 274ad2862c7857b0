/* Any call attaches to a daemon at most once, and again after a restart.
 * Listeners tell that their daemon is gone. */
#include "check.h"

/* Accepts until the listener fails, and returns the error. */
static void *accept_all(void *with) {
  while (hw_accept(*(int *)with, NULL, NULL, 0) >= 0)
    ;
  return (void *)(intptr_t)errno;
}

/* accept(2) has servers go on after ECONNABORTED and EPROTO, so a listener of
 * a daemon that is gone must not set these. */
static void is_over(int listener) {
  CHECK(check_poll(listener, 0) & POLLHUP);
  for (int times = 0; times < 3; times++) {
    FAILS(hw_accept(listener, NULL, NULL, 0), ESHUTDOWN);
    FAILS(hw_accept(listener, NULL, NULL, HW_DONTWAIT), ESHUTDOWN);
  }
  CHECK(hw_close(listener) == 0);
}

/* Makes a connection with both ends at HW_ONE, which is attached. */
static void local_pair(int ends[2]) {
  int port, listener = check_listen(&port);
  ends[0] = check_connect("127.0.0.1", port, 0);
  CHECK(ends[0] >= 0);
  ends[1] = hw_accept(listener, NULL, NULL, 0);
  CHECK(ends[1] >= 0);
  CHECK(hw_close(listener) == 0);
}

static void use(char *memory) {
  int ends[2];
  char got[8];
  local_pair(ends);
  memcpy(memory, "the same", sizeof got);
  CHECK(hw_send_zero_copy(ends[0], memory, sizeof got, 0) == sizeof got);
  check_recv(ends[1], got, sizeof got);
  CHECK(memcmp(got, "the same", sizeof got) == 0);
  CHECK(hw_reclaim(ends[0], memory, 0) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

int main(void) {
  alarm(PATIENCE_S);
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
  /* HW_ONE is killed, HW_OTHER terminates, and both restart. */
  int port, ends[2], listener = check_listen(&port);
  pthread_t accepts = check_thread(accept_all, &listener);
  check_attach("HW_OTHER");
  int stopping = check_listen(&port);
  check_attach("HW_ONE");
  local_pair(ends);
  CHECK(putchar('1') == '1' && fflush(stdout) == 0);
  CHECK(getchar() == '1');
  CHECK((intptr_t)check_join(accepts) == ESHUTDOWN);
  is_over(listener);
  is_over(stopping);
  /* For connections it is another error. */
  char byte;
  FAILS(hw_recv(ends[0], &byte, 1, 0), ECONNABORTED);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  memory = hw_alloc(8);
  CHECK(memory != NULL);
  use(memory);
  check_attach("HW_ONE");
  use(memory);
  CHECK(hw_free(memory) == 0);
  return 0;
}
