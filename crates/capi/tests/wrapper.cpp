// The C++ wrapper: who owns a descriptor or memory, and how calls fail. As in
// the tests in C, $HW_ONE and $HW_OTHER are the sockets of the daemons of
// 127.0.0.1 and 127.0.0.2.
#include <headworks.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <unistd.h>

namespace {

using headworks::Address;
using headworks::Bytes;
using headworks::Listener;
using headworks::Loan;
using headworks::Memory;
using headworks::milliseconds;
using headworks::Poller;
using headworks::Stream;

#define CHECK(holds)                                                          \
  do {                                                                        \
    if (!(holds))                                                             \
      check_failed(__LINE__, #holds);                                         \
  } while (0)

// The call throws the errno `expected`, and names the C function `call`.
#define THROWS(expression, expected, call)                                    \
  do {                                                                        \
    bool is_thrown = false;                                                   \
    try {                                                                     \
      (void)(expression);                                                     \
    } catch (const std::system_error &error) {                                \
      is_thrown = true;                                                       \
      CHECK(error.code() == std::errc(expected));                             \
      CHECK(std::string(error.what()).rfind(call ": ", 0) == 0);              \
    }                                                                         \
    CHECK(is_thrown);                                                         \
  } while (0)

[[noreturn]] void check_failed(int line, const char *what) {
  std::fprintf(stderr, "wrapper.cpp:%d: not so: %s (errno %d; %s)\n", line,
               what, errno, hw_strerror());
  _exit(1);
}

// Objects can be moved, not copied, and their destructors do not throw.
template <class Owner> constexpr bool is_owner() {
  return !std::is_copy_constructible_v<Owner> &&
         !std::is_copy_assignable_v<Owner> &&
         std::is_nothrow_default_constructible_v<Owner> &&
         std::is_nothrow_move_constructible_v<Owner> &&
         std::is_nothrow_move_assignable_v<Owner> &&
         std::is_nothrow_destructible_v<Owner>;
}
static_assert(is_owner<Stream>() && is_owner<Listener>());
static_assert(is_owner<Poller>() && is_owner<Memory>() && is_owner<Loan>());

void attach(const char *variable) {
  const char *path = std::getenv(variable);
  CHECK(path != nullptr);
  headworks::attach(path);
}

struct Pair {
  Stream one, other;
};

// Makes a connection. Afterwards the program is attached to HW_ONE.
Pair pair() {
  Pair made;
  attach("HW_OTHER");
  Listener listener = Listener::listen(Address("0.0.0.0", 0));
  const Address at = listener.local_address();
  CHECK(at.port() != 0);
  attach("HW_ONE");
  made.one = Stream::connect(Address("127.0.0.2", at.port()));
  made.other = listener.accept();
  CHECK(made.one && made.other);
  CHECK(made.one.peer_address().port() == at.port());
  CHECK(made.other.peer_address().port() == made.one.local_address().port());
  return made;
}

void receive(const Stream &stream, const std::string &expected) {
  std::string got(expected.size(), '\0');
  for (std::size_t at = 0; at < got.size();) {
    const std::size_t len = stream.recv(&got[at], got.size() - at);
    CHECK(len > 0);
    at += len;
  }
  CHECK(got == expected);
}

// The stream is over in an orderly way.
bool is_ended(const Stream &stream) {
  char byte;
  return stream.recv(&byte, 1) == 0;
}

void bytes_go_both_ways() {
  const Pair ends = pair();
  std::string sent(1 << 20, '\0');
  for (std::size_t at = 0; at < sent.size(); at++)
    sent[at] = static_cast<char>(at ^ at >> 8);
  std::thread sender([&] {
    CHECK(ends.one.send(sent.data(), sent.size()) == sent.size());
    ends.one.shutdown(SHUT_WR);
  });
  receive(ends.other, sent);
  sender.join();
  CHECK(is_ended(ends.other));
  CHECK(ends.other.send("answer", 6) == 6);
  receive(ends.one, "answer");
  ends.one.set_transfer(HW_TRANSFER_SEND);
  CHECK(!ends.one.is_direct());
}

void moved_objects_do_nothing() {
  Pair ends = pair(), others = pair();
  const int fd = ends.one.fd();
  {
    Stream moved = std::move(ends.one);
    CHECK(moved.fd() == fd);
    CHECK(!ends.one && ends.one.fd() == -1);
    ends.one.close();
    THROWS(ends.one.send("x", 1), EBADF, "hw_send");
    ends.one = std::move(moved);
    CHECK(!moved && ends.one.fd() == fd);
  }
  Stream &same = ends.one;
  ends.one = std::move(same);
  CHECK(ends.one.fd() == fd);
  CHECK(ends.one.send("open", 4) == 4);
  receive(ends.other, "open");
  // What an object owned is closed when another is moved to it.
  ends.one = std::move(others.one);
  CHECK(is_ended(ends.other));
  CHECK(ends.one.send("other", 5) == 5);
  receive(others.other, "other");

  Memory memory(100);
  void *const at = memory.data();
  Memory moved = std::move(memory);
  CHECK(!memory && memory.data() == nullptr && memory.size() == 0);
  CHECK(moved.data() == at && moved.size() == 100);
  memory = Memory(10);
  moved = std::move(memory);
  CHECK(moved.size() == 10);
  CHECK(hw_free(at) == -1 && errno == EINVAL);
}

void destructors_close_and_free() {
  Pair ends = pair();
  { const Stream closed = std::move(ends.one); }
  CHECK(is_ended(ends.other));
  ends = pair();
  ends.one.close();
  CHECK(!ends.one && is_ended(ends.other));
  // What is released stays open, and can be taken over.
  ends = pair();
  const int fd = ends.one.release();
  CHECK(!ends.one && fd >= 0);
  ends.one = Stream();
  CHECK(hw_send(fd, "open", 4, 0) == 4);
  receive(ends.other, "open");
  { const Stream taken(fd); }
  CHECK(is_ended(ends.other));
  void *at;
  {
    const Memory memory(100);
    at = memory.data();
  }
  CHECK(hw_free(at) == -1 && errno == EINVAL);
  at = Memory(100).release();
  std::memset(at, 7, 100);
  CHECK(hw_free(at) == 0);
}

void errors_have_the_errno() {
  std::error_code error;
  // A port that was free a moment ago.
  attach("HW_OTHER");
  Listener listener = Listener::listen(Address("127.0.0.2", 0), 1);
  const Address nobody("127.0.0.2", listener.local_address().port());
  THROWS(Listener::listen(nobody), EADDRINUSE, "hw_listen");
  listener.close();
  THROWS(listener.accept(), EBADF, "hw_accept");
  THROWS(Stream::connect(nobody), ECONNREFUSED, "hw_connect");
  CHECK(!Stream::connect(nobody, 0, error));
  CHECK(error == std::errc::connection_refused);
  THROWS(Stream::connect(Address()), EAFNOSUPPORT, "hw_connect");
  THROWS(Stream(0).finish(), EBADF, "hw_finish");
  THROWS(Memory(0), EINVAL, "hw_alloc");
  CHECK(!Memory(0, error) && error == std::errc::invalid_argument);
  bool is_thrown = false;
  try {
    Address("localhost", 1);
  } catch (const std::system_error &failed) {
    is_thrown = failed.code() == std::errc::invalid_argument;
  }
  CHECK(is_thrown);
  CHECK(Address("::1", 7).port() == 7);
  // The text of hw_strerror() is in what().
  try {
    Memory(0);
  } catch (const std::system_error &failed) {
    CHECK(std::strstr(failed.what(), "at least 1") != nullptr);
  }

  const Pair ends = pair();
  ends.one.shutdown(SHUT_WR);
  THROWS(ends.one.send("x", 1), EPIPE, "hw_send");
  CHECK(ends.one.send("x", 1, 0, error) == 0);
  CHECK(error == std::errc::broken_pipe);
  // A call that succeeds clears the code.
  CHECK(ends.other.send("x", 1, 0, error) == 1 && !error);
}

void calls_may_refuse_to_wait() {
  std::error_code error;
  char byte;
  const Pair ends = pair();
  CHECK(ends.one.recv(&byte, 1, HW_DONTWAIT, error) == 0);
  CHECK(error == std::errc::operation_would_block);
  THROWS(ends.one.recv(&byte, 1, HW_DONTWAIT), EAGAIN, "hw_recv");
  ends.one.set_nonblocking(true);
  CHECK(ends.one.recv(&byte, 1, 0, error) == 0);
  CHECK(error == std::errc::operation_would_block);
  ends.one.set_nonblocking(false);
  ends.one.set_deadline(milliseconds(10));
  THROWS(ends.one.recv(&byte, 1), ETIMEDOUT, "hw_recv");
  // A deadline in the past is one, too.
  ends.one.set_deadline(milliseconds(-1));
  THROWS(ends.one.recv(&byte, 1), ETIMEDOUT, "hw_recv");
  ends.one.clear_deadline();
  CHECK(ends.other.send("x", 1) == 1);
  receive(ends.one, "x");
}

hw_poller_event event_of(const Poller &poller) {
  hw_poller_event event{};
  CHECK(poller.wait(&event, 1) == 1);
  return event;
}

void pollers_report_what_is_ready() {
  std::error_code error;
  hw_poller_event events[4];
  char byte;
  attach("HW_ONE");
  Poller poller = Poller::create();
  const Address any("0.0.0.0", 0);
  const Listener listener = Listener::listen(any, 4, HW_NO_FD);
  poller.add(listener, 7, HW_POLLIN);
  const Address at("127.0.0.1", listener.local_address().port());
  Stream one = Stream::connect(at, HW_NO_FD | HW_NONBLOCK);
  poller.add(one, 8, HW_POLLOUT);
  bool is_made = false, is_called = false;
  while (!is_made || !is_called) {
    const std::uint64_t key = event_of(poller).key;
    CHECK(key == 7 || key == 8);
    is_called |= key == 7;
    is_made |= key == 8;
  }
  one.finish();
  Stream other = listener.accept();
  CHECK(!listener.accept(0, error));
  CHECK(error == std::errc::operation_would_block);
  poller.remove(listener);
  THROWS(poller.remove(listener), ENOENT, "hw_poller_remove");
  poller.modify(one, 9, HW_POLLIN);
  CHECK(poller.wait(events, 4, milliseconds(0)) == 0);
  THROWS(poller.add(one, 9, HW_POLLIN), EEXIST, "hw_poller_add");
  THROWS(poller.wait(events, 0), EINVAL, "hw_poller_wait");
  CHECK(other.send("x", 1) == 1);
  const hw_poller_event event = event_of(poller);
  CHECK(event.key == 9 && event.events == HW_POLLIN);
  CHECK(one.recv(&byte, 1) == 1 && byte == 'x');
  // A wait ends early if it is woken.
  std::thread waker([&poller] { poller.wake(); });
  CHECK(poller.wait(events, 4) == 0);
  waker.join();
  // What a destructor closes leaves the poller.
  other.close();
  CHECK(event_of(poller).key == 9);
  { const Stream closed = std::move(one); }
  CHECK(poller.wait(events, 4, milliseconds(0)) == 0);
  const int fd = poller.fd();
  { const Poller closed = std::move(poller); }
  CHECK(hw_poller_wake(fd) == -1 && errno == EBADF);
}

void memory_is_lent_and_comes_back() {
  constexpr std::size_t len = 4 << 20;
  std::error_code error;
  Pair ends = pair();
  Memory memory(len);
  void *const at = memory.data();
  CHECK(memory.size() == len);
  std::memset(at, 'm', len);
  // What cannot be lent stays the caller's.
  THROWS(ends.one.send_zero_copy(std::move(memory), len + 1), EINVAL,
         "hw_send_zero_copy");
  CHECK(!ends.one.send_zero_copy(std::move(memory), 0, 0, error));
  CHECK(error == std::errc::invalid_argument && memory.data() == at);
  Loan loan = ends.one.send_zero_copy(std::move(memory), len);
  CHECK(loan && !memory);
  // Nobody has received it yet.
  CHECK(!loan.reclaim(HW_DONTWAIT, error) && loan);
  CHECK(error == std::errc::operation_would_block);
  std::thread receiver([&ends] {
    for (std::size_t received = 0; received < len;) {
      const Bytes shown = ends.other.recv_zero_copy();
      CHECK(shown.size > 0 && *static_cast<const char *>(shown.data) == 'm');
      ends.other.release_bytes(shown.size);
      received += shown.size;
    }
  });
  Loan moved = std::move(loan);
  CHECK(!loan && moved);
  memory = moved.reclaim();
  CHECK(!moved && memory.data() == at && memory.size() == len);
  THROWS(moved.reclaim(), EFAULT, "hw_reclaim");
  receiver.join();
  CHECK(ends.other.recv_zero_copy(1, HW_DONTWAIT, error).size == 0);
  CHECK(error == std::errc::operation_would_block);
  // A loan that is destroyed frees the memory if the daemon gave it back. The
  // daemon gives memory back in the order in which it was lent.
  memory = Memory(len);
  void *const lent = memory.data();
  std::memset(lent, 'l', len);
  Memory next(len);
  std::memset(next.data(), 'l', len);
  {
    const Loan freed = ends.one.send_zero_copy(std::move(memory), len);
    Loan later = ends.one.send_zero_copy(std::move(next), len);
    std::thread both(
        [&] { receive(ends.other, std::string(2 * len, 'l')); });
    next = later.reclaim();
    both.join();
  }
  CHECK(hw_free(lent) == -1 && errno == EINVAL);
}

} // namespace

int main() {
  alarm(80);
  try {
    bytes_go_both_ways();
    moved_objects_do_nothing();
    destructors_close_and_free();
    errors_have_the_errno();
    calls_may_refuse_to_wait();
    pollers_report_what_is_ready();
    memory_is_lent_and_comes_back();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "wrapper.cpp: thrown: %s\n", error.what());
    return 1;
  }
  return 0;
}
