/* Two processes, each of which the kernel started by exec: WRITE, READ and SEND between them, and the death of one.

   pair WORD… [-- WRAPPER…]: WRAPPER runs the second process. Words: `private` registers memory that stays private, `ud` sends
   datagrams, `killed` kills the second process, and `left` has it exit without destroying anything. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 16 * PAGE, HEADER = 40, FROM = 8, TO = 9 };

static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                       IBV_ACCESS_REMOTE_READ;

static int is_private, is_datagrams, is_killed, is_left;

/* What two processes tell each other. */
struct address {
  union ibv_gid gid;
  uint64_t memory;
  uint32_t qpn, rkey;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char *memory;

static double now(void) {
  struct timespec time;
  CHECK(!clock_gettime(CLOCK_MONOTONIC, &time));
  return time.tv_sec + time.tv_nsec / 1e9;
}

/* Takes a completion that must come within a time. */
static struct ibv_wc take_within(double seconds) {
  double end = now() + seconds;
  struct ibv_wc wc;
  int got;
  while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
    CHECK(now() < end);
  CHECK(got == 1);
  return wc;
}

static struct address make_end(void) {
  context = open_first();
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  CHECK(pd && cq);
  struct ibv_qp_init_attr init = qp_of(cq);
  init.qp_type = is_datagrams ? IBV_QPT_UD : IBV_QPT_RC;
  qp = ibv_create_qp(pd, &init);
  CHECK(!posix_memalign((void **)&memory, PAGE, LEN + PAGE));
  memory += is_private ? 8 : 0;
  mr = ibv_reg_mr(pd, memory, LEN, ALL);
  CHECK(qp && mr);
  struct address own = {.memory = (uintptr_t)memory,
                        .qpn = qp->qp_num,
                        .rkey = mr->rkey};
  CHECK(!ibv_query_gid(context, 1, 1, &own.gid));
  return own;
}

static void ready_for_datagrams(void) {
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7};
  CHECK(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                           IBV_QP_QKEY));
  attr.qp_state = IBV_QPS_RTR;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
  attr.qp_state = IBV_QPS_RTS;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void post_receive(void) {
  struct ibv_sge sge = {(uintptr_t)memory, LEN, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static enum ibv_wc_status request(enum ibv_wr_opcode opcode,
                                  struct address there) {
  struct ibv_sge sge = {(uintptr_t)memory, LEN, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 2,
                           .opcode = opcode,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.rdma = {there.memory, there.rkey}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  return take_within(30).status;
}

static int send_datagram(struct address there) {
  struct ibv_ah_attr attr = {.is_global = 1,
                             .port_num = 1,
                             .grh = {.dgid = there.gid, .hop_limit = 1}};
  struct ibv_ah *ah = ibv_create_ah(pd, &attr);
  CHECK(ah);
  struct ibv_sge sge = {(uintptr_t)memory, 1024, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .wr.ud = {ah, there.qpn, 7}},
                     *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  return take_within(30).status;
}

static void second_process(void) {
  struct address own = make_end(), there;
  char byte;
  memset(memory, 2, LEN);
  CHECK(write(TO, &own, sizeof own) == sizeof own);
  CHECK(read(FROM, &there, sizeof there) == sizeof there);
  if (is_datagrams)
    ready_for_datagrams();
  else
    connect_to(qp, there.gid, there.qpn);
  post_receive();
  CHECK(write(TO, "c", 1) == 1);
  /* After the requests. With datagrams: whether one was received. */
  CHECK(read(FROM, &byte, 1) == 1);
  if (is_datagrams) {
    struct ibv_wc wc;
    byte = ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS &&
           memory[HEADER] == 1 && memory[HEADER + 1023] == 1;
  } else {
    CHECK(take_within(30).status == IBV_WC_SUCCESS);
    byte = memory[0] == 3 && memory[LEN - 1] == 3;
  }
  CHECK(write(TO, &byte, 1) == 1);
  if (is_left)
    exit(0);
  /* Until it is killed, or the other process closes the pipe. */
  CHECK(read(FROM, &byte, 1) == 0);
}

static pid_t start(char **words, char **wrapper, int *from, int *to) {
  int down[2], up[2];
  char self[512], *arguments[64];
  CHECK(!pipe2(down, O_CLOEXEC) && !pipe2(up, O_CLOEXEC));
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  CHECK(length > 0);
  self[length] = 0;
  int count = 0;
  for (; *wrapper; wrapper++)
    arguments[count++] = *wrapper;
  arguments[count++] = self;
  arguments[count++] = "second";
  for (; *words; words++)
    arguments[count++] = *words;
  arguments[count] = NULL;
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    CHECK(dup2(down[0], FROM) == FROM && dup2(up[1], TO) == TO);
    execvp(arguments[0], arguments);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  *from = up[0];
  *to = down[1];
  return child;
}

int main(int count, char **words) {
  (void)count;
  char **wrapper = words + 1;
  int is_second = 0;
  for (; *wrapper && strcmp(*wrapper, "--"); wrapper++) {
    is_second |= !strcmp(*wrapper, "second");
    is_private |= !strcmp(*wrapper, "private");
    is_datagrams |= !strcmp(*wrapper, "ud");
    is_killed |= !strcmp(*wrapper, "killed");
    is_left |= !strcmp(*wrapper, "left");
  }
  if (*wrapper)
    *wrapper++ = NULL;
  if (is_second) {
    second_process();
    return 0;
  }
  struct address own = make_end(), there;
  char byte = 0;
  int from, to, status;
  pid_t child = start(words + 1, wrapper, &from, &to);
  if (read(from, &there, sizeof there) != sizeof there) {
    puts("the second process opened no device");
    CHECK(waitpid(child, &status, 0) == child);
    return 3;
  }
  if (is_datagrams)
    ready_for_datagrams();
  else
    connect_to(qp, there.gid, there.qpn);
  CHECK(write(to, &own, sizeof own) == sizeof own);
  CHECK(read(from, &byte, 1) == 1 && byte == 'c');
  memset(memory, 1, LEN);
  if (is_datagrams) {
    CHECK(send_datagram(there) == IBV_WC_SUCCESS);
  } else {
    CHECK(request(IBV_WR_RDMA_READ, there) == IBV_WC_SUCCESS);
    CHECK(memory[0] == 2 && memory[LEN - 1] == 2);
    memset(memory, 3, LEN);
    CHECK(request(IBV_WR_RDMA_WRITE, there) == IBV_WC_SUCCESS);
    CHECK(request(IBV_WR_SEND, there) == IBV_WC_SUCCESS);
  }
  CHECK(write(to, "r", 1) == 1);
  CHECK(read(from, &byte, 1) == 1);
  if (is_datagrams && !byte)
    puts("the datagram was lost");
  else
    CHECK(byte == 1);
  if (is_killed)
    CHECK(!kill(child, SIGKILL));
  else if (!is_left)
    close(to);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(is_killed ? WIFSIGNALED(status) : status == 0);
  if (!is_datagrams && (is_killed || is_left)) {
    /* The device notices the death in its own time. WRITEs until then reach the memory of the dead. */
    double began = now();
    enum ibv_wc_status ended;
    while ((ended = request(IBV_WR_RDMA_WRITE, there)) == IBV_WC_SUCCESS)
      CHECK(now() - began < 1);
    CHECK(ended == IBV_WC_RETRY_EXC_ERR && now() - began < 1);
  }
  /* Nothing is destroyed here either. */
  puts("done");
  return 0;
}
