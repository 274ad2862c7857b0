/*
 * Streams between hosts through the Headworks daemon, in the manner of sockets.
 *
 * Link with -lheadworks. A daemon runs on each host (`headworks daemon`). Every
 * connection and every port that is listened on is a file descriptor, which
 * poll(2), select(2) and epoll(7) take: readable while there is something to be
 * received or accepted, writable while there is room, hung up once the
 * connection is reset or the daemon is gone. It may be polled level-triggered
 * or edge-triggered. It may be ready in vain, and becomes unready when a call
 * finds nothing more to do: call until EAGAIN, or poll again. Use it for nothing
 * else: read(2), write(2), dup(2) and close(2) on it break the connection,
 * hw_close() closes it.
 *
 * Functions that return int or ssize_t return -1 if they fail, those that
 * return a pointer NULL, with errno set; hw_strerror() has it in words. EINTR
 * is never among them, and no signal is raised. What any call may set:
 *
 *   EBADF         the descriptor is none of headworks', or closed; also in a
 *                 child that was forked after the library was first used
 *   EOPNOTSUPP    it is of another kind: a port where a connection is wanted
 *   EFAULT        a pointer is NULL that must not be
 *   EINVAL        an argument or a flag that cannot be
 *   ECONNABORTED  the daemon of this host is gone, or stopping
 *   EPROTO, EIO   the daemon breaks its contract, or the library has a bug
 *
 * and whatever waits:
 *
 *   EAGAIN        it would have to wait, and is not to
 *   ETIMEDOUT     the deadline has passed
 *   EBADF         another thread closed the descriptor meanwhile
 *
 * and whatever uses a connection:
 *
 *   ENOTCONN      it was not made
 *   ECONNRESET    it is no more: the other end, its host or the way failed
 *
 * All functions may be called by any number of threads at the same time, also
 * with one descriptor.
 *
 * A process that forks after the first call keeps its connections. In the child
 * every call fails with EBADF until it executes another program; what it
 * inherited it must not use, memory of hw_alloc() included. Its end disturbs
 * nothing. While it runs and has executed nothing it keeps the parent's sockets
 * open: should the parent die first, the daemon and the other ends learn of that
 * when the child has ended.
 */
#ifndef HEADWORKS_H
#define HEADWORKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of hw_connect(), hw_listen() and hw_accept(): the new descriptor's
 * calls never wait. */
#define HW_NONBLOCK 1
/* Flag of calls that may wait: this one does not. */
#define HW_DONTWAIT 2
/* Flag of hw_read() and hw_write(): only begin. */
#define HW_START 4

/* How bytes are carried (RaaS's FLAGS): as the daemons decide; by SEND, in
 * frames that are copied; by WRITE, which costs the other host least; by the
 * other host's READ, which costs this one least. */
#define HW_TRANSFER_ANY 0
#define HW_TRANSFER_SEND 1
#define HW_TRANSFER_WRITE 2
#define HW_TRANSFER_READ 3

/* What the other end may do with memory that is exported to it. */
#define HW_RIGHT_READ 1
#define HW_RIGHT_WRITE 2
#define HW_RIGHT_ATOMIC 4

/* The library's version. Never NULL. */
const char *hw_version(void);

/* Why the last call of this thread that failed did so, as one line of text.
 * Valid until the next call that fails in this thread. Never NULL. */
const char *hw_strerror(void);

/* Attaches to the daemon whose socket is at `socket_path`; it knows this
 * program as `name`, by default (NULL) what it was started as. Without this
 * call the first other one attaches: to the daemon at $HEADWORKS_DAEMON, else
 * to the user's own of 127.0.0.1, else to the system's. Called again it is for
 * what is made from then on: what there is goes on with its daemon. A daemon
 * that is attached to already is not again, whether this call attached to it or
 * another did. One that is gone is attached to again where it was, by the next
 * call that makes a connection, a port or memory: it may have come back. What
 * was made before stays lost, and memory is for connections that are made
 * while the same daemon is there, with which it was allocated.
 *
 * Wherever a daemon is attached to: ENETDOWN: there is none. EACCES: not for
 * this user. EPROTONOSUPPORT: it is of another version. EMFILE: a limit, of the
 * daemon or of this process. */
int hw_attach(const char *socket_path, const char *name);

/* Connects to who listens at an address of AF_INET or AF_INET6. The new
 * descriptor, at once if HW_NONBLOCK is among `flags`: it is writable once the
 * connection is made and hung up if it cannot be, and hw_finish() or the first
 * other call says which.
 *
 * ECONNREFUSED: nobody listens there, or too many wait there. EHOSTUNREACH: no
 * way there, or no daemon. ETIMEDOUT: that host did not answer. EACCES: not
 * allowed, or its daemon has another secret. EMFILE: a limit. ENOMEM.
 * EAFNOSUPPORT: an address of another kind. */
int hw_connect(const struct sockaddr *to, socklen_t len, int flags);

/* What became of hw_connect() with HW_NONBLOCK: 0 once the connection is made.
 * EINPROGRESS: it is neither made nor refused, and is not waited for. Else as
 * hw_connect(), once; ENOTCONN from then on. It waits if the descriptor was set
 * to by hw_set_nonblocking(). Flag: HW_DONTWAIT. */
int hw_finish(int fd, int flags);

/* Listens at a port, 0 for any that is free; `backlog` callers may wait to be
 * accepted. The address is the daemon's own: give INADDR_ANY or in6addr_any.
 *
 * EADDRNOTAVAIL: another address. EADDRINUSE: the port is taken. EMFILE,
 * ENOMEM, EACCES, EAFNOSUPPORT. */
int hw_listen(const struct sockaddr *at, socklen_t len, int backlog,
              int flags);

/* Waits for the next who connects: the new descriptor. `peer` and `len` may be
 * NULL; else they are as for accept(2). Flags: HW_NONBLOCK is about the new
 * descriptor, HW_DONTWAIT about this call. EINVAL: not a port. EMFILE: too few
 * descriptors, here or at the daemon; who had connected is reset. */
int hw_accept(int fd, struct sockaddr *peer, socklen_t *len, int flags);

/* The address of this end; of a port that is listened on, INADDR_ANY and the
 * port. `len` says how much room there is, and how much is needed after. */
int hw_getsockname(int fd, struct sockaddr *at, socklen_t *len);

/* The address of the other end. ENOTCONN where there is none. */
int hw_getpeername(int fd, struct sockaddr *at, socklen_t *len);

/* Sends bytes; how many. All of them, unless it may not wait, or fails after
 * some were sent: then the next call says why.
 *
 * EPIPE: hw_shutdown() ended the stream. ECONNRESET. Flag: HW_DONTWAIT. */
ssize_t hw_send(int fd, const void *bytes, size_t len, int flags);

/* Receives what has come, at most `len` bytes; how many. 0 at the end of the
 * stream, or where `len` is 0. What came before a reset is still received.
 * Flag: HW_DONTWAIT. */
ssize_t hw_recv(int fd, void *bytes, size_t len, int flags);

/* Shows what has come where it lies, at most `max` bytes of it: sets `*at`, and
 * returns how many there are; 0 at the end of the stream. They are there, and
 * do not change, until they are released or hw_recv() takes them. Not for
 * writing. Flag: HW_DONTWAIT. */
ssize_t hw_recv_zero_copy(int fd, const void **at, size_t max, int flags);

/* The first `len` of the bytes that were shown last are not needed any more.
 * EINVAL: that is more than were shown. Of hw_recvfrom_zero_copy() the whole
 * message, whatever `len` is. */
int hw_release(int fd, size_t len);

/* How what is sent on a connection is carried to the other host, from now on
 * and where it is not yet on its way. HW_TRANSFER_ANY, as at first, leaves it to
 * the daemons. EINVAL: another number. */
int hw_set_transfer(int fd, int transfer);

/* A port, 0 for any that is free, that messages are sent from and come to. Each
 * arrives whole, once, and in the order in which its sender sent, or not at all
 * where either end, or the way between them, fails. A receiver that is slow
 * slows its senders down. The address is the daemon's own, as of hw_listen().
 * The descriptor is readable while a message may have come, or what was refused
 * for want of room may be tried again.
 *
 * As hw_listen(). Flag: HW_NONBLOCK. */
int hw_bind(const struct sockaddr *at, socklen_t len, int flags);

/* Sends a message, of 1 MiB at most, to who has bound that port; `len`.
 *
 * EMSGSIZE: it is longer. Else as hw_connect(), and ECONNRESET, EAGAIN: nothing
 * was sent. Flag: HW_DONTWAIT; what it accepts is sent by later calls with this
 * descriptor where there is no room at once. */
ssize_t hw_sendto(int fd, const void *bytes, size_t len, int flags,
                  const struct sockaddr *to, socklen_t to_len);

/* Receives a message, as much of it as fits: how much. The rest is lost. `from`
 * and `from_len` may be NULL. Flag: HW_DONTWAIT. */
ssize_t hw_recvfrom(int fd, void *bytes, size_t len, int flags,
                    struct sockaddr *from, socklen_t *from_len);

/* Shows a message where it lies: sets `*at`, and returns how long it is, which
 * may be 0. It is the same one until hw_release() or hw_recvfrom(), and stays
 * where it is until then. Not for writing. Flag: HW_DONTWAIT. */
ssize_t hw_recvfrom_zero_copy(int fd, const void **at, int flags,
                              struct sockaddr *from, socklen_t *from_len);

/* SHUT_WR ends the stream to the other end, which receives all that was sent
 * and then 0. SHUT_RD is a matter of this end alone: from now on nothing is
 * received here, not even what has come; calls say 0, also those that wait.
 * The other end notices nothing until it finds no more room. SHUT_RDWR is
 * both. It waits where there is no room for the word of the end; EAGAIN where
 * it may not. */
int hw_shutdown(int fd, int how);

/* Closes a descriptor. What was sent still arrives, also where this program ends
 * now. What came and was not received is lost, and what the other end sends then
 * fails with ECONNRESET. What a program has not closed when it ends is reset. A
 * call of another thread's that waits with it fails with EBADF. Memory that the
 * daemon has by it should be back before (hw_reclaim(), hw_revoke()): see
 * hw_free(). */
int hw_close(int fd);

/* From now on calls with this descriptor wait for no more than so many
 * milliseconds, all of them together: it sets a point in time. -1: for ever, as
 * at first. Then they fail with ETIMEDOUT; the connection is none the worse. */
int hw_set_deadline(int fd, int64_t milliseconds);

/* Whether calls with this descriptor fail with EAGAIN where they would wait. */
int hw_set_nonblocking(int fd, int nonblocking);

/* Memory that can be lent, exported, read to and written from. What it holds at
 * first is anything that this program had in such memory before.
 *
 * EINVAL: no length. ENOMEM, EMFILE: no memory, or a quota. */
void *hw_alloc(size_t len);

/* Gives memory back. EBUSY: the daemon has it, or another call. Where that was
 * by a descriptor that is closed by now, it is forgotten here, and the daemon's
 * until this program ends. EINVAL: no memory of hw_alloc()'s. */
int hw_free(void *memory);

/* Sends the first `len` bytes of memory of hw_alloc()'s from where they are. It
 * must not be written to until hw_reclaim() has it back.
 *
 * EINVAL: no such memory, or of another daemon's, or it has not as many bytes,
 * or `len` is 0. EBUSY: the daemon has it, or another call. Else as hw_send(); on failure the memory
 * stays this program's. Flag: HW_DONTWAIT. */
ssize_t hw_send_zero_copy(int fd, void *memory, size_t len, int flags);

/* Waits until the daemon gives memory back that it has by hw_send_zero_copy(),
 * or by hw_read() or hw_write() that was begun or not waited for to its end; of
 * those it then says what became of them, as they do. EAGAIN and ETIMEDOUT:
 * the daemon has it still. EINVAL: it has not. Flag: HW_DONTWAIT. */
int hw_reclaim(int fd, void *memory, int flags);

/* Lets the other end of the connection use memory of hw_alloc()'s, as `rights`
 * say (HW_RIGHT_...), until it is revoked or the connection is over. Sets
 * `*window` to what both ends call it: send it that number. From then on the
 * memory may change at any time; words that the other end changes are to be
 * read as atomics.
 *
 * EINVAL: no such memory or rights. EBUSY: as hw_send_zero_copy(). EMFILE: too
 * many. */
int hw_export(int fd, void *memory, int rights, uint32_t *window);

/* Takes exported memory back. The other end's operations fail from now on, and
 * this waits until none is under way. EAGAIN and ETIMEDOUT: some may be; call
 * it again. Flag: HW_DONTWAIT. */
int hw_revoke(int fd, void *memory, int flags);

/* Copies the other end's memory, from byte `at` of its window on, to all of
 * `memory`, which is of hw_alloc()'s, or back. How many bytes these are. Its
 * application has no part in that, and does not learn of it. They wait, also
 * where the descriptor is non-blocking, until it is done; with HW_START only
 * until it is begun, and hw_reclaim() for the rest. With HW_DONTWAIT it is not
 * waited for room to begin.
 *
 * ENXIO: no such window, or not any more. ERANGE: beyond it. EACCES: not
 * allowed. ECONNRESET: the connection is no more; what was written may be there
 * or not. Where `memory` is the daemon's still after a failure (ETIMEDOUT,
 * ECONNRESET), hw_free() says EBUSY and hw_reclaim() goes on waiting. EMFILE:
 * too many are under way. EINVAL, EBUSY: as hw_send_zero_copy(). */
ssize_t hw_read(int fd, uint32_t window, uint64_t at, void *memory, int flags);
ssize_t hw_write(int fd, uint32_t window, uint64_t at, void *memory,
                 int flags);

/* Adds to the word of 64 bits at byte `at` of a window, a multiple of 8, and
 * sets `*before`, unless it is NULL, to what it was. Atomic among all who use
 * this function and the next. They wait until it is done, also where the
 * descriptor is non-blocking; after ETIMEDOUT it is done sooner or later.
 * Errors are those of hw_read(); ERANGE also says that it is not aligned. */
int hw_fetch_add(int fd, uint32_t window, uint64_t at, uint64_t operand,
                 uint64_t *before);

/* The same, setting the word to `desired` if it is `expected`. */
int hw_compare_swap(int fd, uint32_t window, uint64_t at, uint64_t expected,
                    uint64_t desired, uint64_t *before);

#ifdef __cplusplus
}
#endif

#endif
