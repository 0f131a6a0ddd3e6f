/* What the parts of the native guest agent share. The protocol is described in agent.py; what a
   machine's agent answers besides, in agent.c. */
#ifndef VENUS_AGENT_H
#define VENUS_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROTOCOL_TEXT "2"
#define HOME "/work"
#define GUEST_ID 1000
#define FIELDS_MAX 4096
#define UNLIMITED (1ull << 60)

/* One field of a frame; bytes are followed by a zero that is not counted, so text needs no copy. */
struct field {
    unsigned char *bytes;
    uint32_t size;
};

struct frame {
    unsigned char *body;
    struct field fields[FIELDS_MAX];
    int count;
};

/* Hard limits of everything that a request starts. */
struct limits {
    uint64_t memory, pids, disk, files;
};

extern struct limits limits;
extern bool is_machine; /* process 1 of a virtual machine, not of a namespace */

/* One output of a job. */
struct stream {
    int fd;
    bool is_open;
    uint64_t left; /* of its cap; what comes after is counted and dropped */
    uint64_t drained; /* since the job's end */
};

/* A program, or a source in the warm interpreter. */
struct job {
    char channel[24];
    pid_t pid;
    int64_t deadline;
    struct stream streams[2];
    uint64_t credit, truncated;
    int input; /* -1 when it is closed; the same as the first stream on a terminal */
    unsigned char *unsent;
    size_t unsent_size;
    int told; /* tells of its end: a pidfd, or the interpreter's results */
    int code, signal;
    bool is_evaluation, is_terminal, is_last_input, has_ended, timed_out, is_dead;
};

/* wire.c */
bool receive(struct frame *frame);
void release(struct frame *frame);
void answer(const struct field *fields, int count);
void say(const char *kind, const char *channel, ...); /* texts, ended by NULL */
void say_bytes(const char *kind, const char *channel, const void *bytes, size_t size);
void gather(bool is_on); /* frames are sent together when it ends */
uint64_t number_of(const struct field *field);
uint64_t number_at(const struct frame *frame, int index);
const char *text_of(const struct frame *frame, int index);

/* jobs.c */
struct job *job_new(const char *channel, uint64_t cap, uint64_t credit, int64_t timeout_ms);
void job_streams(struct job *job, int out, int err);
void job_line(struct job *job, const char *text);
void job_end(struct job *job);
void job_data(struct job *job, const unsigned char *bytes, size_t size);
bool jobs_serve(void);
bool jobs_own(pid_t pid);
void jobs_tell(const struct frame *frame);

/* process.c */
int64_t now_ms(void);
int until(int64_t deadline);
void kill_session(pid_t leader);
void take_status(struct job *job, int status);
void become_user(void);
void default_signals(void);
void act_as(uid_t id);
void set_limits(pid_t pid);
void unblock(int fd);

/* program.c, interpreter.c */
void start_program(struct frame *frame);
void set_size(int terminal, uint64_t rows, uint64_t columns);
void evaluate(struct frame *frame);
void evaluation_told(struct job *job);
void evaluation_stop(struct job *job);
void evaluation_over(struct job *job);
bool warm_up(void);
void interpreter_resumed(const char *entropy, char **pairs, int count);
pid_t interpreter_pid(void);

/* files.c, tree.c, machine.c */
bool serve_files(struct frame *frame, const char *kind);
void place_file(struct frame *frame);
bool make_folders(char *path);
void refuse(const char *channel, const char *reason, const char *detail);
void refuse_errno(const char *channel, int cause);
bool inside(const char *channel, const struct field *path, char *into, bool may_be_home);
bool serve_tree(struct frame *frame, const char *kind);
void boot(void);
void resume(struct frame *frame);
void set_clock(uint64_t ns);
void tell_stats(const char *channel);
void trim(void);
void power_off(void);
extern const char *python_path, *python_version, *python_folder;

#endif
