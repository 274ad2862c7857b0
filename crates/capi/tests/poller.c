/* Pollers, and connections without file descriptors. $HW_DIRECT is "1" if the
 * daemons make direct connections, and "0" if all bytes go through them. */
#include "check.h"

#define MANY 300
#define MAX 7
#define BOTH (HW_POLLIN | HW_POLLOUT)

static int is_direct;

/* Listens without a file descriptor at the attached daemon. */
static int listen_there(int *port) {
  struct sockaddr_in any = check_at("0.0.0.0", 0);
  socklen_t len = sizeof any;
  int fd = hw_listen((struct sockaddr *)&any, sizeof any, MANY, HW_NO_FD);
  CHECK(fd >= 1 << 30);
  CHECK(hw_getsockname(fd, (struct sockaddr *)&any, &len) == 0);
  *port = ntohs(any.sin_port);
  return fd;
}

/* Waits for an event, which must be of `key`, and returns which. */
#define event_of(poller, key) wait_for_event(__LINE__, poller, key)
static uint32_t wait_for_event(int line, int poller, uint64_t key) {
  struct hw_poller_event event;
  if (hw_poller_wait(poller, &event, 1, -1) != 1 || event.key != key)
    check_failed(__FILE__, line, "an event of this key");
  return event.events;
}

/* There is no event now. */
#define no_event(poller) look_for_no_event(__LINE__, poller)
static void look_for_no_event(int line, int poller) {
  struct hw_poller_event event;
  if (hw_poller_wait(poller, &event, 1, 0) != 0)
    check_failed(__FILE__, line, "no event");
}

/* There is no event now, and the descriptor is not readable. It may have been
 * so before without an event. */
#define quiet(poller) wait_until_quiet(__LINE__, poller)
static void wait_until_quiet(int line, int poller) {
  struct pollfd polled = {poller, POLLIN, 0};
  do
    look_for_no_event(line, poller);
  while (poll(&polled, 1, 0) != 0);
}

/* Accepts a connection, of a listener that is in no poller. */
static int accept_one(int listener) {
  int poller = hw_poller_create();
  CHECK(poller >= 0);
  CHECK(hw_poller_add(poller, listener, 0, HW_POLLIN) == 0);
  CHECK(event_of(poller, 0) == HW_POLLIN);
  CHECK(hw_close(poller) == 0);
  int fd = hw_accept(listener, NULL, NULL, 0);
  CHECK(fd >= 1 << 30);
  return fd;
}

/* Makes a connection as check_pair() does, without file descriptors. */
static void pair(int ends[2]) {
  int port;
  check_attach("HW_OTHER");
  int listener = listen_there(&port);
  check_attach("HW_ONE");
  ends[0] = check_connect("127.0.0.2", port, HW_NO_FD);
  CHECK(ends[0] >= 1 << 30);
  check_attach("HW_OTHER");
  ends[1] = accept_one(listener);
  CHECK(hw_close(listener) == 0);
  CHECK(hw_is_direct(ends[0]) == is_direct);
  CHECK(hw_is_direct(ends[1]) == is_direct);
}

static void close_pair(int ends[2]) {
  CHECK(hw_close(ends[0]) == 0 && hw_close(ends[1]) == 0);
}

/* Sends until there is no room, and returns the number of bytes. */
static size_t fill(int fd) {
  static char piece[1 << 16];
  size_t sent = 0;
  ssize_t some;
  while ((some = hw_send(fd, piece, sizeof piece, 0)) > 0)
    sent += (size_t)some;
  CHECK(some == -1 && errno == EAGAIN);
  return sent;
}

/* Receives all that has arrived, and returns the number of bytes. */
static size_t drain(int fd) {
  static char piece[1 << 16];
  size_t received = 0;
  ssize_t some;
  while ((some = hw_recv(fd, piece, sizeof piece, 0)) > 0)
    received += (size_t)some;
  CHECK(some == -1 && errno == EAGAIN);
  return received;
}

static void level_triggered(void) {
  int ends[2];
  char bytes[8];
  pair(ends);
  int poller = hw_poller_create();
  CHECK(poller >= 0);
  CHECK(hw_poller_add(poller, ends[1], 5, HW_POLLIN) == 0);
  FAILS(hw_poller_add(poller, ends[1], 5, HW_POLLIN), EEXIST);
  no_event(poller);
  CHECK(hw_send(ends[0], "abc", 3, 0) == 3);
  for (int round = 0; round < 3; round++)
    CHECK(event_of(poller, 5) == HW_POLLIN);
  CHECK(hw_recv(ends[1], bytes, 2, 0) == 2);
  CHECK(event_of(poller, 5) == HW_POLLIN);
  CHECK(hw_recv(ends[1], bytes, sizeof bytes, 0) == 1);
  no_event(poller);
  FAILS(hw_recv(ends[1], bytes, sizeof bytes, 0), EAGAIN);
  CHECK(hw_poller_modify(poller, ends[1], 1ull << 63, BOTH) == 0);
  CHECK(event_of(poller, 1ull << 63) == HW_POLLOUT);
  CHECK(hw_send(ends[0], "d", 1, 0) == 1);
  while (event_of(poller, 1ull << 63) != BOTH)
    ;
  /* The end of the stream is something to receive. */
  CHECK(hw_poller_modify(poller, ends[1], 6, HW_POLLIN) == 0);
  CHECK(hw_shutdown(ends[0], SHUT_WR) == 0);
  CHECK(event_of(poller, 6) == HW_POLLIN);
  CHECK(hw_recv(ends[1], bytes, sizeof bytes, 0) == 1);
  CHECK(event_of(poller, 6) == HW_POLLIN);
  CHECK(hw_recv(ends[1], bytes, sizeof bytes, 0) == 0);
  CHECK(hw_poller_remove(poller, ends[1]) == 0);
  FAILS(hw_poller_remove(poller, ends[1]), ENOENT);
  FAILS(hw_poller_modify(poller, ends[1], 6, HW_POLLIN), ENOENT);
  no_event(poller);
  /* What was closed leaves the poller. */
  CHECK(hw_poller_add(poller, ends[1], 7, HW_POLLIN) == 0);
  CHECK(event_of(poller, 7) == HW_POLLIN);
  close_pair(ends);
  no_event(poller);
  CHECK(hw_close(poller) == 0);
  FAILS(hw_poller_wait(poller, NULL, 1, 0), EBADF);
}

static void edge_triggered(void) {
  int ends[2];
  char byte;
  size_t received = 0;
  pair(ends);
  int poller = hw_poller_create();
  CHECK(hw_poller_add(poller, ends[1], 1, HW_POLLIN | HW_POLLET) == 0);
  for (int round = 0; round < 3; round++) {
    no_event(poller);
    CHECK(hw_send(ends[0], "x", 1, 0) == 1);
    CHECK(event_of(poller, 1) == HW_POLLIN);
    no_event(poller);
  }
  CHECK(hw_poller_modify(poller, ends[1], 2, HW_POLLIN | HW_POLLET) == 0);
  CHECK(event_of(poller, 2) == HW_POLLIN);
  no_event(poller);
  while (received < 3)
    received += drain(ends[1]);
  /* Room. */
  check_attach("HW_ONE");
  int sends = hw_poller_create();
  CHECK(hw_poller_add(sends, ends[0], 3, HW_POLLOUT | HW_POLLET) == 0);
  CHECK(event_of(sends, 3) == HW_POLLOUT);
  no_event(sends);
  CHECK(fill(ends[0]) > 0);
  /* Daemons forward some of the bytes, so there may be room before the other
   * end has received any. */
  struct hw_poller_event event;
  while (hw_poller_wait(sends, &event, 1, 0) == 0)
    drain(ends[1]);
  CHECK(event.key == 3 && event.events == HW_POLLOUT);
  CHECK(hw_close(sends) == 0);
  /* A closed poller leaves the connection to others. */
  check_attach("HW_ONE");
  sends = hw_poller_create();
  CHECK(hw_poller_add(sends, ends[0], 4, HW_POLLOUT) == 0);
  CHECK(event_of(sends, 4) == HW_POLLOUT);
  CHECK(hw_send(ends[0], &byte, 0, 0) == 0);
  CHECK(hw_close(sends) == 0 && hw_close(poller) == 0);
  close_pair(ends);
}

static void listener(void) {
  int port, made[2];
  check_attach("HW_ONE");
  int callers = hw_poller_create();
  check_attach("HW_OTHER");
  int poller = hw_poller_create();
  int listens = listen_there(&port);
  FAILS(hw_accept(listens, NULL, NULL, 0), EAGAIN);
  CHECK(hw_poller_add(poller, listens, 9, HW_POLLIN) == 0);
  no_event(poller);
  check_attach("HW_ONE");
  int fd = check_connect("127.0.0.2", port, HW_NO_FD | HW_NONBLOCK);
  CHECK(fd >= 1 << 30);
  CHECK(hw_poller_add(callers, fd, 10, HW_POLLIN) == 0);
  CHECK(event_of(poller, 9) == HW_POLLIN);
  CHECK(event_of(poller, 9) == HW_POLLIN);
  CHECK((made[1] = hw_accept(listens, NULL, NULL, 0)) >= 1 << 30);
  no_event(poller);
  /* The connection is made: it is reported once for that. */
  CHECK(event_of(callers, 10) == HW_POLLOUT);
  CHECK(hw_finish(fd, 0) == 0);
  no_event(callers);
  CHECK(hw_send(made[1], "x", 1, 0) == 1);
  CHECK(event_of(callers, 10) == HW_POLLIN);
  CHECK(hw_close(fd) == 0 && hw_close(made[1]) == 0);
  /* hw_finish() may find that out before the poller. */
  fd = check_connect("127.0.0.2", port, HW_NO_FD | HW_NONBLOCK);
  CHECK(hw_poller_add(callers, fd, 11, HW_POLLIN) == 0);
  while (hw_finish(fd, 0) != 0)
    CHECK(errno == EINPROGRESS);
  CHECK(event_of(callers, 11) == HW_POLLOUT);
  no_event(callers);
  made[0] = fd;
  CHECK(event_of(poller, 9) == HW_POLLIN);
  CHECK((made[1] = hw_accept(listens, NULL, NULL, 0)) >= 1 << 30);
  CHECK(hw_is_direct(fd) == is_direct);
  close_pair(made);
  /* One is closed while it is in the poller and connecting. */
  fd = check_connect("127.0.0.2", port, HW_NO_FD | HW_NONBLOCK);
  CHECK(hw_poller_add(callers, fd, 12, HW_POLLIN) == 0);
  CHECK(hw_close(fd) == 0);
  no_event(callers);
  /* A caller waits, but is not asked for. */
  CHECK((fd = check_connect("127.0.0.2", port, HW_NO_FD)) >= 1 << 30);
  CHECK(event_of(poller, 9) == HW_POLLIN);
  CHECK(hw_poller_modify(poller, listens, 9, 0) == 0);
  no_event(poller);
  CHECK(hw_poller_modify(poller, listens, 15, HW_POLLIN) == 0);
  CHECK(event_of(poller, 15) == HW_POLLIN);
  CHECK(hw_close(fd) == 0 && hw_close(listens) == 0);
  no_event(poller);
  CHECK(hw_close(poller) == 0);
  /* Nobody listens. */
  fd = check_connect("127.0.0.2", 9, HW_NO_FD | HW_NONBLOCK);
  CHECK(hw_poller_add(callers, fd, 13, HW_POLLIN) == 0);
  CHECK(event_of(callers, 13) == (HW_POLLOUT | HW_POLLHUP));
  no_event(callers);
  FAILS(hw_finish(fd, 0), ECONNREFUSED);
  FAILS(hw_finish(fd, 0), ENOTCONN);
  no_event(callers);
  CHECK(hw_poller_remove(callers, fd) == 0);
  FAILS(hw_poller_add(callers, fd, 13, HW_POLLIN), ENOTCONN);
  CHECK(hw_close(fd) == 0);
  /* hw_finish() may find that out before the poller, too. */
  fd = check_connect("127.0.0.2", 9, HW_NO_FD | HW_NONBLOCK);
  CHECK(hw_poller_add(callers, fd, 14, HW_POLLIN) == 0);
  while (hw_finish(fd, 0) != 0 && errno == EINPROGRESS)
    ;
  CHECK(errno == ECONNREFUSED);
  CHECK(event_of(callers, 14) == (HW_POLLOUT | HW_POLLHUP));
  no_event(callers);
  CHECK(hw_close(fd) == 0 && hw_close(callers) == 0);
  FAILS(check_connect("127.0.0.2", 9, HW_NO_FD), ECONNREFUSED);
}

/* An end that leaves bytes unread resets the other. */
static void hung_up(void) {
  int ends[2];
  pair(ends);
  int poller = hw_poller_create();
  check_attach("HW_ONE");
  int near = hw_poller_create();
  CHECK(hw_poller_add(poller, ends[1], 1, 0) == 0);
  CHECK(hw_poller_add(near, ends[0], 2, HW_POLLIN) == 0);
  CHECK(hw_send(ends[1], "x", 1, 0) == 1);
  CHECK(event_of(near, 2) == HW_POLLIN);
  no_event(poller);
  CHECK(hw_close(ends[0]) == 0);
  CHECK(event_of(poller, 1) & HW_POLLHUP);
  CHECK(event_of(poller, 1) & HW_POLLHUP);
  FAILS(hw_send(ends[1], "x", 1, 0), ECONNRESET);
  CHECK(hw_close(ends[1]) == 0);
  no_event(poller);
  CHECK(hw_close(near) == 0 && hw_close(poller) == 0);
}

static int shared_poller;

static void *wake(void *with) {
  (void)with;
  CHECK(hw_poller_wake(shared_poller) == 0);
  return NULL;
}

static void *wait_for_it(void *with) {
  struct hw_poller_event event;
  int found = hw_poller_wait(shared_poller, &event, 1, -1);
  if (found == 1)
    CHECK(event.key == (uint64_t)(intptr_t)with && event.events == HW_POLLIN);
  return (void *)(intptr_t)(found < 0 ? errno : -found);
}

static void *poll_it(void *with) {
  (void)with;
  CHECK(check_poll(shared_poller, POLLIN) & POLLIN);
  return NULL;
}

static void *send_one(void *with) {
  CHECK(hw_send(*(int *)with, "x", 1, 0) == 1);
  return NULL;
}

static void woken(void) {
  struct hw_poller_event event;
  int ends[2];
  pair(ends);
  shared_poller = hw_poller_create();
  /* Before the wait, and during it. */
  CHECK(hw_poller_wake(shared_poller) == 0);
  CHECK(hw_poller_wait(shared_poller, &event, 1, -1) == 0);
  for (int round = 0; round < 100; round++) {
    pthread_t thread = check_thread(wake, NULL);
    CHECK(hw_poller_wait(shared_poller, &event, 1, -1) == 0);
    check_join(thread);
  }
  CHECK(hw_poller_wait(shared_poller, &event, 1, 1) == 0);
  /* Others add and close while a thread waits. */
  for (int round = 0; round < 100; round++) {
    int key = 100 + round;
    pthread_t thread = check_thread(wait_for_it, (void *)(intptr_t)key);
    CHECK(hw_send(ends[0], "x", 1, 0) == 1);
    CHECK(hw_poller_add(shared_poller, ends[1], (uint64_t)key, HW_POLLIN) == 0);
    CHECK((intptr_t)check_join(thread) == -1);
    CHECK(drain(ends[1]) == 1);
    CHECK(hw_poller_remove(shared_poller, ends[1]) == 0);
  }
  /* One waits, others take turns after it. */
  CHECK(hw_poller_add(shared_poller, ends[1], 1, HW_POLLIN) == 0);
  pthread_t threads[4];
  for (int at = 0; at < 4; at++)
    threads[at] = check_thread(wait_for_it, (void *)1);
  for (int round = 0; round < 50; round++) {
    no_event(shared_poller);
    CHECK(hw_poller_wait(shared_poller, &event, 1, 1) == 0);
  }
  CHECK(hw_send(ends[0], "x", 1, 0) == 1);
  for (int at = 0; at < 4; at++)
    CHECK((intptr_t)check_join(threads[at]) == -1);
  CHECK(drain(ends[1]) == 1);
  /* Asleep on the descriptor. */
  quiet(shared_poller);
  pthread_t thread = check_thread(send_one, &ends[0]);
  CHECK(check_poll(shared_poller, POLLIN) & POLLIN);
  check_join(thread);
  CHECK(event_of(shared_poller, 1) == HW_POLLIN);
  CHECK(hw_poller_remove(shared_poller, ends[1]) == 0);
  quiet(shared_poller);
  thread = check_thread(poll_it, NULL);
  CHECK(hw_poller_add(shared_poller, ends[1], 2, HW_POLLIN) == 0);
  check_join(thread);
  CHECK(event_of(shared_poller, 2) == HW_POLLIN);
  CHECK(drain(ends[1]) == 1);
  quiet(shared_poller);
  thread = check_thread(poll_it, NULL);
  CHECK(hw_poller_wake(shared_poller) == 0);
  check_join(thread);
  no_event(shared_poller);
  /* Closed while threads wait. */
  for (int at = 0; at < 4; at++)
    threads[at] = check_thread(wait_for_it, NULL);
  CHECK(hw_close(shared_poller) == 0);
  for (int at = 0; at < 4; at++)
    CHECK((intptr_t)check_join(threads[at]) == EBADF);
  close_pair(ends);
}

/* Many connections are accepted; all are ready, and few are reported at a time:
 * each is reported once before any is reported again. */
static void many(void) {
  static int near[MANY], far[MANY], reported[MANY + 1];
  static struct hw_poller_event events[MANY + 1];
  struct hw_poller_event few[MAX];
  int port, found, made = 0, accepted = 0;
  check_attach("HW_OTHER");
  int poller = hw_poller_create();
  int listens = listen_there(&port);
  CHECK(hw_poller_add(poller, listens, MANY, HW_POLLIN) == 0);
  check_attach("HW_ONE");
  int callers = hw_poller_create();
  for (int at = 0; at < MANY; at++) {
    near[at] = check_connect("127.0.0.2", port, HW_NO_FD | HW_NONBLOCK);
    CHECK(near[at] >= 1 << 30);
    CHECK(hw_poller_add(callers, near[at], (uint64_t)at, 0) == 0);
  }
  while (made < MANY || accepted < MANY) {
    if (made < MANY) {
      CHECK((found = hw_poller_wait(callers, few, MAX, -1)) > 0);
      for (int at = 0; at < found; at++, made++) {
        CHECK(few[at].events == HW_POLLOUT);
        CHECK(hw_finish(near[few[at].key], 0) == 0);
        CHECK(hw_send(near[few[at].key], "x", 1, 0) == 1);
      }
    }
    if (accepted < MANY) {
      int timeout = made < MANY ? 0 : -1;
      CHECK((found = hw_poller_wait(poller, few, MAX, timeout)) >= 0);
      for (int at = 0; at < found; at++)
        if (few[at].key == MANY) {
          while ((far[accepted] = hw_accept(listens, NULL, NULL, 0)) >= 0) {
            uint64_t key = (uint64_t)accepted;
            CHECK(hw_poller_add(poller, far[accepted], key, HW_POLLIN) == 0);
            accepted++;
          }
          CHECK(errno == EAGAIN);
        }
    }
  }
  while ((found = hw_poller_wait(poller, events, MANY + 1, -1)) < MANY)
    CHECK(found > 0);
  CHECK(found == MANY);
  for (int all = 0; all < 3 * MANY; all += found) {
    CHECK((found = hw_poller_wait(poller, few, MAX, -1)) > 0);
    for (int at = 0; at < found; at++) {
      CHECK(few[at].events == HW_POLLIN && few[at].key < MANY);
      CHECK(++reported[few[at].key] == (all + at) / MANY + 1);
    }
  }
  /* What is removed, changed or closed is reported no more, although it was
   * ready. */
  CHECK(hw_poller_wait(poller, few, 1, -1) == 1);
  int rest = MANY;
  for (int at = 0; at < MANY; at++) {
    if (at % 3 == 0) {
      CHECK(hw_close(far[at]) == 0);
      rest--;
    } else if (at % 3 == 1) {
      CHECK(hw_poller_remove(poller, far[at]) == 0);
      rest--;
    } else {
      CHECK(hw_poller_modify(poller, far[at], 1000, HW_POLLOUT) == 0);
    }
  }
  CHECK(hw_poller_wait(poller, events, MANY, -1) == rest);
  for (int at = 0; at < rest; at++)
    CHECK(events[at].key == 1000 && events[at].events == HW_POLLOUT);
  for (int at = 0; at < MANY; at++)
    if (at % 3 != 0) {
      CHECK(drain(far[at]) == 1);
      CHECK(hw_close(far[at]) == 0);
    }
  for (int at = 0; at < MANY; at++)
    CHECK(hw_close(near[at]) == 0);
  CHECK(hw_close(listens) == 0);
  no_event(poller);
  CHECK(hw_close(callers) == 0 && hw_close(poller) == 0);
}

/* Bytes are shown, and released in part. */
static void shown(void) {
  int ends[2];
  unsigned char bytes[1000], taken[1000];
  const void *at, *again;
  size_t got = 0;
  ssize_t some;
  pair(ends);
  int poller = hw_poller_create();
  CHECK(hw_poller_add(poller, ends[1], 1, HW_POLLIN) == 0);
  check_fill(bytes, sizeof bytes, 0);
  CHECK(hw_send(ends[0], bytes, sizeof bytes, 0) == sizeof bytes);
  CHECK(event_of(poller, 1) == HW_POLLIN);
  CHECK((some = hw_recv_zero_copy(ends[1], &at, 400, 0)) > 0);
  CHECK(some <= 400);
  check_same(at, (size_t)some, 0);
  CHECK(hw_recv_zero_copy(ends[1], &again, (size_t)some, 0) == some);
  CHECK(again == at);
  FAILS(hw_release(ends[1], (size_t)some + 1), EINVAL);
  CHECK(hw_release(ends[1], 1) == 0);
  /* What was not released stays in place. */
  check_same((const char *)at + 1, (size_t)some - 1, 1);
  CHECK(hw_recv_zero_copy(ends[1], &again, (size_t)some - 1, 0) == some - 1);
  CHECK(again == (const char *)at + 1);
  CHECK(hw_release(ends[1], (size_t)some - 1) == 0);
  got = (size_t)some;
  while (got < sizeof bytes) {
    CHECK(event_of(poller, 1) == HW_POLLIN);
    CHECK((some = hw_recv_zero_copy(ends[1], &at, 10, 0)) > 0);
    check_same(at, (size_t)some, got);
    /* hw_recv() takes what was shown, and more. */
    CHECK((some = hw_recv(ends[1], taken, 100, 0)) > 0);
    check_same(taken, (size_t)some, got);
    FAILS(hw_release(ends[1], 1), EINVAL);
    got += (size_t)some;
  }
  FAILS(hw_recv_zero_copy(ends[1], &at, 10, 0), EAGAIN);
  CHECK(hw_close(poller) == 0);
  close_pair(ends);
}

/* Memory of the other end, and memory that is lent. */
static void memory(void) {
  int ends[2];
  uint32_t export_id;
  uint64_t before;
  char bytes[128];
  size_t got = 0;
  ssize_t some;
  pair(ends);
  int poller = hw_poller_create();
  CHECK(hw_poller_add(poller, ends[1], 1, HW_POLLIN) == 0);
  uint64_t *theirs = hw_alloc(64);
  CHECK(theirs != NULL);
  memset(theirs, 0, 64);
  theirs[0] = 41;
  int rights = HW_RIGHT_READ | HW_RIGHT_ATOMIC;
  CHECK(hw_export(ends[1], theirs, rights, &export_id) == 0);
  /* Bytes that were sent after the export arrive after it. */
  CHECK(hw_send(ends[1], "exported", 8, 0) == 8);
  while (got < 8) {
    some = hw_recv(ends[0], bytes, 8 - got, 0);
    CHECK(some > 0 || errno == EAGAIN);
    got += some > 0 ? (size_t)some : 0;
  }
  got = 0;
  check_attach("HW_ONE");
  uint64_t *own = hw_alloc(64);
  CHECK(own != NULL);
  CHECK(hw_read(ends[0], export_id, 0, own, 0) == 64);
  CHECK(own[0] == 41);
  CHECK(hw_fetch_add(ends[0], export_id, 0, 1, &before) == 0);
  CHECK(before == 41);
  CHECK(hw_send_zero_copy(ends[0], own, 64, 0) == 64);
  while (got < 64) {
    CHECK(event_of(poller, 1) == HW_POLLIN);
    CHECK((some = hw_recv(ends[1], bytes + got, sizeof bytes - got, 0)) > 0);
    got += (size_t)some;
  }
  CHECK(got == 64 && memcmp(bytes, own, 64) == 0);
  /* These two do not wait. */
  while (hw_reclaim(ends[0], own, 0) != 0)
    CHECK(errno == EAGAIN);
  while (hw_revoke(ends[1], theirs, 0) != 0)
    CHECK(errno == EAGAIN);
  CHECK(theirs[0] == 42);
  CHECK(hw_free(own) == 0 && hw_free(theirs) == 0);
  CHECK(hw_close(poller) == 0);
  close_pair(ends);
}

/* Two threads wait with one poller and receive, while others are added, changed
 * and removed. */
static size_t total;
static pthread_mutex_t counts = PTHREAD_MUTEX_INITIALIZER;

static void *receive_until_told(void *with) {
  struct hw_poller_event events[4];
  char bytes[64];
  ssize_t some;
  int *is_over = with;
  for (;;) {
    int found = hw_poller_wait(shared_poller, events, 4, -1);
    CHECK(found >= 0);
    pthread_mutex_lock(&counts);
    if (*is_over) {
      pthread_mutex_unlock(&counts);
      CHECK(hw_poller_wake(shared_poller) == 0);
      return NULL;
    }
    for (int at = 0; at < found; at++) {
      while ((some = hw_recv((int)events[at].key, bytes, sizeof bytes, 0)) > 0)
        total += (size_t)some;
      CHECK(some == -1 && errno == EAGAIN);
    }
    if (total == 4000)
      *is_over = 1;
    int wakes = *is_over;
    pthread_mutex_unlock(&counts);
    if (wakes)
      CHECK(hw_poller_wake(shared_poller) == 0);
  }
}

static void shared_by_threads(void) {
  int ends[4][2], is_over = 0;
  pthread_t threads[2];
  total = 0;
  for (int at = 0; at < 4; at++)
    pair(ends[at]);
  check_attach("HW_ONE");
  int sends = hw_poller_create();
  check_attach("HW_OTHER");
  shared_poller = hw_poller_create();
  for (int at = 0; at < 2; at++)
    threads[at] = check_thread(receive_until_told, &is_over);
  for (int round = 0; round < 1000; round++)
    for (int at = 0; at < 4; at++) {
      int fd = ends[at][1];
      uint64_t key = (uint64_t)fd;
      uint32_t news = HW_POLLIN | HW_POLLET;
      if (round % 3 == 0)
        CHECK(hw_poller_add(shared_poller, fd, key, HW_POLLIN) == 0);
      while (hw_send(ends[at][0], "x", 1, 0) != 1) {
        CHECK(errno == EAGAIN);
        CHECK(hw_poller_add(sends, ends[at][0], 1, HW_POLLOUT) == 0);
        CHECK(event_of(sends, 1) == HW_POLLOUT);
        CHECK(hw_poller_remove(sends, ends[at][0]) == 0);
      }
      if (round % 3 == 1)
        CHECK(hw_poller_modify(shared_poller, fd, key, news) == 0);
      if (round % 3 == 2)
        CHECK(hw_poller_remove(shared_poller, fd) == 0);
    }
  for (int at = 0; at < 2; at++)
    check_join(threads[at]);
  CHECK(total == 4000);
  CHECK(hw_close(shared_poller) == 0 && hw_close(sends) == 0);
  for (int at = 0; at < 4; at++)
    close_pair(ends[at]);
}

static void wrong(void) {
  struct hw_poller_event event;
  struct sockaddr_in at;
  struct pollfd polled;
  socklen_t len = sizeof at;
  int ends[2], with_fd[2], port;
  pair(ends);
  int poller = hw_poller_create();
  check_pair(with_fd);
  FAILS(hw_poller_add(poller, with_fd[1], 1, HW_POLLIN), EOPNOTSUPP);
  CHECK(hw_is_direct(with_fd[0]) == 0 && hw_is_direct(with_fd[1]) == 0);
  FAILS(hw_poller_add(poller, poller, 1, HW_POLLIN), EOPNOTSUPP);
  FAILS(hw_poller_add(ends[1], ends[1], 1, HW_POLLIN), EOPNOTSUPP);
  FAILS(hw_poller_add(poller, ends[1], 1, 1u << 20), EINVAL);
  FAILS(hw_poller_add(poller, ends[0], 1, HW_POLLIN), EINVAL);
  FAILS(hw_poller_add(poller, 999, 1, HW_POLLIN), EBADF);
  FAILS(hw_poller_add(999, ends[1], 1, HW_POLLIN), EBADF);
  FAILS(hw_poller_modify(poller, ends[1], 1, HW_POLLIN), ENOENT);
  FAILS(hw_poller_remove(poller, ends[1]), ENOENT);
  FAILS(hw_poller_wait(poller, NULL, 1, 0), EFAULT);
  FAILS(hw_poller_wait(poller, &event, 0, 0), EINVAL);
  FAILS(hw_poller_wait(poller, &event, -1, 0), EINVAL);
  FAILS(hw_poller_wait(ends[1], &event, 1, 0), EOPNOTSUPP);
  FAILS(hw_poller_wake(ends[1]), EOPNOTSUPP);
  FAILS(hw_poller_wake(999), EBADF);
  FAILS(hw_getsockname(poller, (struct sockaddr *)&at, &len), EOPNOTSUPP);
  FAILS(hw_recv(poller, &event, 1, 0), EOPNOTSUPP);
  FAILS(hw_is_direct(poller), EOPNOTSUPP);
  /* Without a file descriptor nothing waits, and the kernel knows nothing. */
  CHECK(hw_set_nonblocking(ends[0], 1) == 0);
  FAILS(hw_set_nonblocking(ends[0], 0), EOPNOTSUPP);
  FAILS(hw_recv(ends[0], &event, 1, 0), EAGAIN);
  polled.fd = ends[0];
  polled.events = POLLIN;
  CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLNVAL);
  CHECK(close(ends[0]) == -1 && errno == EBADF);
  CHECK(hw_send(ends[0], "x", 1, 0) == 1);
  CHECK(hw_close(poller) == 0);
  close_pair(ends);
  close_pair(with_fd);
  /* A listener with a file descriptor: it accepts without one if asked to. */
  check_attach("HW_OTHER");
  int listens = check_listen(&port);
  check_attach("HW_ONE");
  ends[0] = check_connect("127.0.0.2", port, HW_NO_FD);
  CHECK(check_poll(listens, POLLIN) & POLLIN);
  CHECK((ends[1] = hw_accept(listens, NULL, NULL, HW_NO_FD)) >= 1 << 30);
  CHECK(hw_is_direct(ends[0]) == 0);
  close_pair(ends);
  CHECK(hw_close(listens) == 0);
}

int main(void) {
  alarm(PATIENCE_S);
  const char *direct = getenv("HW_DIRECT");
  CHECK(direct != NULL);
  is_direct = direct[0] == '1';
  level_triggered();
  edge_triggered();
  listener();
  hung_up();
  woken();
  many();
  shown();
  memory();
  shared_by_threads();
  wrong();
  return 0;
}
