/* The files in which programs look for devices, read with the functions of libc that this library has. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ROOT "/sys/class/infiniband"
#define PORT ROOT "/headworks_0/ports/1"

static int is_file(const struct dirent *entry) { return entry->d_name[0] != 'p'; }

static void reads(int file, const char *text) {
  char buffer[64] = "";
  CHECK(file >= 0);
  CHECK(read(file, buffer, sizeof buffer - 1) == (ssize_t)strlen(text));
  CHECK(!strcmp(buffer, text) && !close(file));
}

int main(void) {
  reads(open(PORT "/state", O_RDONLY), "4: ACTIVE\n");
  reads(openat(AT_FDCWD, PORT "/pkeys/0", O_RDONLY | O_CLOEXEC), "0xffff\n");
  reads(open(ROOT "//headworks_0/./node_type", O_RDONLY), "1: CA\n");
  CHECK(open(PORT "/state", O_RDWR) < 0 && errno == EACCES);
  CHECK(open(PORT "/nothing", O_RDONLY) < 0 && errno == ENOENT);
  CHECK(open(ROOT "_mad/umad0", O_RDONLY) < 0 && errno == ENOENT);
  CHECK(close(open("/dev/infiniband/uverbs0", O_RDWR)) == 0);
  int file = open(PORT "/state", O_RDONLY);
  CHECK(fcntl(file, F_GETFD) == 0 && !close(file));
  file = open(PORT "/state", O_RDONLY | O_CLOEXEC);
  CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC && !close(file));
  CHECK(open("/dev/infiniband/rdma_cm", O_RDWR) < 0 && errno == ENOENT);

  char line[64];
  FILE *stream = fopen(PORT "/gid_attrs/types/0", "r");
  CHECK(stream && fgets(line, sizeof line, stream));
  CHECK(!strcmp(line, "RoCE v2\n") && !fclose(stream));
  CHECK(!fopen(PORT "/gid_attrs/types/0", "w") && errno == EACCES);
  CHECK(!fopen(PORT "/gid_attrs/types/0", "r+") && errno == EACCES);
  CHECK(!fopen(PORT "/gid_attrs/types/9", "r") && errno == ENOENT);

  struct stat about;
  CHECK(!stat(ROOT, &about) && S_ISDIR(about.st_mode));
  CHECK(!lstat(ROOT "/headworks_0", &about) && S_ISDIR(about.st_mode));
  CHECK(!fstatat(AT_FDCWD, PORT "/lid", &about, 0) && S_ISREG(about.st_mode));
  CHECK(!stat("/dev/infiniband/uverbs0", &about) && S_ISCHR(about.st_mode));
  CHECK(stat(ROOT "/mlx5_0", &about) && errno == ENOENT);
  ino_t number = about.st_ino;
  CHECK(!stat(PORT "/state", &about));
  number = about.st_ino;
  CHECK(!stat(PORT "/rate", &about) && about.st_ino != number);
  CHECK(open(PORT "/state", O_RDONLY | O_TRUNC) < 0 && errno == EACCES);
  CHECK(open(PORT "/state", O_RDONLY | O_CREAT | O_EXCL, 0600) < 0);
  CHECK(errno == EEXIST);
  CHECK(open(PORT "/state", O_RDONLY | O_DIRECTORY) < 0 && errno == ENOTDIR);
  file = open(PORT "/state", O_RDONLY);
  CHECK(write(file, "x", 1) < 0 && errno == EBADF && !close(file));
  CHECK(!access(PORT, F_OK) && access(ROOT "/headworks_0/device", F_OK));
  struct statx more;
  CHECK(!statx(AT_FDCWD, ROOT, 0, STATX_TYPE, &more) && S_ISDIR(more.stx_mode));
  CHECK(getxattr(PORT, "user.a", line, sizeof line) < 0 && errno == ENOTSUP);

  char path[PATH_MAX];
  CHECK(realpath(PORT, path) == path && !strcmp(path, PORT));
  char *own = realpath(ROOT, NULL);
  CHECK(own && !strcmp(own, ROOT));
  free(own);
  CHECK(readlink(ROOT "/headworks_0", path, sizeof path) < 0 && errno == EINVAL);

  DIR *directory = opendir(ROOT "/headworks_0");
  CHECK(directory && dirfd(directory) < 0);
  for (int twice = 0; twice < 2; twice++, rewinddir(directory)) {
    int count = 0, ports = 0;
    for (struct dirent *entry; (entry = readdir(directory)); count++)
      ports += !strcmp(entry->d_name, "ports");
    CHECK(count == 10 && ports == 1);
  }
  rewinddir(directory);
  CHECK(readdir(directory));
  long place = telldir(directory);
  struct dirent *entry = readdir(directory);
  char second[NAME_MAX + 1];
  CHECK(entry && strlen(strcpy(second, entry->d_name)) > 0);
  seekdir(directory, place);
  struct dirent room, *found;
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  CHECK(!readdir_r(directory, &room, &found) && found == &room);
  CHECK(!strcmp(room.d_name, second));
  errno = 0;
  while ((entry = readdir(directory)))
    ;
  CHECK(errno == 0 && !readdir_r(directory, &room, &found) && !found);
  CHECK(!closedir(directory));
  CHECK(open(ROOT, O_RDONLY | O_DIRECTORY) < 0 && errno == EACCES);
  CHECK(!opendir(PORT "/state") && errno == ENOTDIR);
  struct dirent **list;
  int count = scandir(ROOT "/headworks_0", &list, is_file, alphasort);
  CHECK(count == 7 && !strcmp(list[0]->d_name, "board_id"));
  while (count--)
    free(list[count]);
  free(list);

  /* Netlink knows real devices only. */
  CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA) < 0);
  CHECK(errno == EPROTONOSUPPORT);

  /* Everything else is the kernel's. */
  CHECK(!stat("/sys/class", &about) && !access("/proc/self", F_OK));
  directory = opendir("/proc/self/fd");
  CHECK(directory && dirfd(directory) >= 0 && readdir(directory));
  CHECK(!closedir(directory));
  char *volatile nowhere = NULL;
  CHECK(open(nowhere, O_RDONLY) < 0 && errno == EFAULT);
  CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) >= 0);
  char name[64];
  snprintf(name, sizeof name, "/tmp/headworks-files-%d", (int)getpid());
  umask(0);
  file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0640);
  CHECK(file >= 0 && !fstat(file, &about) && (about.st_mode & 0777) == 0640);
  CHECK(!close(file) && !unlink(name));
  puts("done");
  return 0;
}
