/* Completions that are not polled yet when their queue pair is reset or destroyed. */
#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

/* A queue pair that is connected to itself. */
static struct ibv_qp *looped(struct ibv_srq *srq) {
  struct ibv_qp_init_attr init = qp_of(cq);
  init.srq = srq;
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp);
  connect_to(qp, gid, qp->qp_num);
  return qp;
}

/* Sends an empty message to itself. */
static void send(struct ibv_qp *qp, struct ibv_srq *srq, uint64_t wr_id) {
  struct ibv_recv_wr receive = {.wr_id = wr_id + 100}, *bad_receive;
  if (srq)
    CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
  else
    CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
  struct ibv_send_wr wr = {.wr_id = wr_id,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* The next completions of a queue pair, in either order: of a message and of its receive. */
static void takes(struct ibv_qp *qp, uint64_t wr_id) {
  for (int i = 0; i < 2; i++) {
    struct ibv_wc wc = take(cq);
    CHECK(wc.qp_num == qp->qp_num && wc.status == IBV_WC_SUCCESS);
    CHECK(wc.wr_id == (wc.opcode == IBV_WC_SEND ? wr_id : wr_id + 100));
  }
}

int main(void) {
  context = open_first();
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  CHECK(pd && cq && !ibv_query_gid(context, 1, 1, &gid));
  struct ibv_qp *gone = looped(NULL), *stays = looped(NULL);
  struct ibv_wc wc;
  for (int turn = 0; turn < 2; turn++) {
    send(stays, NULL, 1);
    send(gone, NULL, 2);
    send(stays, NULL, 3);
    if (turn == 0) {
      struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
      CHECK(!ibv_modify_qp(gone, &attr, IBV_QP_STATE));
      /* It works again. */
      connect_to(gone, gid, gone->qp_num);
      send(gone, NULL, 4);
    } else {
      CHECK(!ibv_destroy_qp(gone));
    }
    /* Of the others none is lost, and they stay in order. */
    takes(stays, 1);
    takes(stays, 3);
    if (turn == 0)
      takes(gone, 4);
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
  }
  CHECK(!ibv_destroy_qp(stays));

  /* A receive of a shared receive queue is completed all the same. */
  struct ibv_srq_init_attr of = {.attr = {.max_wr = 8, .max_sge = 1}};
  struct ibv_srq *srq = ibv_create_srq(pd, &of);
  CHECK(srq);
  struct ibv_qp *sharing = looped(srq);
  send(sharing, srq, 5);
  CHECK(!ibv_destroy_qp(sharing));
  wc = take(cq);
  CHECK(wc.wr_id == 105 && wc.opcode == IBV_WC_RECV);
  CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
  CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
  CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
  puts("done");
  return 0;
}
