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

static void end(void) {
    kill_session(warm.pid);
    close(warm.source), close(warm.result), close(warm.out), close(warm.err);
}

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
        end();
        waitpid(pid, NULL, 0);
    }
    warm.pid = 0;
    return false;
}

/* The interpreter is gone or has to go: its code, and the line that says so. */
static void bury(struct capture *capture, bool timed_out) {
    int status = 0;
    kill_session(warm.pid);
    while (waitpid(warm.pid, &status, 0) < 0 && errno == EINTR) continue;
    capture_drain(capture);
    if (!timed_out) capture_add(capture, 1, "the interpreter ended, its names are lost\n");
    int code = exit_code(status);
    capture_answer(capture, code != 0 ? code : 1, timed_out);
    close(warm.source), close(warm.result), close(warm.out), close(warm.err);
    warm.pid = 0;
}

static void send_some(const unsigned char **unsent, size_t *left) {
    ssize_t put = write(warm.source, *unsent, *left);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    *left = put < 0 ? 0 : *left - (size_t)put;
    *unsent += put < 0 ? 0 : put;
}

/* Send a source and read until its code arrives; true with the code, false when it has to go. */
static bool converse(struct field text, struct capture *capture, int64_t deadline, int32_t *code,
                     bool *timed_out) {
    int out = warm.out, err = warm.err;
    while (true) {
        int wait_ms = until(deadline);
        *timed_out = wait_ms == 0;
        if (*timed_out) return false;
        if (text.size > 0) {
            const unsigned char *unsent = text.bytes;
            size_t left = text.size;
            send_some(&unsent, &left);
            text = (struct field){(unsigned char *)unsent, (uint32_t)left};
        }
        struct pollfd polled[4] = {{warm.result, POLLIN, 0},
                                   {text.size > 0 ? warm.source : -1, POLLOUT, 0},
                                   {out, POLLIN, 0},
                                   {err, POLLIN, 0}};
        if (poll(polled, 4, wait_ms) < 0) continue;
        if (polled[0].revents != 0) return read(warm.result, code, 4) == 4;
        if (polled[2].revents != 0 && capture_read(capture, 0) == 0) out = -1;
        if (polled[3].revents != 0 && capture_read(capture, 1) == 0) err = -1;
    }
}

static bool evaluate(struct field source, struct capture *capture, int64_t timeout_ms,
                     int32_t *code, bool *timed_out) {
    unsigned char *text = malloc((size_t)source.size + 4);
    uint32_t size = htonl(source.size);
    if (text == NULL) return false;
    memcpy(text, &size, 4);
    memcpy(text + 4, source.bytes, source.size);
    bool lives = converse((struct field){text, source.size + 4}, capture, now_ms() + timeout_ms,
                          code, timed_out);
    free(text);
    return lives;
}

/* python TIMEOUT_MS CAP SOURCE */
void run_python(struct frame *frame) {
    struct capture capture;
    bool timed_out = false;
    int32_t code = 0;
    if (frame->count < 4 || !warm_up()) {
        capture_open(&capture, -1, -1, 0);
        capture_add(&capture, 1, "there is no Python interpreter in this sandbox\n");
        capture_answer(&capture, 126, false);
        capture_close(&capture);
        return;
    }
    capture_open(&capture, warm.out, warm.err, number_of(&frame->fields[2]));
    int64_t timeout_ms = (int64_t)number_of(&frame->fields[1]);
    if (evaluate(frame->fields[3], &capture, timeout_ms, &code, &timed_out)) {
        capture_drain(&capture);
        capture_answer(&capture, (int32_t)ntohl((uint32_t)code), false);
    } else {
        bury(&capture, timed_out);
    }
    capture_close(&capture);
}

static char *hex_of(char *at, const char *text) {
    for (; *text != 0; text++) at += sprintf(at, "%02x", (unsigned char)*text);
    return at;
}

/* Tell the interpreter, warm since before the snapshot, that it is one of many now. */
void interpreter_resumed(const char *entropy, char **pairs, int count) {
    size_t room = 256 + 2 * strlen(entropy);
    struct capture capture;
    bool timed_out;
    int32_t code;
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
    capture_open(&capture, warm.out, warm.err, 0);
    struct field field = {(unsigned char *)source, (uint32_t)(at - source)};
    if (!evaluate(field, &capture, START_MS, &code, &timed_out)) {
        end();
        waitpid(warm.pid, NULL, 0);
        warm.pid = 0;
    }
    capture_close(&capture);
    free(source);
}
