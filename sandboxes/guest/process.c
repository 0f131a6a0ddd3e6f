/* What commands and the interpreter have in common: time, limits, identity, the end. */
#define _GNU_SOURCE
#include "agent.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILL_ROUNDS 100
#define KILL_PAUSE_US 1000

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Milliseconds that poll may wait. */
int until(int64_t deadline) {
    int64_t left = deadline - now_ms();
    return left < 0 ? 0 : left > 3600 * 1000 ? 3600 * 1000 : (int)left;
}

/* Kill a process if it is of this session and lives; whether it was. */
static bool killed(pid_t pid, pid_t leader) {
    char path[32], text[512];
    if (pid <= 1 || getsid(pid) != leader) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    kill(pid, SIGKILL);
    if (size <= 0) return false;
    text[size] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' && strchr("ZX", name_end[2]) == NULL;
}

/* Kill every process of a session, also those that left the leader's process group. Returns once they
   are dead: what is killed lives until it is next scheduled, and may fork before. One that cannot die,
   in the kernel, is not waited for. */
void kill_session(pid_t leader) {
    bool is_over = false;
    for (int round = 0; round < KILL_ROUNDS && !is_over; round++) {
        if (round > 0) usleep(KILL_PAUSE_US);
        DIR *processes = opendir("/proc");
        struct dirent *entry;
        is_over = true;
        while (processes != NULL && (entry = readdir(processes)) != NULL) {
            pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : 0;
            if (killed(pid, leader)) is_over = false;
        }
        if (processes != NULL) closedir(processes);
        kill(leader, SIGKILL);
    }
}

/* How a process ended. */
void take_status(struct job *job, int status) {
    job->has_ended = true;
    job->code = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status);
    job->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* The raw system call changes this thread only; the library would not do more in a static binary
   of one thread, but says so nowhere. */
void act_as(uid_t id) {
    if (!is_machine) return;
    if (id != 0) syscall(SYS_setresgid, -1, id, -1);
    syscall(SYS_setresuid, -1, id, -1);
    if (id == 0) syscall(SYS_setresgid, -1, id, -1);
}

/* In a child: programs expect the default of each signal. The agent ignores some, and what started the
   node may have ignored others (nohup, a shell's background): those stay ignored over fork and exec. */
void default_signals(void) {
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
}

/* In a child: give up what process 1 of a machine may do. A namespace has no more to give up. */
void become_user(void) {
    if (!is_machine) return;
    for (int right = 0; prctl(PR_CAPBSET_READ, right, 0, 0, 0) >= 0; right++) {
        prctl(PR_CAPBSET_DROP, right, 0, 0, 0);
    }
    if (setgroups(0, NULL) != 0 || setresgid(GUEST_ID, GUEST_ID, GUEST_ID) != 0 ||
        setresuid(GUEST_ID, GUEST_ID, GUEST_ID) != 0) {
        _exit(126);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void set_limit(pid_t pid, int kind, uint64_t value) {
    struct rlimit both = {value, value};
    prlimit(pid, kind, &both, NULL);
}

/* Of one process and all that it will start; 0 is the caller. Nobody inside can raise them. */
void set_limits(pid_t pid) {
    set_limit(pid, RLIMIT_DATA, limits.memory);
    set_limit(pid, RLIMIT_NPROC, limits.pids);
    set_limit(pid, RLIMIT_FSIZE, limits.disk);
    set_limit(pid, RLIMIT_NOFILE, limits.files);
    set_limit(pid, RLIMIT_CORE, 0);
}

void unblock(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}
