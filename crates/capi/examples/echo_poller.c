/* Sends back what comes on any number of connections, in one thread:
 * `echo_poller PORT` serves. The example echo.c asks.
 *
 *   cc echo_poller.c $(pkg-config --cflags --libs headworks) -o echo_poller
 */
#include <arpa/inet.h>
#include <errno.h>
#include <headworks.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client {
  int fd;
  /* What the poller reports of it. */
  uint32_t events;
  /* Bytes of the buffer that were received and not sent back: from, to. */
  size_t from, to;
  char buffer[1 << 14];
};

static int failed(const char *what) {
  fprintf(stderr, "echo_poller: %s: %s\n", what, hw_strerror());
  return 1;
}

/* Accepts all connections that wait. */
static int accept_all(int poller, int listener) {
  for (;;) {
    int fd = hw_accept(listener, NULL, NULL, 0);
    if (fd < 0)
      return errno == EAGAIN || errno == EMFILE ? 0 : -1;
    struct client *client = malloc(sizeof *client);
    if (client == NULL) {
      hw_close(fd);
      continue;
    }
    client->fd = fd;
    client->from = client->to = 0;
    client->events = HW_POLLIN;
    uint64_t key = (uint64_t)(uintptr_t)client;
    if (hw_poller_add(poller, fd, key, client->events) < 0)
      return -1;
  }
}

/* Receives once, and sends that back. Returns the events to wait for, or 0 if
 * the connection is over. */
static uint32_t echo(struct client *client) {
  ssize_t len;
  if (client->from == client->to) {
    len = hw_recv(client->fd, client->buffer, sizeof client->buffer, 0);
    if (len < 0 && errno == EAGAIN)
      return HW_POLLIN;
    if (len <= 0)
      return 0;
    client->from = 0;
    client->to = (size_t)len;
  }
  len = hw_send(client->fd, client->buffer + client->from,
                client->to - client->from, 0);
  if (len < 0 && errno != EAGAIN)
    return 0;
  if (len > 0)
    client->from += (size_t)len;
  return client->from == client->to ? HW_POLLIN : HW_POLLOUT;
}

static int serve(int poller, int listener) {
  struct hw_poller_event events[64];
  for (;;) {
    int count = hw_poller_wait(poller, events, 64, -1);
    if (count < 0)
      return failed("waiting");
    for (int at = 0; at < count; at++) {
      struct client *client = (struct client *)(uintptr_t)events[at].key;
      if (client == NULL) {
        if (accept_all(poller, listener) < 0)
          return failed("accepting");
        continue;
      }
      uint32_t next = echo(client);
      if (next == 0) {
        /* What was sent still arrives. The poller forgets the connection. */
        hw_close(client->fd);
        free(client);
      } else if (next != client->events) {
        client->events = next;
        hw_poller_modify(poller, client->fd, events[at].key, next);
      }
    }
  }
}

int main(int argc, char **argv) {
  struct sockaddr_in at;
  if (argc != 2) {
    fprintf(stderr, "usage: echo_poller PORT\n");
    return 2;
  }
  memset(&at, 0, sizeof at);
  at.sin_family = AF_INET;
  at.sin_port = htons((uint16_t)atoi(argv[1]));
  int listener = hw_listen((struct sockaddr *)&at, sizeof at, -1, HW_NO_FD);
  if (listener < 0)
    return failed("listening");
  int poller = hw_poller_create();
  if (poller < 0 || hw_poller_add(poller, listener, 0, HW_POLLIN) < 0)
    return failed("making a poller");
  printf("serving\n");
  fflush(stdout);
  return serve(poller, listener);
}
