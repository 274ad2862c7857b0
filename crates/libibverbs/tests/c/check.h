/* A check that ends the program with a line. */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                            \
  do {                                                                         \
    if (!(what)) {                                                             \
      fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what,     \
              errno);                                                          \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* Opens the first device. */
static inline struct ibv_context *open_first(void) {
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count);
  CHECK(list && count == 1 && list[0] && !list[1]);
  struct ibv_context *context = ibv_open_device(list[0]);
  CHECK(context);
  ibv_free_device_list(list);
  return context;
}

static inline struct ibv_qp_init_attr qp_of(struct ibv_cq *cq) {
  return (struct ibv_qp_init_attr){
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 16,
              .max_recv_wr = 16,
              .max_send_sge = 2,
              .max_recv_sge = 2,
              .max_inline_data = 64},
      .qp_type = IBV_QPT_RC};
}

/* Connects a queue pair to another, of this process or not. */
static inline void connect_to(struct ibv_qp *qp, union ibv_gid gid,
                              uint32_t qpn) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_LOCAL_WRITE |
                                                IBV_ACCESS_REMOTE_WRITE |
                                                IBV_ACCESS_REMOTE_READ |
                                                IBV_ACCESS_REMOTE_ATOMIC};
  CHECK(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                           IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = qpn,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 12,
                              .ah_attr = {.is_global = 1,
                                          .port_num = 1,
                                          .grh = {.dgid = gid, .hop_limit = 1}}};
  CHECK(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .timeout = 14,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .max_rd_atomic = 1};
  CHECK(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC));
  CHECK(qp->state == IBV_QPS_RTS);
}

/* Polls until a completion is there. */
static inline struct ibv_wc take(struct ibv_cq *cq) {
  struct ibv_wc wc;
  int got;
  while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
    ;
  CHECK(got == 1);
  return wc;
}
