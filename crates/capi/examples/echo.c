/* Sends back what comes: `echo PORT` serves, `echo HOST PORT TEXT` asks.
 *
 *   cc echo.c $(pkg-config --cflags --libs headworks) -o echo
 */
#include <arpa/inet.h>
#include <headworks.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what) {
  fprintf(stderr, "echo: %s: %s\n", what, hw_strerror());
  return 1;
}

static int serve(const struct sockaddr_in *at) {
  static char buffer[1 << 16];
  int listener = hw_listen((const struct sockaddr *)at, sizeof *at, 16, 0);
  if (listener < 0)
    return failed("listening");
  printf("serving\n");
  fflush(stdout);
  for (;;) {
    int fd = hw_accept(listener, NULL, NULL, 0);
    ssize_t len;
    if (fd < 0)
      return failed("accepting");
    while ((len = hw_recv(fd, buffer, sizeof buffer, 0)) > 0)
      if (hw_send(fd, buffer, (size_t)len, 0) < len)
        break;
    if (len == 0)
      hw_shutdown(fd, SHUT_WR);
    hw_close(fd);
  }
}

static int ask(const struct sockaddr_in *to, const char *text) {
  char buffer[1 << 12];
  ssize_t len = (ssize_t)strlen(text);
  int fd = hw_connect((const struct sockaddr *)to, sizeof *to, 0);
  if (fd < 0)
    return failed("connecting");
  if (hw_send(fd, text, (size_t)len, 0) < len || hw_shutdown(fd, SHUT_WR) < 0)
    return failed("sending");
  while ((len = hw_recv(fd, buffer, sizeof buffer, 0)) > 0)
    fwrite(buffer, 1, (size_t)len, stdout);
  if (len < 0)
    return failed("receiving");
  hw_close(fd);
  return 0;
}

int main(int argc, char **argv) {
  struct sockaddr_in at;
  if (argc != 2 && argc != 4) {
    fprintf(stderr, "usage: echo PORT | echo HOST PORT TEXT\n");
    return 2;
  }
  memset(&at, 0, sizeof at);
  at.sin_family = AF_INET;
  at.sin_port = htons((uint16_t)atoi(argv[argc == 2 ? 1 : 2]));
  if (argc == 2)
    return serve(&at);
  if (inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) {
    fprintf(stderr, "echo: %s is no IPv4 address\n", argv[1]);
    return 2;
  }
  return ask(&at, argv[3]);
}
