/* Registered memory: pages that become shared, and pages that do not. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, LEN = PAGES * PAGE };

static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* Whether the page at an address is mapped to a file of the device. */
static int is_shared(const void *address) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  int found = 0;
  CHECK(maps);
  while (fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx", &from, &to) == 2 &&
        from <= (uintptr_t)address && (uintptr_t)address < to)
      found = strstr(line, "rw-s") && strstr(line, "memfd:");
  }
  fclose(maps);
  return found;
}

static void fill(unsigned char *memory, unsigned seed) {
  for (int i = 0; i < LEN; i++)
    memory[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static int holds(const unsigned char *memory, unsigned seed) {
  for (int i = 0; i < LEN; i++)
    if (memory[i] != (unsigned char)(i * 7 + i / 251 + seed))
      return 0;
  return 1;
}

/* The address that two processes exchange. */
struct address {
  union ibv_gid gid;
  uint32_t qpn, rkey;
  uint64_t memory;
};

/* A process that reads all of the other's memory, adds one to each byte, and writes it back. It ends without destroying
   anything. */
static void other_process(int from_parent, int to_parent) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  /* Not of whole pages, and not the beginning of a block: it stays private. */
  unsigned char *own = malloc(LEN + 8);
  struct ibv_mr *mr = ibv_reg_mr(pd, own + 8, LEN, ALL);
  CHECK(pd && cq && qp && mr && !is_shared(own + 8));
  struct address here = {.qpn = qp->qp_num}, there;
  CHECK(!ibv_query_gid(context, 1, 1, &here.gid));
  CHECK(write(to_parent, &here, sizeof here) == sizeof here);
  CHECK(read(from_parent, &there, sizeof there) == sizeof there);
  connect_to(qp, there.gid, there.qpn);
  struct ibv_sge sge = {(uintptr_t)own + 8, LEN, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {there.memory, there.rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(cq).status == IBV_WC_SUCCESS);
  for (int i = 0; i < LEN; i++)
    own[8 + i]++;
  wr.opcode = IBV_WR_RDMA_WRITE;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  CHECK(take(cq).status == IBV_WC_SUCCESS);
  _exit(0);
}

int main(void) {
  int down[2], up[2], status;
  CHECK(!pipe(down) && !pipe(up));
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child)
    other_process(down[0], up[1]);

  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = qp_of(cq);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  unsigned char *memory;
  CHECK(pd && cq && qp && !posix_memalign((void **)&memory, PAGE, LEN));
  fill(memory, 1);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr && is_shared(memory) && holds(memory, 1));
  /* A part of it needs no whole pages any more. */
  struct ibv_mr *part = ibv_reg_mr(pd, memory + 100, 200, ALL);
  CHECK(part && !ibv_dereg_mr(part));

  struct address here = {.qpn = qp->qp_num,
                         .rkey = mr->rkey,
                         .memory = (uintptr_t)memory},
                 there;
  CHECK(!ibv_query_gid(context, 1, 1, &here.gid));
  CHECK(read(up[0], &there, sizeof there) == sizeof there);
  connect_to(qp, there.gid, there.qpn);
  CHECK(write(down[1], &here, sizeof here) == sizeof here);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(holds(memory, 2));

  /* A forked child has pages of its own. */
  child = fork();
  CHECK(child >= 0);
  if (!child) {
    CHECK(holds(memory, 2) && !is_shared(memory));
    fill(memory, 9);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(is_shared(memory) && holds(memory, 2));

  /* The pages are private again when the last region goes, and shared with the next. */
  part = ibv_reg_mr(pd, memory + PAGE, PAGE, ALL);
  CHECK(part && !ibv_dereg_mr(mr) && is_shared(memory) && holds(memory, 2));
  CHECK(!ibv_dereg_mr(part) && !is_shared(memory) && holds(memory, 2));
  mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr && is_shared(memory) && holds(memory, 2) && !ibv_dereg_mr(mr));
  CHECK(holds(memory, 2));
  free(memory);

  /* Other memory at an address that was shared. */
  memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  fill(memory, 3);
  mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr && is_shared(memory));
  CHECK(mmap(memory, LEN, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
  fill(memory, 4);
  CHECK(!ibv_dereg_mr(mr) && holds(memory, 4));
  mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr && is_shared(memory) && holds(memory, 4) && !ibv_dereg_mr(mr));
  CHECK(!munmap(memory, LEN));

  /* Large blocks of malloc have pages of their own. What malloc keeps before a block stays as it is. */
  for (int kind = 0; kind < 3; kind++) {
    int blocks_len = LEN + 64;
    memory = kind == 0   ? malloc(blocks_len)
             : kind == 1 ? calloc(1, blocks_len)
                         : aligned_alloc(64, blocks_len);
    CHECK(memory && (uintptr_t)memory % PAGE);
    fill(memory, 5);
    /* The beginning of a block stays private: other threads may write to the rest. */
    mr = ibv_reg_mr(pd, memory, LEN / 2, ALL);
    CHECK(mr && !is_shared(memory) && !ibv_dereg_mr(mr));
    mr = ibv_reg_mr(pd, memory, blocks_len, ALL);
    CHECK(mr && is_shared(memory) && is_shared(memory + LEN - 1));
    part = ibv_reg_mr(pd, memory + 1, 10, ALL);
    CHECK(part && !ibv_dereg_mr(mr) && is_shared(memory));
    CHECK(!ibv_dereg_mr(part) && !is_shared(memory) && holds(memory, 5));
    memory = realloc(memory, 4 * LEN);
    CHECK(memory && holds(memory, 5));
    /* A region that begins inside the block stays private. */
    mr = ibv_reg_mr(pd, memory + 1, LEN, ALL);
    CHECK(mr && !is_shared(memory + PAGE) && !ibv_dereg_mr(mr));
    free(memory);
  }
  /* A small block lies beside others. */
  memory = malloc(1000);
  mr = ibv_reg_mr(pd, memory, 1000, ALL);
  CHECK(mr && !is_shared(memory) && !ibv_dereg_mr(mr));
  free(memory);
  /* Data that looks like the words before a block. */
  memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ((size_t *)memory)[1] = 400 * PAGE | 2;
  mr = ibv_reg_mr(pd, memory + 16, PAGE, ALL);
  CHECK(mr && !is_shared(memory) && !ibv_dereg_mr(mr));
  CHECK(!munmap(memory, 4 * PAGE));

  /* Memory that may only be read, and memory that is shared already, stay as they are. */
  memory = mmap(NULL, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mr = ibv_reg_mr(pd, memory, LEN, IBV_ACCESS_REMOTE_READ);
  CHECK(mr && !is_shared(memory) && !ibv_dereg_mr(mr));
  CHECK(!ibv_reg_mr(pd, memory, LEN, ALL) && errno == EFAULT);
  CHECK(!munmap(memory, LEN));
  memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
  mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(mr && !is_shared(memory) && !ibv_dereg_mr(mr));

  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
  CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
  puts("done");
  return 0;
}
