/* A child cannot use what it inherits, and may end without harm. */
#include "check.h"

#include <sys/wait.h>

static int in_child(int fd, int poller, void *memory) {
  struct hw_poller_event event;
  char byte;
  FAILS(hw_send(fd, "x", 1, 0), EBADF);
  CHECK(strstr(hw_strerror(), "fork") != NULL);
  FAILS(hw_recv(fd, &byte, 1, HW_DONTWAIT), EBADF);
  FAILS(hw_close(fd), EBADF);
  FAILS(hw_free(memory), EBADF);
  FAILS(hw_poller_create(), EBADF);
  FAILS(hw_poller_wait(poller, &event, 1, -1), EBADF);
  FAILS(hw_poller_wake(poller), EBADF);
  FAILS(hw_attach(getenv("HW_ONE"), NULL), EBADF);
  FAILS(check_connect("127.0.0.2", 9, 0), EBADF);
  CHECK(hw_alloc(1) == NULL && errno == EBADF);
  return 0;
}

/* A thread that waits in a call while the process forks. */
static void *receive(void *with) {
  char byte;
  check_recv(*(int *)with, &byte, 1);
  return NULL;
}

/* A thread that waits with a poller while the process forks. */
static void *wait_for_wake(void *with) {
  struct hw_poller_event event;
  CHECK(hw_poller_wait(*(int *)with, &event, 1, -1) == 0);
  return NULL;
}

int main(void) {
  int ends[2], status;
  char byte;
  alarm(PATIENCE_S);
  /* A process may fork before it uses the library. */
  pid_t child = fork();
  if (child == 0) {
    check_attach("HW_ONE");
    return 0;
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  check_pair(ends);
  void *memory = hw_alloc(4096);
  CHECK(memory != NULL);
  int poller = hw_poller_create();
  CHECK(poller >= 0);
  pthread_t waits = check_thread(receive, &ends[1]);
  pthread_t polls = check_thread(wait_for_wake, &poller);
  for (int round = 0; round < 20; round++) {
    child = fork();
    CHECK(child >= 0);
    /* Ends by return, so that all exit handlers run. */
    if (child == 0)
      return in_child(ends[0], poller, memory);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  CHECK(hw_send(ends[0], "x", 1, 0) == 1);
  check_join(waits);
  CHECK(hw_poller_wake(poller) == 0);
  check_join(polls);
  CHECK(hw_close(poller) == 0);
  CHECK(hw_send(ends[1], "y", 1, 0) == 1);
  check_recv(ends[0], &byte, 1);
  CHECK(byte == 'y');
  CHECK(hw_free(memory) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
  return 0;
}
