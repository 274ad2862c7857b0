/* Wrong arguments, objects in use, and what the device does not have. */
#include "check.h"

int main(void) {
  struct ibv_context *context = open_first();

  /* Null and numbers out of range. */
  CHECK(!ibv_open_device(NULL) && errno == EINVAL);
  CHECK(!ibv_alloc_pd(NULL) && errno == EINVAL);
  CHECK(ibv_dealloc_pd(NULL) == EINVAL);
  CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0) && errno == EINVAL);
  CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
  CHECK(!ibv_create_cq(context, 1, NULL, NULL, 1) && errno == EINVAL);
  struct ibv_port_attr port;
  CHECK(ibv_query_port(context, 2, &port) == EINVAL);
  CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
  union ibv_gid gid;
  CHECK(ibv_query_gid(context, 1, 8, &gid) == -1);
  CHECK(!ibv_query_gid(context, 1, 1, &gid) && gid.raw[10] == 0xff);
  struct ibv_gid_entry entries[2];
  CHECK(ibv_query_gid_table(context, entries, 2, 0) == 2);
  CHECK(entries[1].gid_type == IBV_GID_TYPE_ROCE_V2);
  CHECK(!memcmp(entries[1].gid.raw, gid.raw, 16));
  CHECK(ibv_query_gid_table(context, entries, 1, 0) < 0);

  /* Memory. */
  struct ibv_pd *pd = ibv_alloc_pd(context);
  CHECK(pd);
  char *memory = malloc(1 << 16);
  CHECK(!ibv_reg_mr(pd, memory, 0, 0) && errno == EINVAL);
  CHECK(!ibv_reg_mr(pd, (void *)4096, 64, IBV_ACCESS_LOCAL_WRITE));
  CHECK(errno == EFAULT);
  CHECK(!ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE));
  CHECK(errno == EINVAL);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr && mr->addr == memory && mr->pd == pd);
  CHECK(ibv_dealloc_pd(pd) == EBUSY);
  CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
  CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 64,
                      64, 0));
  CHECK(mr->length == 64 && mr->addr == memory + 64);

  /* Queue pairs and what they are made of. */
  struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
  struct ibv_cq *cq = ibv_create_cq(context, 16, &gid, channel, 0);
  CHECK(channel && cq && cq->cqe >= 16 && cq->cq_context == &gid);
  CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
  CHECK(!ibv_resize_cq(cq, 8) && cq->cqe == 8);
  CHECK(!ibv_resize_cq(cq, 60) && cq->cqe == 64);
  CHECK(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, 1 << 30) == EINVAL);
  CHECK(ibv_resize_cq(cq, 1000) == EOPNOTSUPP && cq->cqe == 64);
  struct ibv_qp_init_attr init = qp_of(cq);
  init.send_cq = NULL;
  CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
  init = qp_of(cq);
  init.cap.max_send_wr = 1 << 30;
  CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
  init = qp_of(cq);
  init.qp_type = IBV_QPT_RAW_PACKET;
  CHECK(!ibv_create_qp(pd, &init) && errno == EOPNOTSUPP);
  init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp && qp->state == IBV_QPS_RESET && init.cap.max_send_wr >= 16);
  CHECK(!ibv_qp_to_qp_ex(qp));
  CHECK(ibv_destroy_cq(cq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);

  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 2};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                     IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad = NULL;
  CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
  connect_to(qp, gid, qp->qp_num);
  CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN, &init));
  CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == qp->qp_num);
  CHECK(attr.timeout == 14 && init.send_cq == cq && init.cap.max_send_wr >= 16);
  struct ibv_send_wr chain[3] = {{.opcode = IBV_WR_SEND, .next = &chain[1]},
                                 {.opcode = IBV_WR_TSO, .next = &chain[2]},
                                 {.opcode = IBV_WR_SEND}};
  CHECK(ibv_post_send(qp, chain, &bad) == EINVAL && bad == &chain[1]);
  struct ibv_recv_wr receive = {.num_sge = -1}, *bad_receive = NULL;
  CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
  CHECK(bad_receive == &receive);

  /* Parts of the interface that the device does not have. */
  CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_1) && errno == EOPNOTSUPP);
  CHECK(!ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64}));
  CHECK(errno == EOPNOTSUPP);
  CHECK(ibv_attach_mcast(qp, &gid, 0) == EOPNOTSUPP);

  /* The context may go first. */
  CHECK(!ibv_close_device(context));
  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
  CHECK(!ibv_destroy_comp_channel(channel));
  CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
  free(memory);
  puts("done");
  return 0;
}
