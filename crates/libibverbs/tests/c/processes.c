/* Forked children, threads that share a queue pair, loading by name, and an exit that destroys nothing. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, POSTS = 2000 };

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

/* Posts WRITEs, and waits whenever the queue is full. Another thread polls. */
static void *post(void *unused) {
  (void)unused;
  struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {(uintptr_t)mr->addr + 64, mr->rkey}},
                     *bad;
  for (int i = 0; i < POSTS; i++) {
    int posted;
    while ((posted = ibv_post_send(qp, &wr, &bad)) == ENOMEM)
      ;
    CHECK(!posted);
  }
  return NULL;
}

static volatile sig_atomic_t signals;

static void count_signal(int number) {
  (void)number;
  signals++;
}

/* The address that two processes exchange. */
struct address {
  union ibv_gid gid;
  uint32_t qpn;
};

/* A child that connects to the parent's queue pair, sends one message and ends, destroying nothing. */
static void child_that_sends(int from_parent, int to_parent) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(cq);
  qp = ibv_create_qp(pd, &init);
  CHECK(pd && cq && qp);
  struct address own = {.qpn = qp->qp_num}, other;
  CHECK(!ibv_query_gid(context, 1, 1, &own.gid));
  CHECK(write(to_parent, &own, sizeof own) == sizeof own);
  CHECK(read(from_parent, &other, sizeof other) == sizeof other);
  connect_to(qp, other.gid, other.qpn);
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(cq).status == IBV_WC_SUCCESS);
  _exit(0);
}

/* The end of a peer leaves receives posted. A request to it fails as one to a peer that is silent. */
static void outlives_a_child(struct ibv_context *context, struct ibv_pd *pd) {
  int down[2], up[2], status;
  CHECK(!pipe(down) && !pipe(up));
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child)
    child_that_sends(down[0], up[1]);
  struct ibv_cq *own_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(own_cq);
  struct ibv_qp *own = ibv_create_qp(pd, &init);
  CHECK(own_cq && own);
  struct address address = {.qpn = own->qp_num}, other;
  CHECK(!ibv_query_gid(context, 1, 1, &address.gid));
  CHECK(read(up[0], &other, sizeof other) == sizeof other);
  connect_to(own, other.gid, other.qpn);
  struct ibv_recv_wr receive = {.wr_id = 5}, *bad_receive;
  for (int i = 0; i < 3; i++)
    CHECK(!ibv_post_recv(own, &receive, &bad_receive));
  CHECK(write(down[1], &address, sizeof address) == sizeof address);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(take(own_cq).status == IBV_WC_SUCCESS);
  /* Far longer than the device takes to notice the death. */
  usleep(300000);
  struct ibv_wc wc;
  CHECK(ibv_poll_cq(own_cq, 1, &wc) == 0);
  struct ibv_qp_attr attr;
  CHECK(!ibv_query_qp(own, &attr, IBV_QP_STATE, &init));
  CHECK(attr.qp_state == IBV_QPS_RTS);
  struct ibv_send_wr wr = {.wr_id = 6, .opcode = IBV_WR_SEND}, *bad;
  CHECK(!ibv_post_send(own, &wr, &bad));
  wc = take(own_cq);
  CHECK(wc.wr_id == 6 && wc.status == IBV_WC_RETRY_EXC_ERR);
  for (int i = 0; i < 2; i++) {
    wc = take(own_cq);
    CHECK(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR);
  }
  CHECK(!ibv_destroy_qp(own) && !ibv_destroy_cq(own_cq));
}

int main(void) {
  /* Loaders look the library up by its name, and functions by version. */
  void *library = dlopen("libibverbs.so.1", RTLD_NOW);
  CHECK(library);
  CHECK(dlvsym(library, "ibv_open_device", "IBVERBS_1.1") ==
        dlsym(RTLD_DEFAULT, "ibv_open_device"));
  CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"));
  CHECK(!dlclose(library));
  CHECK(!ibv_fork_init());

  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  CHECK(pd && cq);
  struct ibv_qp_init_attr init = qp_of(cq);
  qp = ibv_create_qp(pd, &init);
  char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  mr = ibv_reg_mr(pd, memory, 4096,
                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(qp && mr);
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 1, &gid));
  connect_to(qp, gid, qp->qp_num);

  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(!pthread_create(&threads[i], NULL, post, NULL));
  for (int i = 0; i < THREADS * POSTS; i++)
    CHECK(take(cq).status == IBV_WC_SUCCESS);
  for (int i = 0; i < THREADS; i++)
    CHECK(!pthread_join(threads[i], NULL));

  /* The library's threads take no signals of the program. */
  sigset_t one, pending;
  CHECK(signal(SIGUSR1, count_signal) != SIG_ERR);
  CHECK(!sigemptyset(&one) && !sigaddset(&one, SIGUSR1));
  CHECK(!pthread_sigmask(SIG_BLOCK, &one, NULL));
  CHECK(!kill(getpid(), SIGUSR1));
  CHECK(!sigpending(&pending) && sigismember(&pending, SIGUSR1));
  CHECK(!pthread_sigmask(SIG_UNBLOCK, &one, NULL) && signals == 1);

  /* In a child the parent's objects do nothing, and a device can be opened anew. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(qp, &wr, &bad));
    struct ibv_context *own = open_first();
    struct ibv_pd *own_pd = ibv_alloc_pd(own);
    struct ibv_cq *own_cq = ibv_create_cq(own, 16, NULL, NULL, 0);
    init = qp_of(own_cq);
    struct ibv_qp *own_qp = ibv_create_qp(own_pd, &init);
    CHECK(own_pd && own_cq && own_qp);
    connect_to(own_qp, gid, own_qp->qp_num);
    CHECK(!ibv_destroy_qp(own_qp) && !ibv_destroy_cq(own_cq));
    CHECK(!ibv_dealloc_pd(own_pd) && !ibv_close_device(own));
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
    CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  outlives_a_child(context, pd);

  /* The parent goes on. */
  struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {(uintptr_t)memory + 64, mr->rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(cq).status == IBV_WC_SUCCESS);
  puts("done");
  return 0;
}
