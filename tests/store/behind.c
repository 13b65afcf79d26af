/* Preloaded into a Redis: its clock is ten seconds behind. By system calls, since Redis's allocator reads the clock. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  long done = syscall(SYS_gettimeofday, now, zone);
  now->tv_sec -= 10;
  return (int)done;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  long done = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec -= 10;
  return (int)done;
}
