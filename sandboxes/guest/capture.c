/* Keeps the first bytes of a command's two outputs and counts the rest. */
#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_BYTES (1 << 20) /* a background process may go on writing for ever */

static unsigned char scratch[1 << 16];

void capture_open(struct capture *capture, int out, int err, size_t cap) {
    memset(capture, 0, sizeof *capture);
    capture->streams[0].fd = out;
    capture->streams[1].fd = err;
    capture->cap = cap;
    unblock(out);
    unblock(err);
}

static void keep(struct stream *stream, const void *bytes, size_t size) {
    if (stream->size + size > stream->room) {
        size_t room = (stream->size + size) * 2;
        unsigned char *kept = realloc(stream->kept, room);
        if (kept == NULL) return;
        stream->kept = kept;
        stream->room = room;
    }
    memcpy(stream->kept + stream->size, bytes, size);
    stream->size += size;
}

/* Take one chunk; 0 at the end of the pipe, -1 when it is empty for now. */
ssize_t capture_read(struct capture *capture, int index) {
    struct stream *stream = &capture->streams[index];
    ssize_t size = read(stream->fd, scratch, sizeof scratch);
    if (size < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    size_t room = capture->cap - stream->size;
    size_t kept = (size_t)size < room ? (size_t)size : room;
    if (kept > 0) keep(stream, scratch, kept);
    capture->truncated += (size_t)size - kept;
    return size;
}

/* Take what lies in the pipes, within a bound. */
void capture_drain(struct capture *capture) {
    for (int i = 0; i < 2; i++) {
        ssize_t taken = 0, size;
        while (taken < DRAIN_BYTES && (size = capture_read(capture, i)) > 0) taken += size;
    }
}

/* One line of the agent's own, beyond the cap. */
void capture_add(struct capture *capture, int index, const char *text) {
    keep(&capture->streams[index], text, strlen(text));
}

void capture_answer(struct capture *capture, int code, bool timed_out) {
    char numbers[3][24];
    struct field fields[6] = {{(unsigned char *)"done", 4}};
    snprintf(numbers[0], 24, "%d", code);
    snprintf(numbers[1], 24, "%d", timed_out);
    snprintf(numbers[2], 24, "%llu", (unsigned long long)capture->truncated);
    for (int i = 0; i < 3; i++) {
        fields[1 + i] = (struct field){(unsigned char *)numbers[i], strlen(numbers[i])};
    }
    for (int i = 0; i < 2; i++) {
        fields[4 + i] = (struct field){capture->streams[i].kept, capture->streams[i].size};
    }
    answer(fields, 6);
}

void capture_close(struct capture *capture) {
    for (int i = 0; i < 2; i++) free(capture->streams[i].kept);
}
