/* Frames over fd 0: a big-endian uint32 length, then fields, each a uint32 length and its bytes. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAME_BYTES_MAX (64u << 20) /* a host that asks for more is no host of this protocol */
#define KEPT_BYTES_MAX (128 << 10) /* of the buffer, after a large frame */
#define TEXTS_MAX 8

static bool read_exactly(unsigned char *into, size_t size) {
    while (size > 0) {
        ssize_t got = read(0, into, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 && is_machine) { /* a port whose host side is not open yet reads as ended */
            nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
            continue;
        }
        if (got <= 0) return false;
        into += got;
        size -= (size_t)got;
    }
    return true;
}

static struct {
    unsigned char *bytes;
    size_t size, room;
    bool is_gathering;
} out;

static void write_all(void) {
    size_t at = 0;
    while (at < out.size) {
        ssize_t put = write(0, out.bytes + at, out.size - at);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) exit(1);
        at += (size_t)put;
    }
    out.size = 0;
    if (out.room > KEPT_BYTES_MAX) {
        free(out.bytes);
        out.bytes = NULL;
        out.room = 0;
    }
}

static void put(const void *bytes, size_t size) {
    if (out.size + size > out.room) {
        size_t room = out.size + size + 4096;
        unsigned char *larger = realloc(out.bytes, room);
        if (larger == NULL) exit(1); /* half a frame cannot be taken back */
        out.bytes = larger;
        out.room = room;
    }
    if (size > 0) memcpy(out.bytes + out.size, bytes, size);
    out.size += size;
}

static uint32_t size_at(const unsigned char *at) {
    uint32_t size;
    memcpy(&size, at, sizeof size);
    return ntohl(size);
}

/* The next request; false when the host is gone or speaks another language. */
bool receive(struct frame *frame) {
    unsigned char header[4];
    if (!read_exactly(header, sizeof header)) return false;
    uint32_t size = size_at(header), at = 0;
    frame->count = 0;
    frame->body = NULL;
    if (size > FRAME_BYTES_MAX || (frame->body = malloc((size_t)size + 1)) == NULL) return false;
    if (!read_exactly(frame->body, size)) return false;
    while (at + 4 <= size && frame->count < FIELDS_MAX) {
        uint32_t length = size_at(frame->body + at);
        if (length > size - at - 4) return false;
        frame->fields[frame->count++] = (struct field){frame->body + at + 4, length};
        at += 4 + length;
    }
    if (at != size) return false;
    for (int i = 0; i < frame->count; i++) { /* the next length was read: its place ends the text */
        frame->fields[i].bytes[frame->fields[i].size] = 0;
    }
    return frame->count > 0;
}

void release(struct frame *frame) {
    free(frame->body);
    frame->body = NULL;
}

void gather(bool is_on) {
    out.is_gathering = is_on;
    if (!is_on) write_all();
}

static void put_size(size_t size) {
    uint32_t length = htonl((uint32_t)size);
    put(&length, sizeof length);
}

void answer(const struct field *fields, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += 4 + fields[i].size;
    put_size(size);
    for (int i = 0; i < count; i++) {
        put_size(fields[i].size);
        put(fields[i].bytes, fields[i].size);
    }
    if (!out.is_gathering) write_all();
}

/* A frame of texts. */
void say(const char *kind, const char *channel, ...) {
    struct field fields[TEXTS_MAX] = {{(unsigned char *)kind, strlen(kind)}};
    int count = 1;
    va_list rest;
    va_start(rest, channel);
    for (const char *text = channel; text != NULL && count < TEXTS_MAX; count++) {
        fields[count] = (struct field){(unsigned char *)text, strlen(text)};
        text = va_arg(rest, const char *);
    }
    va_end(rest);
    answer(fields, count);
}

void say_bytes(const char *kind, const char *channel, const void *bytes, size_t size) {
    struct field fields[3] = {{(unsigned char *)kind, strlen(kind)},
                              {(unsigned char *)channel, strlen(channel)},
                              {(unsigned char *)bytes, (uint32_t)size}};
    answer(fields, 3);
}

uint64_t number_of(const struct field *field) {
    return strtoull((const char *)field->bytes, NULL, 10);
}

/* A field as a number; 0 when the frame has not that many. */
uint64_t number_at(const struct frame *frame, int index) {
    return index < frame->count ? number_of(&frame->fields[index]) : 0;
}

/* A field as text; empty when the frame has not that many. */
const char *text_of(const struct frame *frame, int index) {
    return index < frame->count ? (const char *)frame->fields[index].bytes : "";
}
