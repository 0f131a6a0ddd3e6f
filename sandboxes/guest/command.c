/* exec: run a program to its end or its timeout; what it leaves in the background lives on. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct running {
    pid_t pid;
    int in, exited;
    const unsigned char *unsent;
    size_t left;
};

/* In the child: never returns. The errno of a program that does not start goes through `failed`. */
static void start(char **argv, int in, int out, int err, int failed) {
    setsid();
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    if (is_machine) set_limits(0);
    become_user();
    execvp(argv[0], argv);
    int cause = errno;
    if (write(failed, &cause, sizeof cause) < 0) _exit(126);
    _exit(127);
}

static void feed(struct running *run) {
    if (run->left > 0) {
        ssize_t put = write(run->in, run->unsent, run->left);
        if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
        run->left = put < 0 ? 0 : run->left - (size_t)put;
        run->unsent += put < 0 ? 0 : put;
    }
    if (run->left == 0) {
        close(run->in);
        run->in = -1;
    }
}

/* Feed and read a running command until it ends; true when its time was over. */
static bool follow(struct running *run, struct capture *capture, int64_t deadline) {
    int out = capture->streams[0].fd, err = capture->streams[1].fd;
    bool ended = false, timed_out = false;
    while (!ended) {
        int wait_ms = until(deadline);
        timed_out = ended = wait_ms == 0;
        struct pollfd polled[4] = {
            {run->exited, POLLIN, 0}, {run->in, POLLOUT, 0}, {out, POLLIN, 0}, {err, POLLIN, 0}};
        if (poll(polled, 4, wait_ms) < 0) continue;
        if (polled[0].revents != 0) ended = true, timed_out = false;
        if (run->in >= 0 && polled[1].revents != 0) feed(run);
        if (polled[2].revents != 0 && capture_read(capture, 0) == 0) out = -1;
        if (polled[3].revents != 0 && capture_read(capture, 1) == 0) err = -1;
    }
    if (timed_out) kill_session(run->pid);
    return timed_out;
}

static void run_to_end(char **argv, struct running *run, int64_t timeout_ms, size_t cap) {
    int in[2], out[2], err[2], failed[2], cause = 0, status = 0;
    struct capture capture;
    bool timed_out = false;
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) ||
        pipe2(failed, O_CLOEXEC)) {
        exit(1); /* an agent without descriptors cannot serve anybody */
    }
    int64_t deadline = now_ms() + timeout_ms;
    run->pid = fork();
    cause = run->pid < 0 ? errno : 0;
    if (run->pid == 0) start(argv, in[0], out[1], err[1], failed[1]);
    close(in[0]), close(out[1]), close(err[1]), close(failed[1]);
    capture_open(&capture, out[0], err[0], cap);
    unblock(in[1]);
    run->in = in[1];
    if (run->pid > 0 && read(failed[0], &cause, sizeof cause) > 0) waitpid(run->pid, NULL, 0);
    if (cause == 0) {
        run->exited = (int)syscall(SYS_pidfd_open, run->pid, 0);
        timed_out = follow(run, &capture, deadline);
        while (waitpid(run->pid, &status, 0) < 0 && errno == EINTR) continue;
        close(run->exited);
        capture_drain(&capture);
    } else {
        char line[300];
        snprintf(line, sizeof line, "%.200s: %s\n", argv[0], strerror(cause));
        capture_add(&capture, 1, line);
    }
    capture_answer(&capture, cause != 0 ? 127 : exit_code(status), timed_out);
    capture_close(&capture);
    close(failed[0]), close(out[0]), close(err[0]);
    if (run->in >= 0) close(run->in);
}

/* exec TIMEOUT_MS CAP STDIN ARGV... */
void run_command(struct frame *frame) {
    static char *argv[FIELDS_MAX];
    int count = 0;
    for (int i = 4; i < frame->count; i++) argv[count++] = (char *)frame->fields[i].bytes;
    argv[count] = NULL;
    if (count == 0) {
        argv[0] = "";
        argv[1] = NULL;
    }
    struct field *input = &frame->fields[3];
    struct running run = {.in = -1, .unsent = input->bytes, .left = input->size};
    run_to_end(argv, &run, (int64_t)number_of(&frame->fields[1]), number_of(&frame->fields[2]));
}
