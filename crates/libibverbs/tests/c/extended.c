/* Extended queue pairs and completion queues. */
#include "check.h"

enum { LEN = 4096 };

int main(void) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq_init_attr_ex cq_init = {
      .cqe = 64,
      .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
  struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_init);
  CHECK(pd && cq);
  struct ibv_qp_init_attr_ex init = {
      .send_cq = ibv_cq_ex_to_cq(cq),
      .recv_cq = ibv_cq_ex_to_cq(cq),
      .cap = qp_of(NULL).cap,
      .qp_type = IBV_QPT_RC,
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
      .pd = pd,
      .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM |
                        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};
  struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
  CHECK(qp);
  struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
  CHECK(qpx);
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 0, &gid));
  connect_to(qp, gid, qp->qp_num);
  uint64_t *memory = aligned_alloc(64, LEN);
  memset(memory, 0, LEN);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN,
                                 IBV_ACCESS_LOCAL_WRITE |
                                     IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_ATOMIC);
  CHECK(mr);
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_recv_wr receive = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(!ibv_post_recv(qp, &receive, &bad));

  /* Inline bytes in two pieces, then a SEND with immediate, then an atomic: one chain. */
  ibv_wr_start(qpx);
  qpx->wr_id = 1;
  qpx->wr_flags = 0;
  ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)(memory + 100));
  struct ibv_data_buf pieces[2] = {{"head", 4}, {"works!!", 8}};
  ibv_wr_set_inline_data_list(qpx, 2, pieces);
  qpx->wr_id = 2;
  qpx->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qpx, htobe32(0x01020304));
  ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(memory + 100), 12);
  qpx->wr_id = 3;
  ibv_wr_atomic_fetch_add(qpx, mr->rkey, (uintptr_t)(memory + 200), 5);
  ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(memory + 300), 8);
  CHECK(!ibv_wr_complete(qpx));

  int seen = 0;
  uint64_t earlier = 0;
  while (seen < 3) {
    struct ibv_poll_cq_attr attr = {0};
    int got = ibv_start_poll(cq, &attr);
    if (got == ENOENT)
      continue;
    CHECK(!got);
    do {
      CHECK(cq->status == IBV_WC_SUCCESS);
      CHECK(ibv_wc_read_qp_num(cq) == qp->qp_num);
      uint64_t at = ibv_wc_read_completion_ts(cq);
      CHECK(at > 0);
      earlier = at > earlier ? at : earlier;
      switch (cq->wr_id) {
      case 7:
        CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV);
        CHECK(ibv_wc_read_byte_len(cq) == 12);
        CHECK(ibv_wc_read_imm_data(cq) == htobe32(0x01020304));
        CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
        break;
      case 2:
        CHECK(ibv_wc_read_opcode(cq) == IBV_WC_SEND);
        break;
      default:
        CHECK(cq->wr_id == 3 && ibv_wc_read_opcode(cq) == IBV_WC_FETCH_ADD);
      }
      seen++;
    } while (!ibv_next_poll(cq));
    ibv_end_poll(cq);
  }
  CHECK(!strcmp((char *)(memory + 100), "headworks!!"));
  CHECK(!strcmp((char *)memory, "headworks!!"));
  CHECK(memory[200] == 5 && memory[300] == 0);
  struct ibv_values_ex now = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
  CHECK(!ibv_query_rt_values_ex(context, &now));
  CHECK((uint64_t)now.raw_clock.tv_nsec >= earlier);

  /* An operation that the device does not have spoils its chain, and only that. */
  ibv_wr_start(qpx);
  ibv_wr_local_inv(qpx, 1);
  CHECK(ibv_wr_complete(qpx) == EOPNOTSUPP);
  ibv_wr_start(qpx);
  ibv_wr_send_imm(qpx, 0);
  ibv_wr_abort(qpx);
  ibv_wr_start(qpx);
  qpx->wr_id = 9;
  ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory);
  ibv_wr_set_inline_data(qpx, "x", 1);
  CHECK(!ibv_wr_complete(qpx));
  CHECK(take(ibv_cq_ex_to_cq(cq)).wr_id == 9);

  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
  CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
  CHECK(!ibv_close_device(context));
  free(memory);
  puts("done");
  return 0;
}
