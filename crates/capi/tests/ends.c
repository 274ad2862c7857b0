/* How streams end, and which calls work afterwards. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

static void *receive(void *with) {
  char byte;
  ssize_t got = hw_recv(*(int *)with, &byte, 1, 0);
  return (void *)(intptr_t)(got < 0 ? errno : got == 0 ? 0 : -1);
}

static void half(void) {
  int ends[2];
  char buffer[8];
  check_pair(ends);
  CHECK(hw_send(ends[0], "one", 3, 0) == 3);
  CHECK(hw_shutdown(ends[0], SHUT_WR) == 0);
  CHECK(hw_shutdown(ends[0], SHUT_WR) == 0);
  FAILS(hw_send(ends[0], "more", 4, 0), EPIPE);
  check_recv(ends[1], buffer, 3);
  CHECK(memcmp(buffer, "one", 3) == 0);
  CHECK(hw_recv(ends[1], buffer, sizeof buffer, 0) == 0);
  CHECK(hw_recv(ends[1], buffer, sizeof buffer, 0) == 0);
  /* The other direction still works. */
  CHECK(hw_send(ends[1], "other", 5, 0) == 5);
  check_recv(ends[0], buffer, 5);
  CHECK(memcmp(buffer, "other", 5) == 0);
  CHECK(hw_close(ends[1]) == 0);
  CHECK(hw_recv(ends[0], buffer, sizeof buffer, 0) == 0);
  CHECK(hw_close(ends[0]) == 0);
}

/* SHUT_RD: nothing is received any more, and a waiting call returns 0. */
static void deaf(void) {
  int ends[2];
  char byte;
  const void *shown;
  check_pair(ends);
  pthread_t waits = check_thread(receive, &ends[1]);
  CHECK(hw_shutdown(ends[1], SHUT_RD) == 0);
  CHECK(check_join(waits) == NULL);
  CHECK(hw_send(ends[0], "unheard", 7, 0) == 7);
  CHECK(hw_recv(ends[1], &byte, 1, 0) == 0);
  CHECK(hw_recv_zero_copy(ends[1], &shown, 1, 0) == 0);
  CHECK(hw_send(ends[1], "spoken", 6, 0) == 6);
  CHECK(hw_shutdown(ends[1], SHUT_RDWR) == 0);
  FAILS(hw_send(ends[1], "spoken", 6, 0), EPIPE);
  char buffer[6];
  check_recv(ends[0], buffer, 6);
  CHECK(hw_recv(ends[0], buffer, 6, 0) == 0);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

/* The other end closes without having received all data. */
static void reset(void) {
  int ends[2];
  char buffer[4096];
  check_pair(ends);
  CHECK(hw_send(ends[0], "unread", 6, 0) == 6);
  CHECK(check_poll(ends[1], POLLIN) & POLLIN);
  CHECK(hw_close(ends[1]) == 0);
  CHECK(check_poll(ends[0], 0) & POLLHUP);
  FAILS(hw_send(ends[0], buffer, sizeof buffer, 0), ECONNRESET);
  CHECK(hw_close(ends[0]) == 0);
}

/* Runs in a child process: connects to the port, sends a byte, and waits. */
static int peer(const char *port) {
  char byte;
  check_attach("HW_ONE");
  int fd = check_connect("127.0.0.2", atoi(port), 0);
  CHECK(fd >= 0);
  CHECK(hw_send(fd, "!", 1, 0) == 1);
  hw_recv(fd, &byte, 1, 0);
  return 1;
}

/* The application at the other end is killed. */
static void killed(const char *program) {
  char text[16], byte;
  int port, status;
  check_attach("HW_OTHER");
  int listener = check_listen(&port);
  snprintf(text, sizeof text, "%d", port);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl(program, program, text, (char *)NULL);
    _exit(1);
  }
  int fd = hw_accept(listener, NULL, NULL, 0);
  CHECK(fd >= 0);
  CHECK(hw_recv(fd, &byte, 1, 0) == 1);
  CHECK(kill(child, SIGKILL) == 0);
  FAILS(hw_recv(fd, &byte, 1, 0), ECONNRESET);
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  CHECK(hw_close(fd) == 0 && hw_close(listener) == 0);
}

int main(int argc, char **argv) {
  alarm(PATIENCE_S);
  if (argc > 1)
    return peer(argv[1]);
  half();
  deaf();
  reset();
  killed(argv[0]);
  return 0;
}
