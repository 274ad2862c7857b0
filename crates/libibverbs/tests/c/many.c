/* Many objects with few descriptors: queue pairs, completion queues and regions of whole pages. The program itself can still open files.
   Also how much memory a queue pair takes; more memory than a small /dev/shm holds; and registrations for which there is no memory. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096, QUEUES = 1000, REGIONS = 2000, FILES = 100 };

static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                       IBV_ACCESS_REMOTE_READ;

static struct ibv_context *context;
static struct ibv_pd *pd;

/* Writes from one part of a region to another. */
static void works(struct ibv_qp *qp, struct ibv_mr *mr, size_t from,
                  size_t to) {
  char *memory = mr->addr;
  memory[from] = 5;
  memory[to] = 0;
  struct ibv_sge sge = {(uintptr_t)memory + from, 8, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {(uintptr_t)memory + to, mr->rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(qp->send_cq).status == IBV_WC_SUCCESS && memory[to] == 5);
}

static struct ibv_qp *queue_pair(void) {
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  CHECK(cq);
  struct ibv_qp_init_attr init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp);
  return qp;
}

static void connect_to_itself(struct ibv_qp *qp) {
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 1, &gid));
  connect_to(qp, gid, qp->qp_num);
}

/* With 1,024 descriptors. */
static void many(void) {
  static struct ibv_qp *qps[QUEUES];
  static struct ibv_mr *mrs[REGIONS];
  struct rlimit limit = {1024, 1024};
  CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
  for (int i = 0; i < QUEUES; i++)
    qps[i] = queue_pair();
  for (int i = 0; i < REGIONS; i++) {
    void *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    mrs[i] = ibv_reg_mr(pd, memory, PAGE, ALL);
    CHECK(mrs[i]);
  }
  int files[FILES];
  for (int i = 0; i < FILES; i++)
    CHECK((files[i] = open("/dev/null", O_RDONLY)) >= 0);
  for (int i = 0; i < FILES; i++)
    CHECK(!close(files[i]));
  for (int i = 0; i < QUEUES; i += 100)
    connect_to_itself(qps[i]);
  for (int i = 0; i < REGIONS; i += 100)
    works(qps[i / 200 * 100], mrs[i], 0, 64);
  for (int i = 0; i < REGIONS; i++)
    CHECK(!ibv_dereg_mr(mrs[i]));
  for (int i = 0; i < QUEUES; i++) {
    struct ibv_cq *cq = qps[i]->send_cq;
    CHECK(!ibv_destroy_qp(qps[i]) && !ibv_destroy_cq(cq));
  }
}

static size_t allocated(void) {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/* Queue pairs, connected and used, take at most `most` bytes of heap each. */
static void light(int has_srq, size_t most) {
  enum { FIRST = 200 };
  static struct ibv_qp *qps[QUEUES];
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_srq_init_attr shared = {.attr = {.max_wr = 16, .max_sge = 1}};
  struct ibv_srq *srq = ibv_create_srq(pd, &shared);
  struct ibv_mr *mr = ibv_reg_mr(pd, malloc(PAGE), PAGE, ALL);
  CHECK(cq && srq && mr);
  size_t before = 0;
  for (int i = 0; i < QUEUES; i++) {
    /* What the first ones allocate for all is not counted. */
    if (i == FIRST)
      before = allocated();
    struct ibv_qp_init_attr init = qp_of(cq);
    init.srq = has_srq ? srq : NULL;
    qps[i] = ibv_create_qp(pd, &init);
    CHECK(qps[i]);
    connect_to_itself(qps[i]);
    works(qps[i], mr, 0, 64);
  }
  /* Lists that the device's thread makes meanwhile are freed soon. */
  size_t heap = 0;
  for (int looks = 0; looks < 1000; looks++) {
    heap = (allocated() - before) / (QUEUES - FIRST);
    if (heap <= most)
      break;
    usleep(1000);
  }
  printf("%zu bytes of heap for each queue pair\n", heap);
  CHECK(heap <= most);
  for (int i = 0; i < QUEUES; i++)
    CHECK(!ibv_destroy_qp(qps[i]));
}

/* 160 MiB, every page of which is written to before and after. */
static void big(void) {
  const size_t LEN = 160 << 20;
  char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 1, LEN);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr);
  memset(memory, 2, LEN);
  struct ibv_qp *qp = queue_pair();
  connect_to_itself(qp);
  works(qp, mr, 0, LEN - 64);
  CHECK(!ibv_dereg_mr(mr));
  CHECK(memory[0] == 5 && memory[LEN - 64] == 5 && memory[LEN / 2] == 2);
}

/* The address space has no room for a copy of the memory: it is registered where it is, or not at all. */
static void full(void) {
  const size_t LEN = 256 << 20;
  char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  struct ibv_qp *qp = queue_pair();
  connect_to_itself(qp);
  /* What libc allocates for a thread at its first request must be there: without it libc ends the program. */
  struct ibv_mr *first = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(first);
  works(qp, first, 0, LEN - 64);
  CHECK(!ibv_dereg_mr(first));
  unsigned long pages;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm && fscanf(statm, "%lu", &pages) == 1 && !fclose(statm));
  for (size_t room = 0; room <= 4 << 20; room += 256 << 10) {
    struct rlimit limit = {pages * PAGE + room, RLIM_INFINITY};
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN, ALL);
    CHECK(mr || errno == ENOMEM);
    if (mr) {
      works(qp, mr, 0, LEN - 64);
      CHECK(!ibv_dereg_mr(mr));
    }
  }
  struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  CHECK(!setrlimit(RLIMIT_AS, &none));
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr);
  /* The same when the memory is to become private again. */
  statm = fopen("/proc/self/statm", "r");
  CHECK(statm && fscanf(statm, "%lu", &pages) == 1 && !fclose(statm));
  works(qp, mr, 0, LEN - 64);
  struct rlimit limit = {pages * PAGE, RLIM_INFINITY};
  CHECK(!setrlimit(RLIMIT_AS, &limit));
  CHECK(!ibv_dereg_mr(mr) && memory[LEN - 64] == 5);
  memset(memory, 7, LEN);
  CHECK(!setrlimit(RLIMIT_AS, &none));
}

int main(int count, char **words) {
  context = open_first();
  pd = ibv_alloc_pd(context);
  CHECK(pd);
  const char *what = count > 1 ? words[1] : "many";
  if (!strcmp(what, "many"))
    many();
  else if (!strcmp(what, "big"))
    big();
  else if (!strcmp(what, "light"))
    light(!strcmp(words[2], "srq"), strtoul(words[3], NULL, 10));
  else
    full();
  puts("done");
  return 0;
}
