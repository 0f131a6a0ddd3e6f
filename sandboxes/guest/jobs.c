/* What runs: outputs within their credit, inputs, time, ends. One round of poll serves all of it. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS_MAX 64
#define FDS_MAX (1 + 4 * JOBS_MAX)
#define CHUNK_BYTES (1 << 16)
#define DRAIN_BYTES (1 << 20) /* a background process may go on writing for ever */
#define LINE_BYTES_MAX 200

static struct job *jobs[JOBS_MAX];
static unsigned char scratch[CHUNK_BYTES];

/* A job in the table; NULL, with the refusal sent, when it is full. */
struct job *job_new(const char *channel, uint64_t cap, uint64_t credit, int64_t timeout_ms) {
    int place = 0;
    while (place < JOBS_MAX && jobs[place] != NULL) place++;
    struct job *job = place < JOBS_MAX ? calloc(1, sizeof *job) : NULL;
    if (job == NULL) {
        refuse(channel, "denied", "too much runs already");
        return NULL;
    }
    jobs[place] = job;
    snprintf(job->channel, sizeof job->channel, "%s", channel);
    job->credit = credit;
    job->deadline = now_ms() + timeout_ms;
    job->input = job->told = -1;
    for (int i = 0; i < 2; i++) job->streams[i] = (struct stream){.fd = -1, .left = cap};
    return job;
}

void job_streams(struct job *job, int out, int err) {
    const int fds[2] = {out, err};
    for (int i = 0; i < 2; i++) {
        job->streams[i].fd = fds[i];
        job->streams[i].is_open = fds[i] >= 0;
        if (fds[i] >= 0) unblock(fds[i]);
    }
}

static void job_free(struct job *job) {
    for (int i = 0; i < JOBS_MAX; i++) {
        if (jobs[i] == job) jobs[i] = NULL;
    }
    free(job->unsent);
    free(job);
}

/* One line of the agent's own, whatever the cap. */
void job_line(struct job *job, const char *text) {
    char line[LINE_BYTES_MAX + 2];
    say("err", job->channel, (snprintf(line, sizeof line, "%.*s\n", LINE_BYTES_MAX, text), line),
        NULL);
}

/* The last frame of a job, which is gone then. Its descriptors are its owner's to close. */
void job_end(struct job *job) {
    char numbers[3][24];
    snprintf(numbers[0], 24, "%d", job->code);
    snprintf(numbers[1], 24, "%d", job->signal);
    snprintf(numbers[2], 24, "%llu", (unsigned long long)job->truncated);
    say("end", job->channel, numbers[0], numbers[1], job->timed_out ? "1" : "0", numbers[2], NULL);
    job_free(job);
}

bool jobs_own(pid_t pid) {
    for (int i = 0; i < JOBS_MAX; i++) {
        if (jobs[i] != NULL && jobs[i]->pid == pid && !jobs[i]->has_ended) return true;
    }
    return false;
}

static bool may_read(const struct job *job, const struct stream *stream) {
    return stream->is_open && (job->credit > 0 || stream->left == 0);
}

/* Send one chunk; its size, 0 at the end of the pipe, -1 when it is empty for now. */
static ssize_t take(struct job *job, int index) {
    struct stream *stream = &job->streams[index];
    size_t most = stream->left > 0 && job->credit < CHUNK_BYTES ? job->credit : CHUNK_BYTES;
    ssize_t size = read(stream->fd, scratch, most);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (size <= 0) { /* also a terminal that nobody has open */
        stream->is_open = false;
        return 0;
    }
    size_t sent = (uint64_t)size < stream->left ? (size_t)size : stream->left;
    if (sent > 0) {
        stream->left -= sent;
        job->credit -= sent;
        say_bytes(index == 0 ? "out" : "err", job->channel, scratch, sent);
    }
    job->truncated += (size_t)size - sent;
    return size;
}

/* Take what a job left behind; whether that is all, or enough. Without credit it is not yet. */
static bool drain(struct job *job) {
    bool is_done = true;
    for (int i = 0; i < 2; i++) {
        struct stream *stream = &job->streams[i];
        while (may_read(job, stream) && stream->drained < DRAIN_BYTES) {
            ssize_t size = take(job, i);
            stream->drained = size <= 0 ? DRAIN_BYTES : stream->drained + (size_t)size;
        }
        is_done = is_done && (!stream->is_open || stream->drained >= DRAIN_BYTES);
    }
    return is_done;
}

static void close_input(struct job *job) {
    if (job->input >= 0 && !job->is_terminal && !job->is_evaluation) {
        close(job->input);
        job->input = -1;
    }
}

static void feed(struct job *job) {
    if (job->unsent_size > 0) {
        ssize_t put = (ssize_t)job->unsent_size;
        if (job->input >= 0) put = write(job->input, job->unsent, job->unsent_size);
        if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (put < 0) put = (ssize_t)job->unsent_size; /* nobody reads it */
        job->unsent_size -= (size_t)put;
        memmove(job->unsent, job->unsent + put, job->unsent_size);
        char size[24];
        snprintf(size, sizeof size, "%zd", put);
        if (!job->is_evaluation) say("took", job->channel, size, NULL);
    }
    if (job->is_last_input && job->unsent_size == 0) close_input(job);
}

void job_data(struct job *job, const unsigned char *bytes, size_t size) {
    unsigned char *larger = realloc(job->unsent, job->unsent_size + size + 1);
    if (larger == NULL) exit(1); /* the host counts on what it sent */
    memcpy(larger + job->unsent_size, bytes, size);
    job->unsent = larger;
    job->unsent_size += size;
    feed(job);
}

static void stop(struct job *job) {
    if (job->has_ended) return;
    if (job->is_evaluation) evaluation_stop(job);
    else kill_session(job->pid);
}

static void send_signal(struct job *job, int number) {
    pid_t front = job->pid;
    if (job->has_ended || job->is_evaluation) return;
    if (job->is_terminal && ioctl(job->input, TIOCGPGRP, &front) != 0) front = job->pid;
    if (front <= 1) front = job->pid;
    kill(-front, number);
    if (number == SIGKILL && front != job->pid) kill(-job->pid, number);
}

/* What is said to a job; one that has ended does not listen. */
void jobs_tell(const struct frame *frame) {
    const char *kind = text_of(frame, 0);
    struct job *job = NULL;
    for (int i = 0; i < JOBS_MAX && job == NULL; i++) {
        if (jobs[i] != NULL && strcmp(jobs[i]->channel, text_of(frame, 1)) == 0) job = jobs[i];
    }
    if (job == NULL) return;
    if (strcmp(kind, "credit") == 0) job->credit += number_at(frame, 2);
    else if (strcmp(kind, "stop") == 0) stop(job);
    else if (strcmp(kind, "signal") == 0) send_signal(job, (int)number_at(frame, 2));
    else if (job->is_evaluation) return;
    else if (strcmp(kind, "data") == 0 && frame->count > 2)
        job_data(job, frame->fields[2].bytes, frame->fields[2].size);
    else if (strcmp(kind, "resize") == 0 && job->is_terminal)
        set_size(job->input, number_at(frame, 2), number_at(frame, 3));
    else if (strcmp(kind, "eof") == 0) {
        job->is_last_input = true;
        feed(job);
    }
}

static int interest(const struct job *job, struct pollfd *into) {
    int count = 0;
    if (job->has_ended) return 0;
    into[count++] = (struct pollfd){job->told, POLLIN, 0};
    for (int i = 0; i < 2; i++) {
        if (may_read(job, &job->streams[i])) {
            into[count++] = (struct pollfd){job->streams[i].fd, POLLIN, 0};
        }
    }
    if (job->unsent_size > 0) into[count++] = (struct pollfd){job->input, POLLOUT, 0};
    return count;
}

static void told(struct job *job) {
    int status = 0;
    if (job->is_evaluation) {
        evaluation_told(job);
        return;
    }
    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR) continue;
    take_status(job, status);
}

static void ready(struct job *job, const struct pollfd *polled) {
    if (job->has_ended || polled->revents == 0) return;
    int index = polled->fd == job->streams[0].fd ? 0 : 1;
    if (polled->fd == job->told) told(job);
    else if (polled->events == POLLOUT) feed(job);
    else if (may_read(job, &job->streams[index])) take(job, index); /* the other took the credit */
}

static void conclude(struct job *job) {
    if (!job->has_ended || !drain(job)) return;
    if (job->is_evaluation) {
        evaluation_over(job);
        return;
    }
    close_input(job);
    close(job->told);
    for (int i = 0; i < 2; i++) {
        if (job->streams[i].fd >= 0) close(job->streams[i].fd);
    }
    job_end(job);
}

/* Wait for whatever comes first and serve the jobs; whether a request is there, which is the caller's. */
bool jobs_serve(void) {
    static struct pollfd polled[FDS_MAX];
    static struct job *owners[FDS_MAX];
    int64_t first = INT64_MAX;
    int count = 1, own;
    polled[0] = (struct pollfd){0, POLLIN, 0};
    for (int i = 0; i < JOBS_MAX; i++) {
        if (jobs[i] != NULL) conclude(jobs[i]); /* a request may have given it credit */
        if (jobs[i] == NULL) continue;
        own = interest(jobs[i], polled + count);
        for (int k = 0; k < own; k++) owners[count++] = jobs[i];
        if (!jobs[i]->has_ended && jobs[i]->deadline < first) first = jobs[i]->deadline;
    }
    if (poll(polled, (nfds_t)count, first == INT64_MAX ? -1 : until(first)) < 0) return false;
    for (int i = 1; i < count; i++) ready(owners[i], &polled[i]);
    for (int i = 0; i < JOBS_MAX; i++) {
        if (jobs[i] == NULL || jobs[i]->has_ended || jobs[i]->deadline > now_ms()) continue;
        jobs[i]->timed_out = true;
        jobs[i]->deadline = INT64_MAX;
        stop(jobs[i]);
    }
    return polled[0].revents != 0;
}
