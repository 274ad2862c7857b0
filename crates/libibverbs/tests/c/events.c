/* Completion events and asynchronous events: with and without waiting. */
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void no_block(int fd) {
  CHECK(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;

static void *wait_for_event(void *unused) {
  struct ibv_cq *which;
  void *context;
  (void)unused;
  CHECK(!ibv_get_cq_event(channel, &which, &context));
  CHECK(which == cq && context == &channel);
  ibv_ack_cq_events(cq, 1);
  return NULL;
}

static volatile sig_atomic_t signals;
static struct ibv_qp *sender;

static void note(int number) {
  (void)number;
  signals++;
}

static void handle(int flags) {
  struct sigaction action = {.sa_handler = note, .sa_flags = flags};
  CHECK(!sigaction(SIGUSR1, &action, NULL));
}

/* Sends a signal until the handler has run twice, and then a message. */
static void *disturb(void *thread) {
  signals = 0;
  while (signals < 2) {
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    usleep(1000);
  }
  struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  CHECK(!ibv_post_recv(sender, &receive, &bad_receive));
  CHECK(!ibv_post_send(sender, &wr, &bad));
  return NULL;
}

/* A signal interrupts a wait only if its handler is to interrupt calls. */
static void signals_interrupt(struct ibv_qp *qp) {
  struct ibv_cq *which;
  void *value;
  pthread_t self = pthread_self(), other;
  sender = qp;
  for (int restarts = 0; restarts < 2; restarts++) {
    handle(restarts ? SA_RESTART : 0);
    CHECK(!ibv_req_notify_cq(cq, 0));
    CHECK(!pthread_create(&other, NULL, disturb, &self));
    int got = ibv_get_cq_event(channel, &which, &value);
    CHECK(restarts ? got == 0 : got == -1 && errno == EINTR);
    while (got)
      got = ibv_get_cq_event(channel, &which, &value);
    ibv_ack_cq_events(cq, 1);
    CHECK(!pthread_join(other, NULL) && signals >= 2);
    take(cq);
    take(cq);
  }
}

int main(void) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  channel = ibv_create_comp_channel(context);
  cq = ibv_create_cq(context, 16, &channel, channel, 0);
  CHECK(pd && channel && cq);
  struct ibv_qp_init_attr init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp);
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 1, &gid));
  connect_to(qp, gid, qp->qp_num);

  /* A thread that waits is woken by a completion. */
  CHECK(!ibv_req_notify_cq(cq, 0));
  pthread_t waiter;
  CHECK(!pthread_create(&waiter, NULL, wait_for_event, NULL));
  struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
  CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(!pthread_join(waiter, NULL));
  take(cq);
  take(cq);

  signals_interrupt(qp);

  /* Without waiting. The flag of the program's descriptor counts. */
  struct ibv_cq *which;
  void *value;
  no_block(channel->fd);
  CHECK(ibv_get_cq_event(channel, &which, &value) == -1 && errno == EAGAIN);
  CHECK(!ibv_req_notify_cq(cq, 0));
  CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
  CHECK(!ibv_post_send(qp, &wr, &bad));
  struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
  CHECK(poll(&ready, 1, 10000) == 1);
  CHECK(!ibv_get_cq_event(channel, &which, &value) && which == cq);
  ibv_ack_cq_events(cq, 1);
  take(cq);
  take(cq);

  /* The limit of a shared receive queue is an asynchronous event. */
  no_block(context->async_fd);
  struct ibv_async_event event;
  CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
  struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
  CHECK(srq && srq_init.attr.max_wr >= 4);
  init = qp_of(cq);
  init.srq = srq;
  struct ibv_qp *over = ibv_create_qp(pd, &init);
  CHECK(over && ibv_destroy_srq(srq) == EBUSY);
  connect_to(over, gid, over->qp_num);
  CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
  CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
  struct ibv_srq_attr attr = {.srq_limit = 2};
  CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
  CHECK(!ibv_post_send(over, &wr, &bad));
  ready.fd = context->async_fd;
  CHECK(poll(&ready, 1, 10000) == 1);
  CHECK(!ibv_get_async_event(context, &event));
  CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
  CHECK(event.element.srq == srq);
  CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
  ibv_ack_async_event(&event);

  /* Without receives the requests fail, and the queue pair with them. */
  struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
  CHECK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
  CHECK(!ibv_post_send(qp, &wr, &bad));
  struct ibv_wc wc;
  do
    wc = take(cq);
  while (wc.qp_num != qp->qp_num);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);

  CHECK(!ibv_destroy_qp(over) && !ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
  CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
  CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
  puts("done");
  return 0;
}
