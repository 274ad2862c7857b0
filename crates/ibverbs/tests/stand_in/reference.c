/* What a careful C program does for each request: a chain filled in place and linked, one call. Each case
 * of benches/instructions.rs, in its order; between cases getppid() is called, which is where the counts
 * are split. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "verbs.h"

#define MOST 32
#define INLINE __attribute__((always_inline)) static inline

enum kind { WRITE, WRITE_INLINE, WRITE_IMM, SEND, SEND_INLINE, SEND_IMM, READ, COMPARE_SWAP, FETCH_ADD,
            DATAGRAM, DATAGRAM_IMM, RECEIVE, POLL_SENDS, POLL_RECEIVES };

/* What the requests are made of: the same numbers in both programs. */
struct from {
    uint64_t local, remote;
    uint32_t lkey, rkey, len, imm, qpn, qkey;
    struct ibv_ah *ah;
};

static struct ibv_sge sges[MOST], inlines[MOST];
static struct ibv_send_wr sends[MOST];
static struct ibv_recv_wr receives[MOST];
static struct ibv_wc completions[MOST];

INLINE int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    return qp->context->ops.post_send(qp, wr, bad);
}

INLINE int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return qp->context->ops.post_recv(qp, wr, bad);
}

INLINE int ibv_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    return cq->context->ops.poll_cq(cq, most, wc);
}

INLINE void put_inline(struct ibv_send_wr *wr, const struct from *from, int i)
{
    inlines[i].addr = from->local + i * 64;
    inlines[i].length = from->len;
    wr->sg_list = &inlines[i];
    wr->send_flags |= IBV_SEND_INLINE;
}

INLINE int post_sends(struct ibv_qp *qp, enum kind kind, const struct from *from, int count)
{
    struct ibv_send_wr *bad;
    for (int i = 0; i < count; i++) {
        struct ibv_send_wr *wr = &sends[i];
        uint64_t remote = from->remote + i * 64;
        wr->wr_id = i;
        wr->next = wr + 1;
        wr->sg_list = &sges[i];
        wr->num_sge = 1;
        wr->send_flags = IBV_SEND_SIGNALED;
        switch (kind) {
        case WRITE_INLINE:
            put_inline(wr, from, i); /* fall through */
        case WRITE:
            wr->opcode = IBV_WR_RDMA_WRITE;
            wr->wr.rdma.remote_addr = remote;
            wr->wr.rdma.rkey = from->rkey;
            break;
        case WRITE_IMM:
            wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            wr->imm_data = htonl(from->imm + i);
            wr->wr.rdma.remote_addr = remote;
            wr->wr.rdma.rkey = from->rkey;
            break;
        case SEND_INLINE:
            put_inline(wr, from, i); /* fall through */
        case SEND:
            wr->opcode = IBV_WR_SEND;
            break;
        case SEND_IMM:
            wr->opcode = IBV_WR_SEND_WITH_IMM;
            wr->imm_data = htonl(from->imm + i);
            break;
        case READ:
            wr->opcode = IBV_WR_RDMA_READ;
            wr->wr.rdma.remote_addr = remote;
            wr->wr.rdma.rkey = from->rkey;
            break;
        case COMPARE_SWAP:
            wr->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            wr->wr.atomic.remote_addr = remote;
            wr->wr.atomic.compare_add = i;
            wr->wr.atomic.swap = from->imm;
            wr->wr.atomic.rkey = from->rkey;
            break;
        case FETCH_ADD:
            wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr->wr.atomic.remote_addr = remote;
            wr->wr.atomic.compare_add = i;
            wr->wr.atomic.rkey = from->rkey;
            break;
        case DATAGRAM_IMM:
            wr->imm_data = htonl(from->imm + i); /* fall through */
        case DATAGRAM:
            wr->opcode = kind == DATAGRAM ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
            wr->wr.ud.ah = from->ah;
            wr->wr.ud.remote_qpn = from->qpn;
            wr->wr.ud.remote_qkey = from->qkey;
            break;
        default:
            abort();
        }
    }
    sends[count - 1].next = NULL;
    return ibv_post_send(qp, sends, &bad);
}

INLINE int post_receives(struct ibv_qp *qp, int count)
{
    struct ibv_recv_wr *bad;
    for (int i = 0; i < count; i++) {
        receives[i].wr_id = i;
        receives[i].next = &receives[i + 1];
        receives[i].sg_list = &sges[i];
        receives[i].num_sge = 1;
    }
    receives[count - 1].next = NULL;
    return ibv_post_recv(qp, receives, &bad);
}

INLINE int take(struct ibv_cq *cq, enum kind kind, int count, volatile uint64_t *sum)
{
    uint64_t all = 0;
    int got = ibv_poll_cq(cq, count, completions);
    for (int i = 0; i < got; i++) {
        if (completions[i].status != IBV_WC_SUCCESS)
            return 1;
        all += completions[i].wr_id;
        if (kind == POLL_RECEIVES)
            all += completions[i].byte_len;
    }
    *sum = all;
    return 0;
}

/* One function for each case, as a program that knows what it posts has it. */
#define CASE(name, kind, body)                                                                              \
    __attribute__((noinline)) static int name(struct ibv_qp *qp, const struct from *from, int rounds,       \
                                              int count)                                                    \
    {                                                                                                       \
        static volatile uint64_t sum;                                                                       \
        int bad = 0;                                                                                        \
        (void)from, (void)sum;                                                                              \
        for (int round = 0; round < rounds; round++)                                                        \
            bad |= body;                                                                                    \
        return bad;                                                                                         \
    }
#define SENDS(name, kind) CASE(name, kind, post_sends(qp, kind, from, count))

SENDS(write_, WRITE)
SENDS(write_inline, WRITE_INLINE)
SENDS(write_imm, WRITE_IMM)
SENDS(send_, SEND)
SENDS(send_inline, SEND_INLINE)
SENDS(send_imm, SEND_IMM)
SENDS(read_, READ)
SENDS(compare_swap, COMPARE_SWAP)
SENDS(fetch_add, FETCH_ADD)
SENDS(datagram, DATAGRAM)
SENDS(datagram_imm, DATAGRAM_IMM)
CASE(receive, RECEIVE, post_receives(qp, count))
CASE(poll_sends, POLL_SENDS, take(qp->send_cq, POLL_SENDS, count, &sum))
CASE(poll_receives, POLL_RECEIVES, take(qp->send_cq, POLL_RECEIVES, count, &sum))

int main(int argc, char **argv)
{
    static int (*const cases[])(struct ibv_qp *, const struct from *, int, int) = {
        write_, write_inline, write_imm, send_, send_inline, send_imm, read_, compare_swap, fetch_add,
        datagram, datagram_imm, receive, poll_sends, poll_receives,
    };
    static const int slices[] = { 1, 16, 32 };
    static char memory[MOST * 64];
    int devices, rounds = argc > 1 ? atoi(argv[1]) : 0;
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(&devices));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 100, NULL, NULL, 0);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_ah_attr way = { { 0 } };
    struct from from = {
        .local = (uintptr_t)memory, .remote = 0x10000, .lkey = 7, .rkey = 8, .len = 8, .imm = 9,
        .qpn = 0x102, .qkey = 11, .ah = ibv_create_ah(pd, &way),
    };
    for (int i = 0; i < MOST; i++)
        sges[i] = (struct ibv_sge) { from.local + i * 64, from.len, from.lkey };
    for (unsigned kind = 0; kind < sizeof cases / sizeof *cases; kind++)
        for (unsigned slice = 0; slice < sizeof slices / sizeof *slices; slice++) {
            struct ibv_recv_wr *bad;
            /* So that completions are of the right kind. */
            if (kind == POLL_RECEIVES)
                ibv_post_recv(qp, NULL, &bad);
            getppid();
            if (cases[kind](qp, &from, rounds, slices[slice]))
                return 1;
            getppid();
        }
    printf("%zu cases\n", sizeof cases / sizeof *cases);
    return 0;
}
