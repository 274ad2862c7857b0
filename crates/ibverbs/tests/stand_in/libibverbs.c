/* A stand-in for libibverbs.so.1 with one device, `stand_in0`: what is made is memory, what is posted is
 * walked and forgotten, and polls bring as many completions as are asked for. Under it anything that uses
 * libibverbs can be counted, and looked at on machines without RDMA. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbs.h"

static struct ibv_device device = { .name = "stand_in0", .dev_name = "uverbs0" };

/* What the last call posted: completions are of that kind. */
static int completes_with;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)qp, (void)bad;
    completes_with = IBV_WC_SEND;
    while (wr)
        wr = *(struct ibv_send_wr *volatile *)&wr->next;
    return 0;
}

static int walk(struct ibv_recv_wr *wr)
{
    completes_with = IBV_WC_RECV;
    while (wr)
        wr = *(struct ibv_recv_wr *volatile *)&wr->next;
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)qp, (void)bad;
    return walk(wr);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)srq, (void)bad;
    return walk(wr);
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    (void)cq;
    for (int i = 0; i < most; i++) {
        wc[i].wr_id = i;
        wc[i].status = IBV_WC_SUCCESS;
        wc[i].opcode = completes_with;
        wc[i].byte_len = 64;
        wc[i].qp_num = 0x101;
        wc[i].src_qp = 0x102;
        wc[i].wc_flags = 0;
    }
    return most;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    (void)cq, (void)solicited_only;
    return 0;
}

int ibv_fork_init(void)
{
    return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof *list);
    *list = &device;
    *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *opened)
{
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = opened;
    context->cmd_fd = -1;
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.post_srq_recv = post_srq_recv;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    memset(attr, 0, sizeof *attr);
    attr->max_qp = 64, attr->max_qp_wr = 4096, attr->max_sge = 16;
    attr->max_cq = 64, attr->max_cqe = 65536, attr->max_mr = 1024, attr->max_ah = 1024;
    attr->max_srq = 64, attr->max_srq_wr = 4096, attr->max_srq_sge = 16;
    attr->max_qp_rd_atom = 16, attr->max_qp_init_rd_atom = 16, attr->atomic_cap = 1;
    attr->phys_port_cnt = 1;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    (void)context, (void)port;
    memset(attr, 0, sizeof *attr);
    attr->state = 4, attr->max_mtu = 5, attr->active_mtu = 5;
    attr->gid_tbl_len = 1, attr->max_msg_sz = 1u << 30, attr->link_layer = 2;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, uint8_t gid[16])
{
    static const uint8_t address[16] = { [10] = 0xff, 0xff, 192, 0, 2, 1 };
    (void)context, (void)port;
    if (index != 0)
        return -1;
    memcpy(gid, address, sizeof address);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context, (void)event;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    (void)access;
    mr->context = pd->context, mr->pd = pd;
    mr->addr = addr, mr->length = length;
    mr->lkey = 7, mr->rkey = 8;
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    free(mr);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int depth, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *cq = calloc(1, sizeof *cq);
    (void)vector;
    cq->context = context, cq->channel = channel;
    cq->cq_context = cq_context, cq->cqe = depth;
    return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    (void)channel, (void)cq, (void)cq_context;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void)cq, (void)count;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
    struct ibv_srq *srq = calloc(1, sizeof *srq);
    srq->context = pd->context, srq->pd = pd;
    srq->srq_context = init->srq_context;
    return srq;
}

int ibv_modify_srq(struct ibv_srq *srq, void *attr, int mask)
{
    (void)srq, (void)attr, (void)mask;
    return 0;
}

int ibv_query_srq(struct ibv_srq *srq, void *attr)
{
    (void)srq, (void)attr;
    return ENOSYS;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
    free(srq);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    static uint32_t number = 0x100;
    struct ibv_qp *qp;
    if (init->cap.max_inline_data > 256) {
        errno = EINVAL;
        return NULL;
    }
    qp = calloc(1, sizeof *qp);
    qp->context = pd->context, qp->pd = pd;
    qp->send_cq = init->send_cq, qp->recv_cq = init->recv_cq, qp->srq = init->srq;
    qp->qp_type = init->qp_type, qp->qp_num = number++;
    return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    (void)mask;
    qp->state = attr->qp_state;
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    (void)mask, (void)init;
    memset(attr, 0, sizeof *attr);
    attr->qp_state = qp->state;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    free(qp);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct ibv_ah *ah = calloc(1, sizeof *ah);
    (void)attr;
    ah->context = pd->context, ah->pd = pd;
    return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
    free(ah);
    return 0;
}
