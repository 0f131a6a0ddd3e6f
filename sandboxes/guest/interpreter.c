/* python: one warm interpreter that keeps its names; a crash or a timeout costs those, no more. */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 30000 /* half a second where the machine is emulated */

const char *python_path = "", *python_version = "", *python_folder = "";

static struct {
    pid_t pid;
    int source, result, out, err;
} warm;

pid_t interpreter_pid(void) {
    return warm.pid;
}

/* In the child: descriptors 0 to 4 are what warm.py expects. Never returns. */
static void start(const int ends[4]) {
    int moved[4];
    char script[256];
    setsid();
    default_signals();
    for (int i = 0; i < 4; i++) moved[i] = fcntl(ends[i], F_DUPFD_CLOEXEC, 10);
    const int places[4] = {3, 4, 1, 2};
    for (int i = 0; i < 4; i++) dup2(moved[i], places[i]);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, 0);
    if (is_machine) set_limits(0);
    become_user();
    snprintf(script, sizeof script, "%s/warm.pyc", python_folder);
    execl(python_path, python_path, "-I", "-S", "-X", "utf8", script, (char *)NULL);
    _exit(127);
}

static bool open_pipes(int source[2], int result[2], int out[2], int err[2]) {
    return !pipe2(source, O_CLOEXEC) && !pipe2(result, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) &&
           !pipe2(err, O_CLOEXEC);
}

static void forget(void);

/* Make the interpreter unless it lives; false when it cannot be. */
bool warm_up(void) {
    int source[2], result[2], out[2], err[2], ready;
    if (warm.pid > 0) return true;
    if (python_path[0] == 0 || !open_pipes(source, result, out, err)) return false;
    pid_t pid = fork();
    const int ends[4] = {source[0], result[1], out[1], err[1]};
    if (pid == 0) start(ends);
    for (int i = 0; i < 4; i++) close(ends[i]);
    warm.pid = pid;
    warm.source = source[1], warm.result = result[0], warm.out = out[0], warm.err = err[0];
    unblock(warm.source);
    struct pollfd polled = {warm.result, POLLIN, 0};
    if (pid > 0 && poll(&polled, 1, START_MS) > 0 && read(warm.result, &ready, 4) == 4) return true;
    if (pid > 0) {
        kill_session(pid);
        waitpid(pid, NULL, 0);
    }
    forget();
    return false;
}

static void forget(void) {
    close(warm.source), close(warm.result), close(warm.out), close(warm.err);
    warm.pid = 0;
}

/* It answered, or it is gone. */
void evaluation_told(struct job *job) {
    int32_t code;
    if (read(warm.result, &code, 4) == 4) {
        job->has_ended = true;
        job->code = (int32_t)ntohl((uint32_t)code);
    } else {
        evaluation_stop(job);
    }
}

/* The interpreter has to go. */
void evaluation_stop(struct job *job) {
    int status = 0;
    kill_session(warm.pid);
    while (waitpid(warm.pid, &status, 0) < 0 && errno == EINTR) continue;
    take_status(job, status);
    job->is_dead = true;
}

/* All that it said was sent. */
void evaluation_over(struct job *job) {
    if (job->is_dead) {
        if (!job->timed_out) job_line(job, "the interpreter ended, its names are lost");
        if (job->code == 0 && job->signal == 0) job->code = 1;
        forget();
    }
    job_end(job);
}

/* A source with its length in front; NULL without memory. */
static unsigned char *with_size(const struct field *source) {
    unsigned char *text = malloc((size_t)source->size + 4);
    uint32_t size = htonl(source->size);
    if (text == NULL) return NULL;
    memcpy(text, &size, 4);
    memcpy(text + 4, source->bytes, source->size);
    return text;
}

/* python CH TIMEOUT_MS CAP SOURCE */
void evaluate(struct frame *frame) {
    char pid[24];
    bool is_there = frame->count > 4 && warm_up();
    unsigned char *text = is_there ? with_size(&frame->fields[4]) : NULL;
    struct job *job = job_new(text_of(frame, 1), number_at(frame, 3), UNLIMITED,
                              (int64_t)number_at(frame, 2));
    if (job != NULL) {
        job->is_evaluation = true;
        snprintf(pid, sizeof pid, "%d", text != NULL ? (int)warm.pid : 0);
        say("started", job->channel, pid, NULL);
    }
    if (job != NULL && text != NULL) {
        job->pid = warm.pid;
        job->input = warm.source;
        job->told = warm.result;
        job_streams(job, warm.out, warm.err);
        job_data(job, text, (size_t)frame->fields[4].size + 4);
    } else if (job != NULL) {
        job_line(job, "there is no Python interpreter in this sandbox");
        job->code = 126;
        job_end(job);
    }
    free(text);
}

static void drop(int *fd) {
    static char scratch[4096];
    if (read(*fd, scratch, sizeof scratch) == 0) *fd = -1;
}

/* Have a source run while nothing else is there to serve; whether it came to its end. */
static bool have_run(const struct field *source) {
    unsigned char *text = with_size(source);
    size_t size = (size_t)source->size + 4, put = 0;
    int64_t deadline = now_ms() + START_MS;
    int out = warm.out, err = warm.err, wait_ms;
    bool is_done = false;
    unblock(out);
    unblock(err);
    while (text != NULL && !is_done && (wait_ms = until(deadline)) > 0) {
        struct pollfd polled[4] = {{warm.result, POLLIN, 0},
                                   {put < size ? warm.source : -1, POLLOUT, 0},
                                   {out, POLLIN, 0},
                                   {err, POLLIN, 0}};
        if (poll(polled, 4, wait_ms) < 0) continue;
        if (polled[1].revents != 0) {
            ssize_t more = write(warm.source, text + put, size - put);
            if (more < 0 && errno != EAGAIN && errno != EINTR) break;
            put += more > 0 ? (size_t)more : 0;
        }
        if (polled[2].revents != 0) drop(&out);
        if (polled[3].revents != 0) drop(&err);
        if (polled[0].revents != 0) {
            int32_t code;
            is_done = read(warm.result, &code, 4) == 4;
            if (!is_done) break;
        }
    }
    free(text);
    return is_done;
}

static char *hex_of(char *at, const char *text) {
    for (; *text != 0; text++) at += sprintf(at, "%02x", (unsigned char)*text);
    return at;
}

/* Tell the interpreter, warm since before the snapshot, that it is one of many now. */
void interpreter_resumed(const char *entropy, char **pairs, int count) {
    size_t room = 256 + 2 * strlen(entropy);
    if (warm.pid == 0) return;
    set_limits(warm.pid);
    for (int i = 0; i < count; i++) room += 2 * strlen(pairs[i]) + 4;
    char *source = malloc(room), *at = source;
    if (source == NULL) return;
    at += sprintf(at, "__import__('sys').modules['__main__'].resumed('%s'", entropy);
    for (int i = 0; i < count; i++) {
        at += sprintf(at, ",'");
        at = hex_of(at, pairs[i]);
        at += sprintf(at, "'");
    }
    at += sprintf(at, ")");
    struct field field = {(unsigned char *)source, (uint32_t)(at - source)};
    if (!have_run(&field)) {
        kill_session(warm.pid);
        waitpid(warm.pid, NULL, 0);
        forget();
    }
    free(source);
}
