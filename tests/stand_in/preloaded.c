// Preloaded into xtrain, this makes trouble for a training process.
//
// XTRAIN_TEST_BEHIND: it starts another process before its `main`, which keeps its pipes and outlives
// it, as a device's compiler may. `plain` ends when it is asked to, `stubborn` when it is killed,
// `session` and `chatty` have left the process group, and `chatty` writes.
//
// XTRAIN_TEST_SLOW_SAVE: rank 0 takes so many seconds to write its first checkpoint.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void leave_behind(int argc, char **argv) {
    const char *kind = getenv("XTRAIN_TEST_BEHIND");
    if (!kind || argc < 2 || strcmp(argv[1], "train") != 0 || fork() != 0) return;
    if (strcmp(kind, "stubborn") == 0) signal(SIGTERM, SIG_IGN);
    if (strcmp(kind, "session") == 0 || strcmp(kind, "chatty") == 0) setsid();
    // Ten minutes, if nobody ends it.
    for (int i = 0; i < 6000; i++) {
        if (strcmp(kind, "chatty") == 0) dprintf(1, "still here\n");
        usleep(100000);
    }
    _exit(0);
}

int fsync(int file) {
    static int is_done;
    const char *seconds = getenv("XTRAIN_TEST_SLOW_SAVE"), *rank = getenv("RANK");
    char link[64], path[4096] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (seconds && rank && strcmp(rank, "0") == 0 && readlink(link, path, sizeof path - 1) > 0 && strstr(path, "checkpoint-")
        && !__atomic_exchange_n(&is_done, 1, __ATOMIC_SEQ_CST))
        sleep(atoi(seconds));
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
