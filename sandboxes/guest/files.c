/* read and write: regular files of the work folder only, whatever links lie in it. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void refuse(const char *channel, const char *reason, const char *detail) {
    say("error", channel, reason, detail, NULL);
}

void refuse_errno(const char *channel, int cause) {
    bool is_missing = cause == ENOENT || cause == ENOTDIR;
    refuse(channel, is_missing ? "not_found" : "denied", strerror(cause));
}

/* An absolute path without `.`, `..` and empty parts; relative ones start at the work folder. */
static bool normalize(const char *path, char *into) {
    char joined[2 * PATH_MAX], *part, *rest;
    if (strlen(path) >= PATH_MAX) return false;
    snprintf(joined, sizeof joined, "%s%s", path[0] == '/' ? "" : HOME "/", path);
    into[0] = 0;
    for (part = strtok_r(joined, "/", &rest); part; part = strtok_r(NULL, "/", &rest)) {
        char *last = strrchr(into, '/');
        if (strcmp(part, ".") == 0) continue;
        if (strcmp(part, "..") == 0) {
            if (last != NULL) *last = 0;
            continue;
        }
        if (strlen(into) + strlen(part) + 2 > PATH_MAX) return false;
        strcat(strcat(into, "/"), part);
    }
    return true;
}

/* The real path of a folder of which a tail may not exist yet. */
static bool real_folder(const char *folder, char *into) {
    char head[PATH_MAX], tail[PATH_MAX] = "";
    snprintf(head, sizeof head, "%s", folder[0] ? folder : "/");
    while (realpath(head, into) == NULL) {
        char rest[PATH_MAX], *last = strrchr(head, '/');
        if (errno != ENOENT || last == NULL || last == head) return false;
        snprintf(rest, sizeof rest, "%s", tail);
        if (snprintf(tail, sizeof tail, "%s%s", last, rest) >= PATH_MAX) return false;
        *last = 0;
    }
    if (strlen(into) + strlen(tail) >= PATH_MAX) return false;
    strcat(into, tail);
    return true;
}

/* Where an entry of the work folder really lies; false, with the refusal sent, for any other. */
bool inside(const char *channel, const struct field *path, char *into, bool may_be_home) {
    char plain[PATH_MAX], folder[PATH_MAX], *last;
    errno = 0;
    bool is_text = strlen((char *)path->bytes) == path->size && path->size > 0;
    if (!is_text || !normalize((char *)path->bytes, plain) || (last = strrchr(plain, '/')) == NULL) {
        refuse(channel, "denied", "not a path");
        return false;
    }
    if (may_be_home && strcmp(plain, HOME) == 0) {
        strcpy(into, HOME);
        return true;
    }
    *last = 0;
    if (!real_folder(plain, folder)) {
        refuse_errno(channel, errno ? errno : ENAMETOOLONG);
        return false;
    }
    size_t home = strlen(HOME);
    if (strncmp(folder, HOME, home) != 0 || (folder[home] != 0 && folder[home] != '/')) {
        refuse(channel, "denied", "outside of " HOME);
        return false;
    }
    if (snprintf(into, PATH_MAX, "%s/%s", folder, last + 1) < PATH_MAX) return true;
    refuse_errno(channel, ENAMETOOLONG);
    return false;
}

static bool is_regular(const char *channel, int fd, struct stat *status) {
    if (fd < 0 || fstat(fd, status) != 0) {
        refuse_errno(channel, errno);
        return false;
    }
    if (!S_ISREG(status->st_mode)) refuse(channel, "denied", "not a regular file");
    return S_ISREG(status->st_mode);
}

static void send_content(const char *channel, int fd, size_t limit) {
    struct stat status;
    if (!is_regular(channel, fd, &status)) return;
    if ((uint64_t)status.st_size > limit) {
        char detail[64];
        snprintf(detail, sizeof detail, "%lld bytes", (long long)status.st_size);
        refuse(channel, "too_large", detail);
        return;
    }
    size_t size = 0, room = (size_t)status.st_size;
    unsigned char *content = malloc(room + 1);
    ssize_t got = 1;
    while (content != NULL && size < room && (got = read(fd, content + size, room - size)) > 0) {
        size += (size_t)got;
    }
    if (content == NULL || got < 0) refuse_errno(channel, errno);
    else say_bytes("bytes", channel, content, size);
    free(content);
}

/* read CH MAX PATH */
static void read_file(struct frame *frame) {
    char path[PATH_MAX];
    const char *channel = text_of(frame, 1);
    if (frame->count != 4) {
        refuse(channel, "denied", "not a request");
    } else if (inside(channel, &frame->fields[3], path, false)) {
        int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        send_content(channel, fd, number_at(frame, 2));
        if (fd >= 0) close(fd);
    }
}

bool make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = 0;
        int failed = mkdir(path, 0755);
        *at = '/';
        if (failed && errno != EEXIST) return false;
    }
    return true;
}

static bool fill(int fd, const struct field *content) {
    size_t put = 0;
    if (ftruncate(fd, 0) != 0) return false;
    while (put < content->size) {
        ssize_t size = write(fd, content->bytes + put, content->size - put);
        if (size < 0 && errno != EINTR) return false;
        put += size < 0 ? 0 : (size_t)size;
    }
    return true;
}

static void replace(const char *channel, char *path, const struct field *content) {
    struct stat status;
    int fd = -1;
    if (make_folders(path)) {
        fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    }
    if (is_regular(channel, fd, &status)) {
        if (fill(fd, content)) say("ok", channel, NULL);
        else refuse_errno(channel, errno);
    }
    if (fd >= 0) close(fd);
}

/* write CH PATH CONTENT */
static void write_file(struct frame *frame) {
    char path[PATH_MAX];
    const char *channel = text_of(frame, 1);
    if (frame->count != 4) refuse(channel, "denied", "not a request");
    else if (inside(channel, &frame->fields[2], path, false))
        replace(channel, path, &frame->fields[3]);
}

/* Whether it was a request about files; it is answered then. */
bool serve_files(struct frame *frame, const char *kind) {
    bool is_served = true;
    act_as(GUEST_ID);
    if (strcmp(kind, "read") == 0) read_file(frame);
    else if (strcmp(kind, "write") == 0) write_file(frame);
    else is_served = serve_tree(frame, kind);
    act_as(0);
    return is_served;
}

/* place CH PATH CONTENT: a file of the platform's, which the user may read only */
void place_file(struct frame *frame) {
    char path[PATH_MAX];
    const char *channel = text_of(frame, 1);
    if (!is_machine || frame->count != 4 || !normalize(text_of(frame, 2), path)) {
        refuse(channel, "denied", "not a request");
        return;
    }
    replace(channel, path, &frame->fields[3]);
}
