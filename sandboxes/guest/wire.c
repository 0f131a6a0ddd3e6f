/* Frames over fd 0: a big-endian uint32 length, then fields, each a uint32 length and its bytes. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAME_BYTES_MAX (64u << 20) /* a host that asks for more is no host of this protocol */

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

static void write_all(const unsigned char *bytes, size_t size) {
    while (size > 0) {
        ssize_t put = write(0, bytes, size);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) exit(1);
        bytes += put;
        size -= (size_t)put;
    }
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

void answer(const struct field *fields, int count) {
    uint32_t size = 0, length;
    for (int i = 0; i < count; i++) size += 4 + fields[i].size;
    length = htonl(size);
    write_all((unsigned char *)&length, 4);
    for (int i = 0; i < count; i++) {
        length = htonl(fields[i].size);
        write_all((unsigned char *)&length, 4);
        write_all(fields[i].bytes, fields[i].size);
    }
}

/* A frame of up to three texts. */
void answer_text(const char *kind, const char *first, const char *second) {
    const char *texts[3] = {kind, first, second};
    struct field fields[3];
    int count = 0;
    for (; count < 3 && texts[count] != NULL; count++) {
        fields[count] = (struct field){(unsigned char *)texts[count], strlen(texts[count])};
    }
    answer(fields, count);
}

uint64_t number_of(const struct field *field) {
    return strtoull((const char *)field->bytes, NULL, 10);
}

/* A field as text; empty when the frame has not that many. */
const char *text_of(const struct frame *frame, int index) {
    return index < frame->count ? (const char *)frame->fields[index].bytes : "";
}
