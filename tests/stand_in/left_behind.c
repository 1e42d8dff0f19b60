// Preloaded into xtrain: a training process starts another one before its `main`, which keeps its
// pipes and outlives it, as a compiler of a device may. XTRAIN_TEST_BEHIND says how: `plain` ends
// when it is asked to, `stubborn` when it is killed, `session` and `chatty` have left the process
// group, and `chatty` writes.
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
