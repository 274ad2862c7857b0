// Sends back what comes: `echo PORT` serves, `echo HOST PORT TEXT` asks.
//
//   c++ -std=c++17 echo.cpp $(pkg-config --cflags --libs headworks) -o echo
#include <headworks.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

static void serve(const headworks::Address &at) {
  static char buffer[1 << 16];
  const auto listener = headworks::Listener::listen(at);
  std::puts("serving");
  std::fflush(stdout);
  for (;;) {
    const auto stream = listener.accept();
    // A connection that fails is closed, and the server goes on.
    std::error_code error;
    std::size_t len;
    while ((len = stream.recv(buffer, sizeof buffer, 0, error)) > 0)
      if (stream.send(buffer, len, 0, error) < len)
        break;
    if (!error)
      stream.shutdown(SHUT_WR, error);
  }
}

static void ask(const headworks::Address &to, const std::string &text) {
  char buffer[1 << 12];
  const auto stream = headworks::Stream::connect(to);
  stream.send(text.data(), text.size());
  stream.shutdown(SHUT_WR);
  while (const std::size_t len = stream.recv(buffer, sizeof buffer))
    std::fwrite(buffer, 1, len, stdout);
}

int main(int argc, char **argv) {
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr, "usage: echo PORT | echo HOST PORT TEXT\n");
    return 2;
  }
  const char *number = argv[argc == 2 ? 1 : 2];
  const auto port = static_cast<std::uint16_t>(std::atoi(number));
  try {
    if (argc == 2)
      serve(headworks::Address("0.0.0.0", port));
    else
      ask(headworks::Address(argv[1], port), argv[3]);
  } catch (const std::system_error &error) {
    std::fprintf(stderr, "echo: %s\n", error.what());
    return 1;
  }
  return 0;
}
