/* exec: start a program on pipes or a terminal; what it leaves in the background lives on. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIELD_TIMEOUT 2
#define FIELD_ROWS 5
#define FIELD_FOLDER 7
#define FIELD_PAIRS 8

/* Our ends and the program's; equal numbers are one terminal. */
struct ends {
    int in, out, err;
    int theirs[3];
};

/* The program's own environment. Programs are looked for on the agent's path, so that stays aside. */
static char **environment_of(struct frame *frame, int pairs) {
    int count = 0;
    while (environ[count] != NULL) count++;
    char **own = calloc((size_t)count + 1, sizeof *own);
    if (own == NULL) return NULL;
    memcpy(own, environ, (size_t)count * sizeof *own);
    for (int i = 0; i < pairs; i++) {
        int at = FIELD_PAIRS + 1 + 2 * i;
        if (setenv(text_of(frame, at), text_of(frame, at + 1), 1) != 0) return NULL;
    }
    char **theirs = environ;
    environ = own;
    return theirs;
}

/* In the child: never returns. The errno of a program that does not start goes through `failed`. */
static void become(struct frame *frame, const struct ends *ends, char **argv, int failed) {
    int cause = 0;
    bool is_terminal = ends->in == ends->out;
    setsid();
    default_signals();
    if (is_terminal && ioctl(ends->theirs[0], TIOCSCTTY, 0) != 0) _exit(126);
    for (int i = 0; i < 3; i++) {
        if (dup2(ends->theirs[i], i) < 0) _exit(126);
    }
    if (is_machine) set_limits(0);
    become_user();
    char **variables = environment_of(frame, (int)number_at(frame, FIELD_PAIRS));
    if (variables != NULL) execvpe(argv[0], argv, variables);
    cause = errno;
    if (write(failed, &cause, sizeof cause) < 0) _exit(126);
    _exit(127);
}

void set_size(int terminal, uint64_t rows, uint64_t columns) {
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    ioctl(terminal, TIOCSWINSZ, &size);
}

static bool open_terminal(struct ends *ends, uint64_t rows, uint64_t columns) {
    int locked = 0, theirs = -1;
    int ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ours >= 0 && ioctl(ours, TIOCSPTLCK, &locked) == 0) {
        theirs = ioctl(ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    *ends = (struct ends){ours, ours, -1, {theirs, theirs, theirs}};
    if (theirs < 0 || (is_machine && fchown(theirs, GUEST_ID, GUEST_ID) != 0)) return false;
    set_size(ours, rows, columns);
    return true;
}

static bool open_pipes(struct ends *ends) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    bool is_open = !pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC);
    *ends = (struct ends){in[1], out[0], err[0], {in[0], out[1], err[1]}};
    return is_open;
}

static void close_theirs(const struct ends *ends) {
    for (int i = 0; i < (ends->in == ends->out ? 1 : 3); i++) {
        if (ends->theirs[i] >= 0) close(ends->theirs[i]);
    }
}

static void close_ours(const struct ends *ends) {
    const int ours[3] = {ends->in, ends->out == ends->in ? -1 : ends->out, ends->err};
    for (int i = 0; i < 3; i++) {
        if (ours[i] >= 0) close(ours[i]);
    }
}

/* The errno of a program that did not start, or 0 with its process in the job. */
static int start(struct frame *frame, struct job *job, const struct ends *ends, char **argv) {
    int failed[2], cause = 0;
    if (pipe2(failed, O_CLOEXEC)) return errno;
    job->pid = fork();
    if (job->pid < 0) cause = errno;
    if (job->pid == 0) become(frame, ends, argv, failed[1]);
    close(failed[1]);
    if (job->pid > 0 && read(failed[0], &cause, sizeof cause) > 0) waitpid(job->pid, NULL, 0);
    close(failed[0]);
    if (cause != 0) job->pid = 0;
    return cause;
}

static void run(struct frame *frame, struct job *job, const struct ends *ends, char **argv) {
    char pid[24], line[300];
    job->is_terminal = ends->in == ends->out;
    job->input = ends->in;
    unblock(ends->in);
    job_streams(job, ends->out, ends->err);
    int cause = start(frame, job, ends, argv);
    snprintf(pid, sizeof pid, "%d", (int)job->pid);
    say("started", job->channel, pid, NULL);
    if (cause == 0) {
        job->told = (int)syscall(SYS_pidfd_open, job->pid, 0);
        return;
    }
    snprintf(line, sizeof line, "%.200s: %s", argv[0], strerror(cause));
    job_line(job, line);
    close_ours(ends);
    job->code = 127;
    job_end(job);
}

/* Enter the program's folder, as its user; the errno of one that cannot be entered. */
static int enter(const char *folder) {
    act_as(GUEST_ID);
    int cause = chdir(folder[0] != 0 ? folder : HOME) != 0 ? errno : 0;
    act_as(0);
    return cause;
}

static void begin(struct frame *frame, const char *channel, char **argv) {
    struct ends ends;
    uint64_t rows = number_at(frame, FIELD_ROWS);
    bool is_open = rows > 0 ? open_terminal(&ends, rows, number_at(frame, FIELD_ROWS + 1))
                            : open_pipes(&ends);
    if (!is_open) refuse_errno(channel, EMFILE);
    struct job *job = is_open ? job_new(channel, number_at(frame, 3), number_at(frame, 4),
                                        (int64_t)number_at(frame, FIELD_TIMEOUT))
                              : NULL;
    if (job != NULL) run(frame, job, &ends, argv);
    else close_ours(&ends);
    close_theirs(&ends);
}

/* exec CH TIMEOUT_MS CAP CREDIT ROWS COLUMNS FOLDER PAIRS [NAME VALUE]... ARGV... */
void start_program(struct frame *frame) {
    static char *argv[FIELDS_MAX];
    const char *channel = text_of(frame, 1);
    uint64_t first = FIELD_PAIRS + 1 + 2 * number_at(frame, FIELD_PAIRS);
    int count = 0, cause;
    if (first >= (uint64_t)frame->count) {
        refuse(channel, "denied", "not a request");
        return;
    }
    for (int i = (int)first; i < frame->count; i++) argv[count++] = (char *)frame->fields[i].bytes;
    argv[count] = NULL;
    if ((cause = enter(text_of(frame, FIELD_FOLDER))) != 0) {
        refuse_errno(channel, cause);
        return;
    }
    begin(frame, channel, argv);
    if (chdir(HOME) != 0) exit(1);
}
