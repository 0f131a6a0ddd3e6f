/* stat, list, mkdir, move, remove: entries of the work folder, shown as they are and never followed. */
#define _GNU_SOURCE
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOVED_ENTRIES_MAX 10000
#define DEPTH_MAX 64 /* of a folder that is removed; each level is an open descriptor */
#define LISTED_MAX 100000

static void say_entry(const char *channel, const char *name, const struct stat *status) {
    char numbers[3][32];
    const char *kind = S_ISREG(status->st_mode)   ? "file"
                       : S_ISDIR(status->st_mode) ? "folder"
                       : S_ISLNK(status->st_mode) ? "link"
                                                  : "other";
    long long ns = (long long)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
    snprintf(numbers[0], 32, "%lld", (long long)status->st_size);
    snprintf(numbers[1], 32, "%u", (unsigned)(status->st_mode & 07777));
    snprintf(numbers[2], 32, "%lld", ns);
    say("entry", channel, name, kind, numbers[0], numbers[1], numbers[2], NULL);
}

static bool is_folder(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static void stat_entry(const char *channel, const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        refuse_errno(channel, errno);
        return;
    }
    say_entry(channel, strrchr(path, '/') + 1, &status);
    say("ok", channel, "1", NULL);
}

static int by_name(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool is_name(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* So many names of a folder, to be freed; whether those are all. */
static bool names_of(DIR *folder, char **names, size_t most, size_t *count) {
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (!is_name(entry)) continue;
        if (*count == most || (names[*count] = strdup(entry->d_name)) == NULL) return false;
        (*count)++;
    }
    return true;
}

static void say_entries(const char *channel, DIR *folder, size_t most) {
    char **names = calloc(most + 1, sizeof *names);
    size_t count = 0;
    bool is_whole = names != NULL && names_of(folder, names, most, &count);
    if (count > 0) qsort(names, count, sizeof *names, by_name);
    gather(true);
    for (size_t i = 0; i < count; i++) {
        struct stat status;
        int missing = fstatat(dirfd(folder), names[i], &status, AT_SYMLINK_NOFOLLOW);
        if (!missing) say_entry(channel, names[i], &status);
        free(names[i]);
    }
    say("ok", channel, is_whole ? "1" : "0", NULL);
    gather(false);
    free(names);
}

static void list_folder(const char *channel, const char *path, uint64_t most) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        refuse_errno(channel, errno);
        return;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = S_ISDIR(status.st_mode) && fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        if (!S_ISDIR(status.st_mode)) refuse(channel, "denied", "not a folder");
        else refuse_errno(channel, errno);
        if (fd >= 0) close(fd);
        return;
    }
    say_entries(channel, folder, most < LISTED_MAX ? most : LISTED_MAX);
    closedir(folder);
}

static void make_folder(const char *channel, char *path) {
    if (!make_folders(path)) refuse_errno(channel, errno);
    else if (mkdir(path, 0755) == 0) say("ok", channel, "1", NULL);
    else if (errno == EEXIST && is_folder(path)) say("ok", channel, "0", NULL);
    else refuse_errno(channel, errno);
}

static void move_entry(const char *channel, const char *source, char *target) {
    struct stat status;
    if (lstat(source, &status) != 0 || !make_folders(target) || rename(source, target) != 0) {
        refuse_errno(channel, errno);
    } else {
        say("ok", channel, NULL);
    }
}

/* An entry that is a folder, open; NULL, with errno 0 for any other entry. */
static DIR *open_folder(int parent, const char *name) {
    struct stat status;
    if (fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return NULL;
    errno = 0;
    if (!S_ISDIR(status.st_mode)) return NULL;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (folder == NULL && fd >= 0) close(fd);
    return folder;
}

/* Count an entry and all below against `left`; false with errno, E2BIG when that is too much. */
static bool count(int parent, const char *name, int depth, int *left) {
    DIR *folder = open_folder(parent, name);
    struct dirent *entry;
    bool is_fine = --*left >= 0;
    if (folder == NULL && errno != 0) return false;
    if (folder != NULL && depth == DEPTH_MAX) is_fine = false;
    if (!is_fine) errno = E2BIG;
    while (is_fine && folder != NULL && (entry = readdir(folder)) != NULL) {
        is_fine = !is_name(entry) || count(dirfd(folder), entry->d_name, depth + 1, left);
    }
    int cause = errno;
    if (folder != NULL) closedir(folder);
    errno = cause;
    return is_fine;
}

static bool remove_below(int parent, const char *name) {
    DIR *folder = open_folder(parent, name);
    struct dirent *entry;
    bool is_fine = true;
    if (folder == NULL) return errno == 0 && unlinkat(parent, name, 0) == 0;
    while (is_fine && (entry = readdir(folder)) != NULL) {
        is_fine = !is_name(entry) || remove_below(dirfd(folder), entry->d_name);
    }
    int cause = errno;
    closedir(folder);
    errno = cause;
    return is_fine && unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

static void remove_entry(const char *channel, char *path) {
    int left = REMOVED_ENTRIES_MAX;
    char *name = strrchr(path, '/') + 1;
    name[-1] = 0;
    int parent = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parent >= 0 && count(parent, name, 0, &left) && remove_below(parent, name)) {
        say("ok", channel, NULL);
    } else if (errno == E2BIG) {
        refuse(channel, "too_large", "too many entries or levels to remove at once");
    } else {
        refuse_errno(channel, errno);
    }
    if (parent >= 0) close(parent);
}

/* Whether it was one of these requests; it is answered then. */
bool serve_tree(struct frame *frame, const char *kind) {
    const char *kinds[] = {"stat", "list", "mkdir", "move", "remove"}, *channel = text_of(frame, 1);
    char path[PATH_MAX], target[PATH_MAX];
    int which = 0, paths = 2;
    while (which < 5 && strcmp(kind, kinds[which]) != 0) which++;
    if (which == 5) return false;
    if (which == 1) paths = 3; /* after the limit */
    if (frame->count != (which == 1 || which == 3 ? 4 : 3)) {
        refuse(channel, "denied", "not a request");
        return true;
    }
    if (!inside(channel, &frame->fields[paths], path, which < 3)) return true;
    if (which == 0) stat_entry(channel, path);
    else if (which == 1) list_folder(channel, path, number_at(frame, 2));
    else if (which == 2) make_folder(channel, path);
    else if (which == 4) remove_entry(channel, path);
    else if (inside(channel, &frame->fields[3], target, false)) move_entry(channel, path, target);
    return true;
}
