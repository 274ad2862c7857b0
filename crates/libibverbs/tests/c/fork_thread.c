/* One thread forks while another posts, and a third registers memory. A child uses a device of its own or executes another program, and the
   parent goes on. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, FORKS = 40 };

static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

static struct ibv_context *context;
static struct ibv_pd *pd;
static atomic_int is_over;
static char *program;

static struct ibv_qp *loop(struct ibv_context *on, struct ibv_pd *in) {
  struct ibv_cq *cq = ibv_create_cq(on, 16, NULL, NULL, 0);
  CHECK(cq);
  struct ibv_qp_init_attr init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(in, &init);
  union ibv_gid gid;
  CHECK(qp && !ibv_query_gid(on, 1, 1, &gid));
  connect_to(qp, gid, qp->qp_num);
  return qp;
}

static void *pages(void) {
  void *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

/* Writes a number from the first half of the memory to the second. */
static void write_once(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t number) {
  char *memory = mr->addr;
  memcpy(memory, &number, sizeof number);
  struct ibv_sge sge = {(uintptr_t)memory, sizeof number, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {(uintptr_t)memory + 64, mr->rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(qp->send_cq).status == IBV_WC_SUCCESS);
  CHECK(!memcmp(memory, memory + 64, sizeof number));
}

static void *post(void *unused) {
  (void)unused;
  struct ibv_qp *qp = loop(context, pd);
  struct ibv_mr *mr = ibv_reg_mr(pd, pages(), PAGE, ALL);
  CHECK(mr);
  for (uint32_t i = 0; !is_over; i++)
    write_once(qp, mr, i);
  CHECK(!ibv_dereg_mr(mr));
  return NULL;
}

static void *register_memory(void *unused) {
  (void)unused;
  void *memory = pages();
  while (!is_over) {
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, ALL);
    CHECK(mr && !ibv_dereg_mr(mr));
  }
  return NULL;
}

/* All that a program does. */
static void use_a_device(void) {
  struct ibv_context *own = open_first();
  struct ibv_pd *own_pd = ibv_alloc_pd(own);
  CHECK(own_pd);
  struct ibv_mr *mr = ibv_reg_mr(own_pd, pages(), PAGE, ALL);
  CHECK(mr);
  write_once(loop(own, own_pd), mr, 9);
}

static void *fork_often(void *unused) {
  (void)unused;
  for (int i = 0; i < FORKS; i++) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
      if (i % 2) {
        execl(program, program, "child", NULL);
        _exit(127);
      }
      use_a_device();
      _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status)
      fprintf(stderr, "child %d: %x\n", i, (unsigned)status);
    CHECK(!status);
  }
  return NULL;
}

int main(int count, char **words) {
  program = "/proc/self/exe";
  (void)words;
  if (count > 1) {
    use_a_device();
    return 0;
  }
  context = open_first();
  pd = ibv_alloc_pd(context);
  CHECK(pd);
  void *(*bodies[])(void *) = {post, register_memory, fork_often};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    CHECK(!pthread_create(&threads[i], NULL, bodies[i], NULL));
  CHECK(!pthread_join(threads[2], NULL));
  is_over = 1;
  for (int i = 0; i < 2; i++)
    CHECK(!pthread_join(threads[i], NULL));
  puts("done");
  return 0;
}
