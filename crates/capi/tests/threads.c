/* Several threads use one descriptor, and one of them closes it. */
#include "check.h"

#include <signal.h>

#define TOTAL ((size_t)8 << 20)

static void *send_all(void *with) {
  unsigned char *bytes = malloc(TOTAL);
  CHECK(bytes != NULL);
  check_fill(bytes, TOTAL, 0);
  CHECK(hw_send(*(int *)with, bytes, TOTAL, 0) == (ssize_t)TOTAL);
  free(bytes);
  return NULL;
}

static void *receive_all(void *with) {
  unsigned char *bytes = malloc(TOTAL);
  CHECK(bytes != NULL);
  check_recv(*(int *)with, bytes, TOTAL);
  check_same(bytes, TOTAL, 0);
  free(bytes);
  return NULL;
}

/* Both directions at the same time, with a thread per direction and end. */
static void both_ways(void) {
  int ends[2];
  pthread_t threads[4];
  check_pair(ends);
  for (int end = 0; end < 2; end++) {
    threads[end] = check_thread(send_all, &ends[end]);
    threads[2 + end] = check_thread(receive_all, &ends[end]);
  }
  for (int at = 0; at < 4; at++)
    check_join(threads[at]);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

static void *receive(void *with) {
  char byte;
  ssize_t got = hw_recv(*(int *)with, &byte, 1, 0);
  return (void *)(intptr_t)(got < 0 ? errno : 0);
}

static void *fill_up(void *with) {
  static char piece[1 << 16];
  while (hw_send(*(int *)with, piece, sizeof piece, 0) > 0)
    ;
  return (void *)(intptr_t)errno;
}

static void *take(void *with) {
  int fd = hw_accept(*(int *)with, NULL, NULL, 0);
  return (void *)(intptr_t)(fd < 0 ? errno : 0);
}

/* Calls that wait, or are about to, fail when the descriptor is closed. */
static void closed_meanwhile(void) {
  int ends[2], port;
  check_pair(ends);
  pthread_t receives = check_thread(receive, &ends[0]);
  pthread_t also = check_thread(receive, &ends[0]);
  pthread_t sends = check_thread(fill_up, &ends[0]);
  int listener = check_listen(&port);
  pthread_t accepts = check_thread(take, &listener);
  CHECK(hw_close(listener) == 0);
  CHECK((intptr_t)check_join(accepts) == EBADF);
  CHECK(hw_close(ends[0]) == 0);
  CHECK((intptr_t)check_join(receives) == EBADF);
  CHECK((intptr_t)check_join(also) == EBADF);
  CHECK((intptr_t)check_join(sends) == EBADF);
  CHECK(hw_close(ends[1]) == 0);
}

static void nothing(int signal) { (void)signal; }

/* Signals do not end a call: it waits until a byte arrives. */
static void interrupted(void) {
  int ends[2];
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = nothing;
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  check_pair(ends);
  pthread_t receives = check_thread(receive, &ends[0]);
  for (int round = 0; round < 1000; round++)
    CHECK(pthread_kill(receives, SIGUSR1) == 0);
  CHECK(hw_send(ends[1], "x", 1, 0) == 1);
  CHECK(check_join(receives) == NULL);
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

int main(void) {
  alarm(PATIENCE_S);
  both_ways();
  for (int round = 0; round < 50; round++)
    closed_meanwhile();
  interrupted();
  return 0;
}
