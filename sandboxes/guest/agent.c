/* The native guest agent: one static binary, one loop over fd 0, a stream, and all that runs.
 *
 * As /init of a virtual machine it is process 1 and makes the system first; fd 0 is a port of the
 * host then. Elsewhere it is started as `agent MEMORY PIDS DISK FILES [PYTHON VERSION FOLDER]` with a
 * stream socket. It answers as sandboxes/guest/agent.py, the reference, which describes the protocol;
 * one suite of tests holds both to it.
 *
 * A machine's agent answers the host's own requests too:
 *
 *     prepare_snapshot CH -> ok CH     quiet, with a warm interpreter: the host may freeze the machine
 *     resume ENTROPY TIME_NS HOSTNAME SEED MEMORY PIDS DISK FILES [NAME VALUE]... -> hello
 *     clock CH TIME_NS -> ok CH   trim CH -> ok CH   stats CH -> bytes CH   place CH PATH CONTENT -> ok CH
 *
 * Nothing in here is a boundary: the host treats every byte as hostile.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct limits limits = {1ull << 40, 4096, 64 << 20, 256}; /* of a machine before its first resume */
bool is_machine;

/* Collect orphans that ended, but nothing of ours: process 1 is everybody's parent. */
static void reap(void) {
    siginfo_t ended;
    while (true) {
        ended.si_pid = 0;
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
        if (ended.si_pid == interpreter_pid() || jobs_own(ended.si_pid)) return;
        waitpid(ended.si_pid, NULL, 0);
    }
}

static void serve_machine(struct frame *frame, const char *kind) {
    const char *channel = text_of(frame, 1);
    if (strcmp(kind, "resume") == 0) {
        resume(frame);
    } else if (strcmp(kind, "place") == 0) {
        place_file(frame);
    } else if (strcmp(kind, "stats") == 0) {
        tell_stats(channel);
    } else {
        if (strcmp(kind, "prepare_snapshot") == 0) warm_up();
        else if (strcmp(kind, "trim") == 0) trim();
        else if (strcmp(kind, "clock") == 0) set_clock(number_at(frame, 2));
        say("ok", channel, NULL);
    }
}

static bool is_told(const char *kind) {
    const char *kinds[] = {"data", "eof", "signal", "resize", "credit", "stop"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kind, kinds[i]) == 0) return true;
    }
    return false;
}

/* Read one request and begin or answer it; false when there is no more. */
static bool take_request(void) {
    static struct frame frame;
    if (!receive(&frame)) return false;
    const char *kind = text_of(&frame, 0);
    bool is_wanted = strcmp(kind, "shutdown") != 0;
    if (!is_wanted) ;
    else if (is_told(kind)) jobs_tell(&frame);
    else if (strcmp(kind, "exec") == 0) start_program(&frame);
    else if (strcmp(kind, "python") == 0) evaluate(&frame);
    else if (serve_files(&frame, kind)) ;
    else if (is_machine) serve_machine(&frame, kind);
    else refuse(text_of(&frame, 1), "denied", "not a request");
    release(&frame);
    return is_wanted;
}

static void serve(void) {
    do {
        while (!jobs_serve()) reap();
    } while (take_request());
}

static void take_arguments(int argc, char **argv) {
    uint64_t *places[4] = {&limits.memory, &limits.pids, &limits.disk, &limits.files};
    for (int i = 0; i < 4 && i + 1 < argc; i++) *places[i] = strtoull(argv[i + 1], NULL, 10);
    if (argc > 7) {
        python_path = argv[5];
        python_version = argv[6];
        python_folder = argv[7];
    }
    syscall(SYS_close_range, 3, ~0u, 0);
    set_limits(0);
    mkdir(HOME "/.tmp", 0755);
}

int main(int argc, char **argv) {
    is_machine = getpid() == 1 && strcmp(argv[0], "/init") == 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (is_machine) boot();
    else take_arguments(argc, argv);
    say("hello", PROTOCOL_TEXT, python_version, NULL);
    serve();
    if (is_machine) power_off();
    return 0;
}
