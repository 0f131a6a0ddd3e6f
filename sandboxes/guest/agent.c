/* The native guest agent: one static binary, one request at a time over fd 0, a stream.
 *
 * As /init of a virtual machine it is process 1 and makes the system first; fd 0 is a port of the
 * host then. Elsewhere it is started as `agent MEMORY PIDS DISK FILES [PYTHON VERSION FOLDER]` with a
 * stream socket. It answers as sandboxes/guest/agent.py, the reference, does; one suite of tests
 * holds both to it. A frame is a big-endian uint32 length and that many bytes: fields, each a uint32
 * length and its bytes; the first names the kind. Numbers are decimal.
 *
 *     exec TIMEOUT_MS CAP STDIN ARGV...   python TIMEOUT_MS CAP SOURCE
 *     read MAX PATH    write PATH CONTENT    shutdown
 *     -> hello PROTOCOL PYTHON | done EXIT TIMED_OUT TRUNCATED STDOUT STDERR | bytes CONTENT | ok
 *        | error REASON DETAIL
 *
 * A machine's agent answers the host's own requests too:
 *
 *     prepare_snapshot -> ok        quiet, with a warm interpreter: the host may freeze the machine
 *     resume ENTROPY TIME_NS HOSTNAME SEED MEMORY PIDS DISK FILES [NAME VALUE]... -> hello
 *     clock TIME_NS -> ok    trim -> ok    stats -> bytes    place PATH CONTENT -> ok
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

/* Collect orphans that ended, but not the interpreter: process 1 is everybody's parent. */
static void reap(void) {
    siginfo_t ended;
    while (true) {
        ended.si_pid = 0;
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
        if (ended.si_pid == interpreter_pid()) return;
        waitpid(ended.si_pid, NULL, 0);
    }
}

static void serve_machine(struct frame *frame, const char *kind) {
    if (strcmp(kind, "resume") == 0) {
        resume(frame);
    } else if (strcmp(kind, "place") == 0) {
        place_file(frame);
    } else if (strcmp(kind, "stats") == 0) {
        tell_stats();
    } else {
        if (strcmp(kind, "prepare_snapshot") == 0) warm_up();
        else if (strcmp(kind, "trim") == 0) trim();
        else if (strcmp(kind, "clock") == 0) set_clock(number_of(&frame->fields[1]));
        answer_text("ok", NULL, NULL);
    }
}

static void serve(void) {
    static struct frame frame;
    while (receive(&frame)) {
        const char *kind = text_of(&frame, 0);
        if (strcmp(kind, "shutdown") == 0) break;
        if (strcmp(kind, "exec") == 0 && frame.count > 3) run_command(&frame);
        else if (strcmp(kind, "python") == 0) run_python(&frame);
        else if (strcmp(kind, "read") == 0) read_file(&frame);
        else if (strcmp(kind, "write") == 0) write_file(&frame);
        else if (is_machine) serve_machine(&frame, kind);
        else answer_text("error", "denied", "not a request");
        release(&frame);
        reap();
    }
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
    answer_text("hello", "1", python_version);
    serve();
    if (is_machine) power_off();
    return 0;
}
