/* Regions with addresses of their own (iova), and regions that are registered anew: another process reaches them. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 64 };

/* What the child is told of one region: the address of a byte in requests, and whether the request must fail. */
struct order {
  uint64_t addr;
  uint32_t rkey;
  int fails;
};

struct address {
  union ibv_gid gid;
  uint32_t qpn;
};

static struct ibv_cq *cq;

static struct ibv_wc request(struct ibv_qp *qp, enum ibv_wr_opcode opcode,
                             struct ibv_mr *own, struct order to) {
  struct ibv_sge sge = {(uintptr_t)own->addr, LEN, own->lkey};
  struct ibv_send_wr wr = {.opcode = opcode,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {to.addr, to.rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  return take(cq);
}

/* Writes to the parent's regions as it is told, and reads them back. */
static void child(int from_parent, int to_parent) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(cq);
  static char bytes[2 * LEN];
  struct ibv_mr *own = ibv_reg_mr(pd, bytes, sizeof bytes,
                                  IBV_ACCESS_LOCAL_WRITE);
  CHECK(pd && cq && own);
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 1, &gid));
  char letter = 'a';
  for (;;) {
    /* A queue pair for each order, because a refused request ends its own. */
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct address here = {.gid = gid, .qpn = qp->qp_num}, there;
    CHECK(write(to_parent, &here, sizeof here) == sizeof here);
    ssize_t got = read(from_parent, &there, sizeof there);
    if (got == 0)
      _exit(0);
    CHECK(got == sizeof there);
    connect_to(qp, there.gid, there.qpn);
    struct order order;
    CHECK(read(from_parent, &order, sizeof order) == sizeof order);
    memset(bytes, letter++, LEN);
    struct ibv_wc wc = request(qp, IBV_WR_RDMA_WRITE, own, order);
    CHECK(wc.status == (order.fails ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
    if (!order.fails) {
      char expected[LEN];
      memcpy(expected, bytes, LEN);
      memset(bytes, 0, LEN);
      wc = request(qp, IBV_WR_RDMA_READ, own, order);
      CHECK(wc.status == IBV_WC_SUCCESS && !memcmp(expected, bytes, LEN));
    }
    CHECK(write(to_parent, &letter, 1) == 1);
    CHECK(!ibv_destroy_qp(qp));
  }
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static int down[2], up[2];

/* Has the child write and read LEN bytes at an address of requests. Returns what it wrote. */
static char ordered(struct ibv_pd *of, uint64_t addr, uint32_t rkey, int fails) {
  struct ibv_cq *own_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(own_cq);
  struct ibv_qp *qp = ibv_create_qp(of, &init);
  struct address here = {.qpn = qp->qp_num}, there;
  CHECK(!ibv_query_gid(context, 1, 1, &here.gid));
  CHECK(read(up[0], &there, sizeof there) == sizeof there);
  connect_to(qp, there.gid, there.qpn);
  CHECK(write(down[1], &here, sizeof here) == sizeof here);
  struct order order = {addr, rkey, fails};
  CHECK(write(down[1], &order, sizeof order) == sizeof order);
  char letter;
  CHECK(read(up[0], &letter, 1) == 1);
  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(own_cq));
  return letter - 1;
}

static void holds(const char *at, char letter) {
  for (int i = 0; i < LEN; i++)
    CHECK(at[i] == letter);
}

int main(void) {
  CHECK(!ibv_fork_init() && !pipe(down) && !pipe(up));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (!pid) {
    close(down[1]);
    child(down[0], up[1]);
  }
  close(down[0]);
  context = open_first();
  pd = ibv_alloc_pd(context);
  struct ibv_pd *other_pd = ibv_alloc_pd(context);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                     IBV_ACCESS_REMOTE_READ;
  char *pages = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *heap = malloc(4 * PAGE);
  CHECK(pd && other_pd && pages != MAP_FAILED && heap);

  /* Private memory, which begins within a page, and shared pages. */
  char *memories[] = {heap + 24, pages};
  for (int i = 0; i < 2; i++) {
    char *memory = memories[i];
    uint64_t iova = 0x123456000 + (uintptr_t)memory % PAGE;
    CHECK(!ibv_reg_mr_iova(pd, memory, 2 * PAGE, iova + 8, access));
    CHECK(errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_mr_iova(pd, memory, 2 * PAGE, iova, access);
    CHECK(mr && mr->addr == memory && mr->length == 2 * PAGE);
    holds(memory + 40, ordered(pd, iova + 40, mr->rkey, 0));
    /* The program's own address means nothing in requests, nor does what lies behind the region. */
    ordered(pd, (uintptr_t)memory, mr->rkey, 1);
    ordered(pd, iova + 2 * PAGE - LEN + 1, mr->rkey, 1);

    /* Registered anew, it keeps its keys, whatever changes. Cached translations of the old region are not used. */
    uint32_t lkey = mr->lkey, rkey = mr->rkey;
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                        IBV_ACCESS_LOCAL_WRITE));
    ordered(pd, iova + 40, rkey, 1);
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access));
    holds(memory + 48, ordered(pd, iova + 48, rkey, 0));
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0));
    CHECK(mr->pd == other_pd);
    ordered(pd, iova + 40, rkey, 1);
    holds(memory + 56, ordered(other_pd, iova + 56, rkey, 0));
    char *moved = memory + 2 * PAGE;
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, moved, PAGE,
                        0));
    CHECK(mr->addr == moved && mr->length == PAGE);
    CHECK(mr->lkey == lkey && mr->rkey == rkey);
    ordered(other_pd, iova + 40, rkey, 1);
    holds(moved + 64, ordered(other_pd, (uintptr_t)moved + 64, rkey, 0));
    /* A change that fails changes nothing. */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)PAGE,
                       PAGE, 0) == IBV_REREG_MR_ERR_CMD);
    CHECK(mr->addr == moved);
    holds(moved + 72, ordered(other_pd, (uintptr_t)moved + 72, rkey, 0));
    CHECK(!ibv_dereg_mr(mr));
  }

  /* Addresses from 0 on, and on-demand paging, which is ordinary registration here. */
  /* The header calls different functions for flags that the compiler knows, and others. */
  const int known = access | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND;
  volatile int unknown = known;
  for (int i = 0; i < 2; i++) {
    struct ibv_mr *mr = i ? ibv_reg_mr(pd, heap, PAGE, unknown)
                          : ibv_reg_mr(pd, heap, PAGE, known);
    CHECK(mr);
    holds(heap, ordered(pd, 0, mr->rkey, 0));
    holds(heap + PAGE - LEN, ordered(pd, PAGE - LEN, mr->rkey, 0));
    CHECK(!ibv_dereg_mr(mr));
  }
  CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, access | IBV_ACCESS_ON_DEMAND));
  CHECK(errno == EOPNOTSUPP);
  CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, 0, access) && errno == EOPNOTSUPP);

  /* The child makes one more queue pair, and then finds no order. */
  struct address last;
  CHECK(read(up[0], &last, sizeof last) == sizeof last);
  close(down[1]);
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(!ibv_dealloc_pd(other_pd) && !ibv_dealloc_pd(pd));
  CHECK(!ibv_close_device(context));
  puts("done");
  return 0;
}
