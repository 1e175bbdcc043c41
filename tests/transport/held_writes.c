/* Preloaded into a server, it makes a kill the power cut of that server's files: what is written to an append-only
 * file stays in this process until the file is synced. Compiled and used by tests/transport/power.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_FILES 1024

static struct {
  char *data;
  size_t size, room;
} held[MOST_FILES];
/* The server syncs in a thread of its own while it goes on writing. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_held(int fd) {
  char name[32], path[PATH_MAX];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t size = fd < 0 || fd >= MOST_FILES ? -1 : readlink(name, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strstr(path, ".aof") != NULL;
}

static ssize_t really_write(int fd, const void *data, size_t size) {
  return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
}

ssize_t write(int fd, const void *data, size_t size) {
  if (!is_held(fd)) return really_write(fd, data, size);
  pthread_mutex_lock(&lock);
  if (held[fd].size + size > held[fd].room) {
    held[fd].room = 2 * (held[fd].size + size);
    held[fd].data = realloc(held[fd].data, held[fd].room);
    if (held[fd].data == NULL) abort();
  }
  memcpy(held[fd].data + held[fd].size, data, size);
  held[fd].size += size;
  pthread_mutex_unlock(&lock);
  return (ssize_t)size;
}

static void let_go(int fd) {
  if (!is_held(fd)) return;
  pthread_mutex_lock(&lock);
  size_t done = 0;
  while (done < held[fd].size) {
    ssize_t size = really_write(fd, held[fd].data + done, held[fd].size - done);
    if (size <= 0) abort();
    done += (size_t)size;
  }
  held[fd].size = 0;
  pthread_mutex_unlock(&lock);
}

int fsync(int fd) {
  let_go(fd);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
  let_go(fd);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

int close(int fd) {
  let_go(fd);
  return ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
}
