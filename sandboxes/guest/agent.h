/* What the parts of the native guest agent share. The protocol is described in agent.c. */
#ifndef VENUS_AGENT_H
#define VENUS_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROTOCOL 1
#define HOME "/work"
#define GUEST_ID 1000
#define FIELDS_MAX 1024

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

/* The first `cap` bytes of two pipes; what comes after is counted and dropped as it arrives. */
struct stream {
    int fd;
    unsigned char *kept;
    size_t size, room;
};

struct capture {
    struct stream streams[2];
    size_t cap;
    uint64_t truncated;
};

/* wire.c */
bool receive(struct frame *frame);
void release(struct frame *frame);
void answer(const struct field *fields, int count);
void answer_text(const char *kind, const char *first, const char *second);
uint64_t number_of(const struct field *field);
const char *text_of(const struct frame *frame, int index);

/* capture.c */
void capture_open(struct capture *capture, int out, int err, size_t cap);
ssize_t capture_read(struct capture *capture, int index);
void capture_drain(struct capture *capture);
void capture_add(struct capture *capture, int index, const char *text);
void capture_answer(struct capture *capture, int code, bool timed_out);
void capture_close(struct capture *capture);

/* process.c */
int64_t now_ms(void);
int until(int64_t deadline);
void kill_session(pid_t leader);
int exit_code(int status);
void become_user(void);
void set_limits(pid_t pid);
void unblock(int fd);

/* command.c, interpreter.c, files.c, machine.c */
void run_command(struct frame *frame);
void run_python(struct frame *frame);
bool warm_up(void);
void interpreter_resumed(const char *entropy, char **pairs, int count);
pid_t interpreter_pid(void);
void read_file(struct frame *frame);
void write_file(struct frame *frame);
void place_file(struct frame *frame);
bool make_folders(char *path);
void boot(void);
void resume(struct frame *frame);
void set_clock(uint64_t ns);
void tell_stats(void);
void trim(void);
void power_off(void);
extern const char *python_path, *python_version, *python_folder;

#endif
