/*
 * C++17 wrapper of headworks.h, which documents every call. It needs no library
 * but -lheadworks.
 *
 * An object owns one descriptor or one piece of memory. It can be moved, not
 * copied. Its destructor closes the descriptor or frees the memory, and never
 * throws. An object that was moved from, or constructed without arguments, is
 * empty: its destructor and close() do nothing, and other calls fail.
 *
 * A call that fails throws std::system_error: code() is the errno, and what()
 * begins with the name of the C function and the text of hw_strerror(). With a
 * std::error_code as last argument a call does not throw. It sets the code, or
 * clears it; on failure it returns 0 or an empty object. A call that would have
 * to wait sets std::errc::operation_would_block. "Errors:" names the C function
 * that lists the errors of a call.
 *
 * Calls that are const may be made by several threads at the same time. Calls
 * that are not const, moves and the destructor need the object for themselves.
 *
 * Messages (hw_bind() and others) and the memory of other ends (hw_export(),
 * hw_read() and others) have no wrapper. Call the C functions, for the latter
 * with Stream::fd() and Memory::data().
 */
#ifndef HEADWORKS_HPP
#define HEADWORKS_HPP

#include <headworks.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <system_error>
#include <utility>

namespace headworks {

using milliseconds = std::chrono::milliseconds;

/// What a call does if it fails: it throws, or sets a std::error_code.
class OnError {
public:
  OnError() noexcept = default;
  OnError(std::error_code &code) noexcept : code_(&code) {}

  /// Returns `result` of the C function `call`, which failed if it is negative.
  template <class Number>
  Number check(const char *call, Number result) const {
    const std::error_code now(result < 0 ? errno : 0, std::generic_category());
    if (code_ != nullptr)
      *code_ = now;
    else if (now)
      throw std::system_error(now, std::string(call) + ": " + hw_strerror());
    return result;
  }

  /// Does what check() does, and returns a length: 0 on failure.
  std::size_t length(const char *call, ssize_t result) const {
    return static_cast<std::size_t>(std::max<ssize_t>(check(call, result), 0));
  }

private:
  std::error_code *code_ = nullptr;
};

/// Attaches to a daemon. Without this call, the first other call that needs a
/// daemon attaches. Errors: hw_attach().
inline void attach(const char *socket_path, const char *name = nullptr,
                   OnError error = {}) {
  error.check("hw_attach", hw_attach(socket_path, name));
}

/// An address of IPv4 or IPv6, and a port.
struct Address {
  union {
    sockaddr any;
    sockaddr_in four;
    sockaddr_in6 six;
  };
  /// The length of the address in the union.
  socklen_t len = sizeof six;

  Address() noexcept : six() {}
  Address(const sockaddr_in &at) noexcept : four(at), len(sizeof at) {}
  Address(const sockaddr_in6 &at) noexcept : six(at) {}
  /// Parses digits, such as "127.0.0.1" or "::1". Throws EINVAL for other text,
  /// such as a name.
  Address(const char *host, std::uint16_t port) : six() {
    if (inet_pton(AF_INET, host, &four.sin_addr) == 1) {
      any.sa_family = AF_INET;
      len = sizeof four;
    } else if (inet_pton(AF_INET6, host, &six.sin6_addr) == 1) {
      any.sa_family = AF_INET6;
    } else {
      throw std::system_error(EINVAL, std::generic_category(), "inet_pton");
    }
    four.sin_port = htons(port); // IPv6 has it at the same place.
  }

  /// The port, or 0 if there is no address.
  std::uint16_t port() const noexcept { return ntohs(four.sin_port); }
};

/// Owner of a descriptor. Base of the classes below.
class Descriptor {
public:
  Descriptor(Descriptor &&from) noexcept : fd_(from.release()) {}
  Descriptor &operator=(Descriptor &&from) noexcept {
    replace(from.release());
    return *this;
  }

  /// The descriptor, for poll(2) and the functions of headworks.h; -1 if empty.
  int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  /// Returns the descriptor, which stays open, and empties this object. The
  /// caller closes it with hw_close().
  int release() noexcept { return std::exchange(fd_, -1); }

  /// Closes it now, and empties this object. Errors: hw_close().
  void close(OnError error = {}) {
    error.check("hw_close", fd_ < 0 ? 0 : hw_close(release()));
  }

protected:
  Descriptor() noexcept = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() { replace(-1); }

private:
  void replace(int fd) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old >= 0)
      hw_close(old);
  }

  int fd_ = -1;
};

/// What streams and listeners have in common.
class Socket : public Descriptor {
public:
  /// Returns the address of this end. Errors: hw_getsockname().
  Address local_address(OnError error = {}) const {
    Address at;
    error.check("hw_getsockname", hw_getsockname(fd(), &at.any, &at.len));
    return at;
  }

  /// Sets one point in time, `from_now`, for all later calls. Calls that wait
  /// until then fail with ETIMEDOUT. Errors: hw_set_deadline().
  void set_deadline(milliseconds from_now, OnError error = {}) const {
    // To the C function, -1 is no deadline.
    const auto count = std::max<std::int64_t>(from_now.count(), 0);
    error.check("hw_set_deadline", hw_set_deadline(fd(), count));
  }
  /// Errors: hw_set_deadline().
  void clear_deadline(OnError error = {}) const {
    error.check("hw_set_deadline", hw_set_deadline(fd(), -1));
  }

  /// Sets whether calls fail, not wait. Errors: hw_set_nonblocking().
  void set_nonblocking(bool nonblocking, OnError error = {}) const {
    error.check("hw_set_nonblocking", hw_set_nonblocking(fd(), nonblocking));
  }

protected:
  using Descriptor::Descriptor;
};

/// Bytes in place, which belong to the library. They must not be written to.
struct Bytes {
  const void *data = nullptr;
  std::size_t size = 0;
};

/// Memory that the daemon can reach. The destructor frees it, or does nothing
/// if the daemon holds it.
class Memory {
public:
  Memory() noexcept = default;
  /// Allocates `size` bytes. Errors: hw_alloc().
  explicit Memory(std::size_t size, OnError error = {})
      : data_(hw_alloc(size)), size_(size) {
    error.check("hw_alloc", data_ == nullptr ? -1 : 0);
  }

  /// The first byte, or null if empty.
  void *data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return data_ == nullptr ? 0 : size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Returns the memory, which the caller frees with hw_free(), and empties
  /// this object.
  void *release() noexcept { return data_.release(); }

private:
  friend class Loan;
  struct Free {
    void operator()(void *memory) const noexcept { hw_free(memory); }
  };
  Memory(void *data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

/// Memory that the daemon holds while it sends it. The destructor does not
/// wait. If the daemon still holds the memory then, it keeps it until this
/// program ends. So call reclaim() first, before the stream is closed.
class Loan {
public:
  Loan() noexcept = default;
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Waits until the daemon gives the memory back, and returns it. On failure
  /// the loan keeps it. Errors: hw_reclaim().
  Memory reclaim(int flags = 0, OnError error = {}) {
    const int fd = data_.get_deleter().fd;
    const int result = hw_reclaim(fd, data_.get(), flags);
    if (error.check("hw_reclaim", result) < 0)
      return Memory();
    return Memory(data_.release(), size_);
  }

private:
  friend class Stream;
  struct GiveBack {
    int fd;
    void operator()(void *memory) const noexcept {
      hw_reclaim(fd, memory, HW_DONTWAIT);
      hw_free(memory);
    }
  };
  Loan(int fd, Memory &&lent) noexcept
      : size_(lent.size()), data_(lent.release(), GiveBack{fd}) {}

  std::size_t size_ = 0;
  std::unique_ptr<void, GiveBack> data_{nullptr, GiveBack{-1}};
};

/// A connection: a stream of bytes in each direction.
class Stream : public Socket {
public:
  Stream() noexcept = default;
  /// Takes over a descriptor of hw_connect() or hw_accept().
  explicit Stream(int fd) noexcept : Socket(fd) {}

  /// Connects to a listener. Flags: HW_NONBLOCK, HW_NO_FD. Errors:
  /// hw_connect().
  static Stream connect(const Address &to, int flags = 0, OnError error = {}) {
    const int made = hw_connect(&to.any, to.len, flags);
    return Stream(error.check("hw_connect", made));
  }

  /// Finishes connect() with HW_NONBLOCK. Errors: hw_finish().
  void finish(int flags = 0, OnError error = {}) const {
    error.check("hw_finish", hw_finish(fd(), flags));
  }

  /// Returns the number of bytes sent: less than `len` only if the call may not
  /// wait, or failed after that. Errors: hw_send().
  std::size_t send(const void *bytes, std::size_t len, int flags = 0,
                   OnError error = {}) const {
    return error.length("hw_send", hw_send(fd(), bytes, len, flags));
  }

  /// Returns the number of bytes received: 0 at the end of the stream. Errors:
  /// hw_recv().
  std::size_t recv(void *bytes, std::size_t len, int flags = 0,
                   OnError error = {}) const {
    return error.length("hw_recv", hw_recv(fd(), bytes, len, flags));
  }

  /// Sends the first `len` bytes of `memory` in place. On failure `memory`
  /// stays the caller's. Errors: hw_send_zero_copy().
  Loan send_zero_copy(Memory &&memory, std::size_t len, int flags = 0,
                      OnError error = {}) const {
    const auto sent = hw_send_zero_copy(fd(), memory.data(), len, flags);
    if (error.check("hw_send_zero_copy", sent) < 0)
      return Loan();
    return Loan(fd(), std::move(memory));
  }

  /// Shows at most `max` bytes that arrived, in place, until release_bytes() or
  /// recv() takes them. None at the end of the stream. Errors:
  /// hw_recv_zero_copy().
  Bytes recv_zero_copy(std::size_t max = SIZE_MAX, int flags = 0,
                       OnError error = {}) const {
    Bytes shown;
    const ssize_t got = hw_recv_zero_copy(fd(), &shown.data, max, flags);
    shown.size = error.length("hw_recv_zero_copy", got);
    return shown;
  }
  /// Releases the first `len` of the bytes shown. Errors: hw_release().
  void release_bytes(std::size_t len, OnError error = {}) const {
    error.check("hw_release", hw_release(fd(), len));
  }

  /// Ends one direction or both: SHUT_WR, SHUT_RD or SHUT_RDWR. Errors:
  /// hw_shutdown().
  void shutdown(int how, OnError error = {}) const {
    error.check("hw_shutdown", hw_shutdown(fd(), how));
  }

  /// Sets how bytes are carried: HW_TRANSFER_... Errors: hw_set_transfer().
  void set_transfer(int transfer, OnError error = {}) const {
    error.check("hw_set_transfer", hw_set_transfer(fd(), transfer));
  }

  /// Whether no daemon is between the ends. Errors: hw_is_direct().
  bool is_direct(OnError error = {}) const {
    return error.check("hw_is_direct", hw_is_direct(fd())) == 1;
  }

  /// Returns the address of the other end. Errors: hw_getpeername().
  Address peer_address(OnError error = {}) const {
    Address at;
    error.check("hw_getpeername", hw_getpeername(fd(), &at.any, &at.len));
    return at;
  }
};

/// Accepts connections at a port.
class Listener : public Socket {
public:
  Listener() noexcept = default;
  /// Takes over a descriptor of hw_listen().
  explicit Listener(int fd) noexcept : Socket(fd) {}

  /// Listens at a port, 0 for any free one. Flags: HW_NONBLOCK, HW_NO_FD.
  /// Errors: hw_listen().
  static Listener listen(const Address &at, int backlog = -1, int flags = 0,
                         OnError error = {}) {
    const int made = hw_listen(&at.any, at.len, backlog, flags);
    return Listener(error.check("hw_listen", made));
  }

  /// Accepts the next connection. Errors: hw_accept().
  Stream accept(int flags = 0, OnError error = {}) const {
    const int made = hw_accept(fd(), nullptr, nullptr, flags);
    return Stream(error.check("hw_accept", made));
  }
};

/// Reports which of many connections and listeners are ready. They must have
/// been made with HW_NO_FD. A closed one leaves its poller.
class Poller : public Descriptor {
public:
  Poller() noexcept = default;
  /// Takes over a descriptor of hw_poller_create().
  explicit Poller(int fd) noexcept : Descriptor(fd) {}

  /// Makes a poller. Errors: hw_poller_create().
  static Poller create(OnError error = {}) {
    return Poller(error.check("hw_poller_create", hw_poller_create()));
  }

  /// Adds a connection or a listener; its reports carry `key`. Errors:
  /// hw_poller_add().
  void add(const Socket &socket, std::uint64_t key, std::uint32_t events,
           OnError error = {}) const {
    error.check("hw_poller_add",
                hw_poller_add(fd(), socket.fd(), key, events));
  }
  /// Changes its key and events. Errors: hw_poller_modify().
  void modify(const Socket &socket, std::uint64_t key, std::uint32_t events,
              OnError error = {}) const {
    error.check("hw_poller_modify",
                hw_poller_modify(fd(), socket.fd(), key, events));
  }
  /// Removes it. Errors: hw_poller_remove().
  void remove(const Socket &socket, OnError error = {}) const {
    error.check("hw_poller_remove", hw_poller_remove(fd(), socket.fd()));
  }

  /// Waits until something is ready, but no longer than `timeout`; negative
  /// means no limit. Writes at most `max` events. Returns their number: 0 after
  /// the timeout or wake(). Errors: hw_poller_wait().
  std::size_t wait(hw_poller_event *events, std::size_t max,
                   milliseconds timeout = milliseconds(-1),
                   OnError error = {}) const {
    const auto room = static_cast<int>(std::min<std::size_t>(max, INT_MAX));
    const auto ms = std::clamp<std::int64_t>(timeout.count(), -1, INT_MAX);
    const int count = hw_poller_wait(fd(), events, room, static_cast<int>(ms));
    return error.length("hw_poller_wait", count);
  }
  /// Ends the current wait, or the next one. Errors: hw_poller_wake().
  void wake(OnError error = {}) const {
    error.check("hw_poller_wake", hw_poller_wake(fd()));
  }
};

} // namespace headworks

#endif
