/*
 * Streams between hosts through the Headworks daemon, with an interface like
 * that of sockets.
 *
 * Link with -lheadworks. A daemon runs on each host (`headworks daemon`).
 * Every connection and every listener is a file descriptor for poll(2),
 * select(2) and epoll(7), and close-on-exec. It is readable while there is
 * something to receive or to accept, at the end of the stream and after
 * SHUT_RD, writable while there is room, and hung up once the connection is
 * reset or the daemon is gone. hw_bind() differs. Level-triggered and
 * edge-triggered polling both work. A descriptor may be ready although a call
 * finds nothing to do; such a call makes it unready. So call until EAGAIN, or
 * poll again.
 *
 * With HW_NO_FD a connection or a listener has a number in place of a file
 * descriptor. A poller reports such connections: see hw_poller_create().
 * "Descriptor" below means both, unless it says "file descriptor".
 *
 * Use the descriptor for nothing else. Other functions of the kernel see only
 * a local file that signals readiness. Many succeed on it, but break these
 * signals, have no effect on the connection, or return something that is not
 * so. Use these instead:
 *
 *   close                            hw_close()
 *   read, recv, write, send, ...     hw_recv(), hw_send(), ...
 *   shutdown                         hw_shutdown()
 *   getsockname, getpeername         hw_getsockname(), hw_getpeername()
 *   fcntl O_NONBLOCK, ioctl FIONBIO  hw_set_nonblocking()
 *   getsockopt SO_ERROR              hw_finish()
 *   SO_RCVTIMEO, SO_SNDTIMEO         hw_set_deadline()
 *   other options, dup, SCM_RIGHTS   nothing
 *
 * On failure, functions that return int or ssize_t return -1, and functions
 * that return a pointer return NULL. They set errno, and hw_strerror() returns
 * a description. EINTR is never set, and no signal is raised. Any call may
 * set:
 *
 *   EBADF         the number is no descriptor of headworks, or was closed, or
 *                 the process was forked after the library was first used
 *   EOPNOTSUPP    the descriptor is of another kind, such as a listener where a
 *                 connection is needed
 *   EFAULT        a pointer is NULL that must not be
 *   EINVAL        an argument or a flag is invalid
 *   ECONNABORTED  the daemon of this host is gone or is stopping; hw_accept()
 *                 sets ESHUTDOWN instead
 *   ETIMEDOUT     the daemon of this host has not answered for 10 seconds, or
 *                 20 for hw_connect()
 *   EPROTO, EIO   the daemon breaks its contract, or the library has a bug
 *
 * Any call that waits may also set:
 *
 *   EAGAIN        the call would have to wait, and may not
 *   ETIMEDOUT     the deadline has passed; see hw_set_deadline()
 *   EBADF         another thread closed the descriptor in the meantime
 *
 * Any call that uses a connection may also set:
 *
 *   ENOTCONN      the connection was not made
 *   ECONNRESET    the connection was reset: the other end, its host or the path
 *                 to it failed
 *
 * Any number of threads may call any functions at the same time, also with the
 * same descriptor.
 *
 * A process that forks after the first call keeps its connections. In the
 * child every call fails with EBADF until it executes another program. The
 * child must not use anything that it inherited, including memory of
 * hw_alloc(). It may end without harm to the parent. Until it ends or executes
 * another program, it keeps the parent's sockets open: if the parent dies
 * first, the daemon and the other ends learn of that only when the child has
 * ended.
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

/* Flag of hw_connect(), hw_listen(), hw_accept() and hw_bind(): calls with the
 * new descriptor never wait. */
#define HW_NONBLOCK SOCK_NONBLOCK
/* Flag of calls that may wait: this call does not. */
#define HW_DONTWAIT MSG_DONTWAIT
/* Flag of hw_read() and hw_write(): only begin the operation. */
#define HW_START 0x1000000
/* Flags of hw_send(), at most one: how its bytes are carried, whatever
 * hw_set_transfer() says. See HW_TRANSFER_SEND and the others below. */
#define HW_BY_SEND 0x2000000
#define HW_BY_READ 0x4000000
/* Flag of hw_connect(), hw_listen() and hw_accept(): what is made has no file
 * descriptor. The number that is returned is at least 2^30, and only functions
 * of this library know it. To poll(2) and close(2) it is invalid. It must not
 * be passed to select(2) or FD_SET(), which would write beyond their sets.
 *
 * Calls with the number never wait, whatever the flags: they set EAGAIN. A
 * poller reports when to call again. Only hw_fetch_add() and hw_compare_swap()
 * wait, and without HW_START hw_read() and hw_write(). hw_connect() itself
 * waits for the connection, unless HW_NONBLOCK is among the flags.
 *
 * Such a connection takes no file descriptor of its own. Only such connections
 * can be direct: applications of one machine exchange bytes without the
 * daemons, if neither end has a file descriptor and no daemon has
 * `direct = false` in its configuration. All direct connections with one other
 * application take three file descriptors together. */
#define HW_NO_FD 0x8000000
/* Functions that take HW_NONBLOCK also take SOCK_CLOEXEC, and functions that
 * send or receive also take MSG_NOSIGNAL. Both change nothing: every
 * descriptor is close-on-exec, and no signal is ever raised. Every other flag
 * of sockets is refused, such as MSG_PEEK, MSG_WAITALL and MSG_OOB: EINVAL. */

/* How bytes are carried (RaaS's FLAGS). ANY: the daemons decide. SEND: in
 * frames that are copied. READ: by the other host's RDMA READ into its receive
 * pool, even if short. */
#define HW_TRANSFER_ANY 0
#define HW_TRANSFER_SEND 1
#define HW_TRANSFER_READ 2

/* Events of pollers. They have the values of epoll(7).
 *
 * IN: there is something to receive, or a connection to accept; also at the
 * end of the stream. OUT: there is room; also once a connection is made. HUP:
 * the connection was reset or cannot be made, or the daemon is gone; reported
 * whether asked for or not. ET, to ask for only: only news are reported, that
 * is, bytes that arrived since the last report, and room that was made after a
 * call had failed for lack of it. */
#define HW_POLLIN 0x1u
#define HW_POLLOUT 0x4u
#define HW_POLLHUP 0x10u
#define HW_POLLET 0x80000000u

/* What a poller reports: events of the connection or listener that was added
 * with `key`. */
struct hw_poller_event {
  uint64_t key;
  uint32_t events;
};

/* Rights of the other end on memory that is exported to it. */
#define HW_RIGHT_READ 1
#define HW_RIGHT_WRITE 2
#define HW_RIGHT_ATOMIC 4

/* Returns the library's version. Never NULL. */
const char *hw_version(void);

/* Returns why the last call that failed in this thread did so, as one line of
 * text. Valid until the next call that fails in this thread. Never NULL. */
const char *hw_strerror(void);

/* Attaches to the daemon whose socket is at `socket_path`. The daemon's log
 * calls this program `name`; if NULL, the name it was started under. Without
 * this call, the first other call that needs a daemon attaches: to the one at
 * $HEADWORKS_DAEMON, else to the user's own daemon of 127.0.0.1, else to the
 * system's.
 *
 * If called again, it applies to everything made from then on; existing
 * connections and memory stay with their daemon. Attaching again to a daemon
 * that is attached, by this or another call, makes no second attachment. If
 * the daemon is gone, the next call that makes a connection, a listener or
 * memory attaches to it again, since it may have restarted. What was made
 * before stays lost. Memory can be used only with connections through the
 * daemon that it was allocated with, made before that daemon is gone.
 *
 * Any call that attaches may fail with: ENETDOWN: there is no daemon. EACCES:
 * this user may not use it. EPROTONOSUPPORT: it has another version. EMFILE: a
 * limit of the daemon or of this process is reached. */
int hw_attach(const char *socket_path, const char *name);

/* Connects to the listener at an address of AF_INET or AF_INET6. Returns the
 * new descriptor. With HW_NONBLOCK among `flags` it returns at once: the
 * descriptor becomes writable once the connection is made, and is hung up if
 * it cannot be. hw_finish() or the first other call tells which.
 *
 * ECONNREFUSED: nobody listens there, or 4096 callers wait there already beyond
 * the backlog. EHOSTUNREACH: no route to the host, no daemon on it, or the link
 * between the devices of the two hosts does not come up. ETIMEDOUT: the host
 * did not answer (no connection to its daemon for 5 seconds, no answer for 10),
 * or the listener's backlog was full for 8 seconds. EACCES: not allowed, or
 * its daemon has another secret. EMFILE: a limit is reached. ENOMEM.
 * EAFNOSUPPORT: another address family. */
int hw_connect(const struct sockaddr *to, socklen_t len, int flags);

/* Finishes hw_connect() with HW_NONBLOCK: returns 0 once the connection is
 * made. EINPROGRESS: it is neither made nor refused, and this call may not
 * wait, or the deadline has passed. Other errors are those of hw_connect(),
 * once, and ENOTCONN from then on. So ETIMEDOUT means that there will be no
 * connection. It waits if hw_set_nonblocking() has made the descriptor
 * blocking. Flag: HW_DONTWAIT. */
int hw_finish(int fd, int flags);

/* Listens at a port, 0 for any free one. At most `backlog` connections wait to
 * be accepted: 0 means 1, and a negative number 4096. Further callers wait
 * until one is accepted, at most 8 seconds: see hw_connect(). The daemon
 * listens only at its own address: pass that, INADDR_ANY or in6addr_any.
 *
 * EADDRNOTAVAIL: another address. EADDRINUSE: the port is taken. EMFILE,
 * ENOMEM, EACCES, EAFNOSUPPORT. */
int hw_listen(const struct sockaddr *at, socklen_t len, int backlog,
              int flags);

/* Accepts the next connection; returns the new descriptor. `peer` and `len`
 * may be NULL; otherwise they are as for accept(2). HW_NONBLOCK applies to the
 * new descriptor, HW_DONTWAIT to this call. With HW_NO_FD the connection has no
 * file descriptor; it never has one if the listener has none. EINVAL: the
 * descriptor is no listener. ESHUTDOWN: the daemon is gone, is stopping or
 * breaks its contract, so this listener accepts nothing any more; close it.
 * (Servers take ECONNABORTED and EPROTO of accept(2) as errors of one
 * connection, and go on.) EMFILE: too few descriptors, here or at the daemon;
 * the connection that was to be accepted is reset. */
int hw_accept(int fd, struct sockaddr *peer, socklen_t *len, int flags);

/* Gets the address of this end; for a listener and a socket for messages, the
 * daemon's address and the port. `*len` is the room at `at` on entry, and the
 * full length on return. ENOTCONN: the connection is not made yet. */
int hw_getsockname(int fd, struct sockaddr *at, socklen_t *len);

/* Gets the address of the other end. ENOTCONN: there is none, or the
 * connection is not made yet. */
int hw_getpeername(int fd, struct sockaddr *at, socklen_t *len);

/* Sends bytes and returns their number. It sends all of them, unless it may
 * not wait or fails after some were sent; in that case the next call says why.
 *
 * EPIPE: hw_shutdown() ended the stream, also if `len` is 0. ECONNRESET. Flags:
 * HW_DONTWAIT; HW_BY_SEND or HW_BY_READ. */
ssize_t hw_send(int fd, const void *bytes, size_t len, int flags);

/* Receives at most `len` bytes that have arrived and returns their number. 0
 * at the end of the stream, or if `len` is 0. Bytes that arrived before a
 * reset can still be received. Flag: HW_DONTWAIT. */
ssize_t hw_recv(int fd, void *bytes, size_t len, int flags);

/* Shows at most `max` bytes that have arrived, in place: sets `*at` to them
 * and returns their number; 0 at the end of the stream. They stay there and do
 * not change until they are released or hw_recv() takes them. They must not be
 * written to. The bytes of a direct connection are copied first, because the
 * other end could change them in place. Flag: HW_DONTWAIT. */
ssize_t hw_recv_zero_copy(int fd, const void **at, size_t max, int flags);

/* Releases the first `len` of the bytes that were shown last. EINVAL: fewer
 * were shown. After hw_recvfrom_zero_copy() it releases the whole message,
 * whatever `len` is. */
int hw_release(int fd, size_t len);

/* Sets how a connection carries bytes that are not on their way yet, and all
 * later ones. The default, HW_TRANSFER_ANY, leaves it to the daemons. EINVAL:
 * another number. */
int hw_set_transfer(int fd, int transfer);

/* Binds a socket for messages to a port, 0 for any free one. Each message
 * arrives whole, once, and in the order in which its sender sent, or not at
 * all if either end or the path between them fails. A slow receiver slows its
 * senders down (backpressure). The address is the daemon's own, as for
 * hw_listen(). The descriptor is readable while a message may have arrived, or
 * while a send that found no room may succeed. It is never writable: after
 * EAGAIN of hw_sendto(), poll for POLLIN.
 *
 * Errors are those of hw_listen(). Flag: HW_NONBLOCK. */
int hw_bind(const struct sockaddr *at, socklen_t len, int flags);

/* Sends a message of at most 1 MiB to the socket that is bound to that
 * address; returns `len`.
 *
 * EMSGSIZE: it is longer. EDESTADDRREQ: `to` is NULL. EOPNOTSUPP: the
 * descriptor is of a stream, which hw_send() sends to. Other errors are those
 * of hw_connect(), ECONNRESET and EAGAIN: nothing was sent. Flag: HW_DONTWAIT;
 * if there is no room for all of a message that was accepted, later calls with
 * this descriptor send the rest. */
ssize_t hw_sendto(int fd, const void *bytes, size_t len, int flags,
                  const struct sockaddr *to, socklen_t to_len);

/* Receives a message, as much of it as fits, and returns the number of bytes
 * received. The rest is lost. `from` and `from_len` may be NULL. EOPNOTSUPP:
 * the descriptor is of a stream, which hw_recv() receives from. Flag:
 * HW_DONTWAIT. */
ssize_t hw_recvfrom(int fd, void *bytes, size_t len, int flags,
                    struct sockaddr *from, socklen_t *from_len);

/* Shows a message in place: sets `*at` to it and returns its length, which may
 * be 0. Until hw_release() or hw_recvfrom() it shows the same message, which
 * stays in place. The message must not be written to. Flag: HW_DONTWAIT. */
ssize_t hw_recvfrom_zero_copy(int fd, const void **at, int flags,
                              struct sockaddr *from, socklen_t *from_len);

/* SHUT_WR ends the stream to the other end, which receives all that was sent
 * and then 0. SHUT_RD applies to this end only: from now on nothing is
 * received here, not even bytes that have arrived, and calls return 0,
 * including those that are waiting. The descriptor stays readable (POLLIN,
 * POLLRDHUP). The other end notices nothing until it finds no more room.
 * SHUT_RDWR does both. The call waits if there is no room to record the end of
 * the stream; EAGAIN: it may not wait. ENOTCONN: the connection is not made
 * yet. EOPNOTSUPP: the descriptor is of no stream. */
int hw_shutdown(int fd, int how);

/* Closes a descriptor. Bytes that were sent still arrive, even if this program
 * ends now. Bytes that arrived and were not received are lost, and later sends
 * of the other end fail with ECONNRESET. Connections that a program has not
 * closed when it ends are reset. Calls of other threads that wait with the
 * descriptor fail with EBADF. First take back memory that the daemon holds for
 * it (hw_reclaim(), hw_revoke()): see hw_free(). */
int hw_close(int fd);

/* Sets a deadline, `milliseconds` from now: an absolute time for all calls
 * with this descriptor together. A call that waits until then fails with
 * ETIMEDOUT, and the connection is not affected. While the connection is still
 * being made, hw_finish() then fails with EINPROGRESS, and others with EAGAIN:
 * ETIMEDOUT means that the host did not answer. -1 (default): no deadline. */
int hw_set_deadline(int fd, int64_t milliseconds);

/* Sets whether calls with this descriptor fail with EAGAIN, not wait.
 * EOPNOTSUPP: it has no file descriptor (HW_NO_FD), so its calls never wait. */
int hw_set_nonblocking(int fd, int nonblocking);

/* Returns 1 if a connection is direct, and 0 if its bytes go through daemons:
 * see HW_NO_FD. ENOTCONN: the connection is not made yet. */
int hw_is_direct(int fd);

/* Makes a poller: it reports which of many connections and listeners of the
 * attached daemon are ready. A report makes no system call, and takes time
 * only for what is ready. Close the poller with hw_close().
 *
 * The poller is a file descriptor for poll(2), select(2) and epoll(7), so a
 * program can wait for a poller and for other descriptors together. It is
 * readable if hw_poller_wait() with a timeout of 0 would report something,
 * after the last such call returned 0. Call that until it returns 0 before you
 * sleep on the descriptor. It may be readable without a report, too.
 *
 * EMFILE. */
int hw_poller_create(void);

/* Adds a connection or a listener that was made with HW_NO_FD. Its reports
 * carry `key`. It is reported level-triggered, unless HW_POLLET is among
 * `events`: in every hw_poller_wait() as long as an event lasts. A report may
 * be spurious; the next call then sets EAGAIN. A call that receives fewer
 * bytes than fit has received all that arrived.
 *
 * A listener is always level-triggered, and is reported only with HW_POLLIN. A
 * connection that is still being made is reported once it is made, with
 * HW_POLLOUT, and from then on as asked for. If it cannot be made, it is
 * reported once, with HW_POLLOUT and HW_POLLHUP, and hw_finish() says why.
 * SHUT_RD of hw_shutdown() is not reported.
 *
 * What hw_close() closes leaves its poller. Any thread may add, change, remove
 * and close while another one waits.
 *
 * EEXIST: it is in a poller. EOPNOTSUPP: it has a file descriptor, or is
 * neither a connection nor a listener. EINVAL: unknown events; or it is of
 * another daemon than the poller, or the daemon restarted after one of the two
 * was made. ENOTCONN: the connection cannot be made. EPROTO: the daemon is of
 * an older version that serves no pollers. */
int hw_poller_add(int poller, int fd, uint64_t key, uint32_t events);

/* Changes key and events of what is in the poller. Events that last are
 * reported again, also with HW_POLLET. ENOENT: it is not in this poller. */
int hw_poller_modify(int poller, int fd, uint64_t key, uint32_t events);

/* Removes a connection or a listener. Nothing that comes after is reported.
 * ENOENT: it is not in this poller. */
int hw_poller_remove(int poller, int fd);

/* Waits until something is ready, but no longer than `timeout_ms`
 * milliseconds, and writes at most `max` events. Returns their number; 0 once
 * the time is over, or if hw_poller_wake() ended the wait. A timeout of 0 does
 * not wait, and a negative one has no limit; hw_set_deadline() has no effect.
 * At most one event of each connection is written. If more than `max` are
 * ready, the next calls report the rest before they report any again.
 *
 * If several threads wait with one poller, one of them waits and the others
 * take turns after it. A closed poller sets EBADF. EINVAL: `max` is less than
 * 1. */
int hw_poller_wait(int poller, struct hw_poller_event *events, int max,
                   int timeout_ms);

/* Ends the poller's current hw_poller_wait(), or the next one. Any thread may
 * call it. */
int hw_poller_wake(int poller);

/* Allocates memory that can be lent, exported, and used by hw_read() and
 * hw_write(). Its initial content is undefined: it may be anything that this
 * program had in such memory before.
 *
 * EINVAL: `len` is 0. ENOMEM, EMFILE: out of memory, or a quota is reached. */
void *hw_alloc(size_t len);

/* Frees memory. EBUSY: the daemon holds it, or another call uses it. If the
 * daemon holds it for a descriptor that is closed, this process forgets it,
 * and the daemon keeps it until this program ends. EINVAL: it is not memory of
 * hw_alloc(). */
int hw_free(void *memory);

/* Sends the first `len` bytes of memory of hw_alloc() in place. The memory
 * must not be written to until hw_reclaim() has it back.
 *
 * EINVAL: it is not such memory, or is of another daemon, or is shorter, or
 * `len` is 0. EBUSY: the daemon holds it, or another call uses it. Other
 * errors are those of hw_send(). On failure the memory stays this program's.
 * Flag: HW_DONTWAIT. */
ssize_t hw_send_zero_copy(int fd, void *memory, size_t len, int flags);

/* Waits until the daemon gives back memory that it holds for
 * hw_send_zero_copy(), or for an hw_read() or hw_write() that was only begun
 * or not waited for to its end. For an operation it then returns the
 * operation's error, if any. EAGAIN and ETIMEDOUT: the daemon still holds the
 * memory. EINVAL: it does not hold it. Flag: HW_DONTWAIT. */
int hw_reclaim(int fd, void *memory, int flags);

/* Exports memory of hw_alloc() to the other end of the connection, with
 * `rights` (HW_RIGHT_...), until it is revoked or the connection is over. Sets
 * `*export_id` to the number of the export at both ends; send it to the other
 * end. From then on the memory may change at any time. Read words that the
 * other end changes as atomics.
 *
 * EINVAL: no such memory or rights. EBUSY: as hw_send_zero_copy(). EMFILE: too
 * many exports. */
int hw_export(int fd, void *memory, int rights, uint32_t *export_id);

/* Revokes an export. Later operations of the other end fail, and this call
 * waits until none is under way. EAGAIN and ETIMEDOUT: some may still be; call
 * it again. Flag: HW_DONTWAIT. */
int hw_revoke(int fd, void *memory, int flags);

/* hw_read() copies the other end's memory, from byte `at` of the export on, to
 * all of `memory`, which is of hw_alloc(). hw_write() copies the other way.
 * They return the number of bytes. The application at the other end takes no
 * part, and does not learn of it. They wait until the operation is over, even
 * if the descriptor is non-blocking. With HW_START they wait only until it is
 * begun; hw_reclaim() waits for the rest. With HW_DONTWAIT they do not wait
 * for room to begin.
 *
 * ENXIO: there is no such export, or not any more. ERANGE: beyond it. EACCES:
 * not allowed. ECONNRESET: the connection was reset, and the operation may or
 * may not have been carried out. If the daemon still holds `memory` after a
 * failure (ETIMEDOUT, ECONNRESET), hw_free() fails with EBUSY, and
 * hw_reclaim() continues to wait. EMFILE: too many operations are under way.
 * EINVAL, EBUSY: as hw_send_zero_copy(). */
ssize_t hw_read(int fd, uint32_t export_id, uint64_t at, void *memory,
                int flags);
ssize_t hw_write(int fd, uint32_t export_id, uint64_t at, void *memory,
                 int flags);

/* Adds to the 64-bit word at byte `at` of an export, a multiple of 8, and sets
 * `*before` to the previous value unless it is NULL. Atomic with respect to
 * all calls of this function and the next. They wait until the operation is
 * over, even if the descriptor is non-blocking; after ETIMEDOUT it is carried
 * out later unless the connection fails. Errors are those of hw_read(); ERANGE
 * also means not aligned. */
int hw_fetch_add(int fd, uint32_t export_id, uint64_t at, uint64_t operand,
                 uint64_t *before);

/* Sets the 64-bit word to `desired` if it is `expected`. Otherwise as
 * hw_fetch_add(). */
int hw_compare_swap(int fd, uint32_t export_id, uint64_t at, uint64_t expected,
                    uint64_t desired, uint64_t *before);

#ifdef __cplusplus
}
#endif

#endif
