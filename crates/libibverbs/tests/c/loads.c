/* The library found by dlopen alone: this program is not linked with it.

   loads PATH… opens each path, twice; each copy opens the device, and their queue pairs send to each other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>

/* The functions of one copy. */
#define NAMES(NAME)                                                            \
  NAME(ibv_get_device_list)                                                    \
  NAME(ibv_free_device_list)                                                   \
  NAME(ibv_open_device)                                                        \
  NAME(ibv_close_device)                                                       \
  NAME(ibv_alloc_pd)                                                           \
  NAME(ibv_create_cq)                                                          \
  NAME(ibv_create_qp)                                                          \
  NAME(ibv_modify_qp)                                                          \
  NAME(ibv_query_gid)

struct copy {
#define NAME(name) __typeof__(name) *name;
  NAMES(NAME)
#undef NAME
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
};

/* The copy that the functions of check.h use. */
static struct copy *used;
#define ibv_get_device_list used->ibv_get_device_list
#define ibv_free_device_list used->ibv_free_device_list
#define ibv_open_device used->ibv_open_device
#define ibv_modify_qp used->ibv_modify_qp
#include "check.h"
#undef ibv_get_device_list
#undef ibv_free_device_list
#undef ibv_open_device
#undef ibv_modify_qp

static void *opened(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  return library;
}

static void load(struct copy *copy, const char *path) {
  void *library = opened(path);
  CHECK(opened(path) == library);
#define NAME(name)                                                             \
  copy->name = dlsym(library, #name);                                          \
  CHECK(copy->name);
  NAMES(NAME)
#undef NAME
  CHECK(dlvsym(library, "ibv_open_device", "IBVERBS_1.1") ==
        copy->ibv_open_device);
  CHECK(!dlvsym(library, "ibv_open_device", "IBVERBS_0.1"));
  CHECK(!dlclose(library));
}

static void use(struct copy *copy) {
  used = copy;
  copy->context = open_first();
  copy->pd = copy->ibv_alloc_pd(copy->context);
  copy->cq = copy->ibv_create_cq(copy->context, 16, NULL, NULL, 0);
  CHECK(copy->pd && copy->cq);
  struct ibv_qp_init_attr init = qp_of(copy->cq);
  copy->qp = copy->ibv_create_qp(copy->pd, &init);
  CHECK(copy->qp);
}

static void connect_copy(struct copy *from, struct copy *to) {
  union ibv_gid gid;
  CHECK(!to->ibv_query_gid(to->context, 1, 1, &gid));
  used = from;
  connect_to(from->qp, gid, to->qp->qp_num);
}

static void send_to(struct copy *from, struct copy *to) {
  struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
  struct ibv_send_wr wr = {.wr_id = 2,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  CHECK(!ibv_post_recv(to->qp, &receive, &bad_receive));
  CHECK(!ibv_post_send(from->qp, &wr, &bad));
  for (int i = 0; i < 1 + (from == to); i++)
    CHECK(take(from->cq).status == IBV_WC_SUCCESS);
  if (from != to)
    CHECK(take(to->cq).status == IBV_WC_SUCCESS);
}

int main(int count, char **words) {
  static struct copy copies[8];
  int has = count - 1;
  CHECK(has >= 1 && has <= 8);
  for (int i = 0; i < has; i++)
    load(&copies[i], words[1 + i]);
  for (int i = 0; i < has; i++) {
    if (i > 0)
      CHECK(copies[i].ibv_open_device != copies[0].ibv_open_device);
    /* The real library may see no devices. */
    int listed;
    struct ibv_device **list = copies[i].ibv_get_device_list(&listed);
    if (!list || !listed || strcmp(list[0]->name, "headworks_0")) {
      printf("no device: %s\n", words[1 + i]);
      continue;
    }
    use(&copies[i]);
  }
  for (int i = 0; i < has; i++) {
    struct copy *one = &copies[i], *other = &copies[(i + 1) % has];
    other = other->context ? other : one;
    if (!one->context)
      continue;
    connect_copy(one, other);
    if (one != other)
      connect_copy(other, one);
    send_to(one, other);
    send_to(other, one);
    if (one != other)
      break;
  }
  puts("done");
  return 0;
}
