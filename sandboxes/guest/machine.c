/* Process 1 of a virtual machine: make a system of the image, and a machine of its own of a clone. */
#define _GNU_SOURCE
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PORT_NAME "venus.agent"
#define PORT_TRIES 1000 /* of 10 ms: the port appears some time after its driver */
#define ENTROPY_BYTES 32
#define PAIR_FIRST 9 /* field of `resume` where names and values of the environment begin */

static void die(const char *what) {
    fprintf(stderr, "venus agent: %s: %s\n", what, strerror(errno));
    sync();
    reboot(RB_POWER_OFF);
    exit(1);
}

static bool put_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return done;
}

static size_t get_text(const char *path, char *into, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, into, room - 1);
    if (fd >= 0) close(fd);
    into[size > 0 ? size : 0] = 0;
    return strlen(into);
}

static void attach(const char *kind, const char *target, unsigned long flags, const char *options) {
    mkdir(target, 0755);
    if (mount(kind, target, kind, flags, options) != 0) die(target);
}

static void mount_work(uint64_t size, unsigned long flags) {
    char options[96];
    snprintf(options, sizeof options, "size=%llu,mode=0755,uid=%d,gid=%d", (unsigned long long)size,
             GUEST_ID, GUEST_ID);
    if (mount("tmpfs", HOME, "tmpfs", flags | MS_NOSUID | MS_NODEV, options) != 0) die(HOME);
}

/* Drivers in the order of their needs, one file name a line. */
static void load_drivers(void) {
    static char names[4096];
    get_text("/venus/modules", names, sizeof names);
    for (char *rest, *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) {
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)) die(name);
        close(fd);
    }
}

static bool find_port(char *device, size_t room) {
    DIR *ports = opendir("/sys/class/virtio-ports");
    struct dirent *entry;
    bool found = false;
    while (ports != NULL && !found && (entry = readdir(ports)) != NULL) {
        char path[320], name[64];
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        get_text(path, name, sizeof name);
        found = strncmp(name, PORT_NAME, strlen(PORT_NAME)) == 0;
        snprintf(device, room, "/dev/%s", entry->d_name);
    }
    if (ports != NULL) closedir(ports);
    return found;
}

static void open_port(void) {
    char device[300];
    for (int i = 0; i < PORT_TRIES; i++) {
        int fd = find_port(device, sizeof device) ? open(device, O_RDWR | O_CLOEXEC) : -1;
        if (fd >= 0) {
            dup2(fd, 0);
            fcntl(0, F_SETFD, FD_CLOEXEC);
            close(fd);
            return;
        }
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    die("no port of the host");
}

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ioctl(fd, SIOCSIFFLAGS, &request);
    close(fd);
}

/* /venus/python, where the image has one: its path and its version. */
static void find_python(void) {
    static char text[256];
    if (get_text("/venus/python", text, sizeof text) == 0) return;
    char *rest;
    python_path = strtok_r(text, " \n", &rest);
    python_version = strtok_r(NULL, " \n", &rest);
    python_folder = "/venus";
}

void boot(void) {
    if (chmod("/", 0755) != 0) die("/"); /* the kernel makes it writable by everybody */
    attach("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2");
    attach("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    attach("devtmpfs", "/dev", MS_NOSUID, NULL);
    attach("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666");
    attach("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "size=16m,mode=1777");
    attach("tmpfs", "/run", MS_NOSUID | MS_NODEV, "size=1m,mode=0755");
    mkdir(HOME, 0755);
    mount_work(limits.disk, 0);
    if (mkdir(HOME "/.tmp", 0755) != 0 || chown(HOME "/.tmp", GUEST_ID, GUEST_ID) != 0) die(HOME);
    load_drivers();
    raise_loopback();
    put_text("/proc/sys/vm/panic_on_oom", "1");
    put_text("/proc/sys/kernel/dmesg_restrict", "1");
    put_text("/proc/sys/user/max_user_namespaces", "0");
    put_text("/proc/sys/fs/protected_hardlinks", "1");
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    setenv("HOME", HOME, 1);
    setenv("TMPDIR", HOME "/.tmp", 1);
    setenv("LANG", "C.UTF-8", 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    if (chdir(HOME) != 0) die(HOME);
    find_python();
    open_port();
    if (umount("/sys") != 0 || rmdir("/sys") != 0) die("/sys"); /* nothing else needs it */
    rmdir("/root"); /* of the kernel's own first root; some have none */
}

void set_clock(uint64_t ns) {
    struct timespec now = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    clock_settime(CLOCK_REALTIME, &now);
}

static void reseed(const struct field *entropy) {
    struct {
        struct rand_pool_info head;
        unsigned char bytes[ENTROPY_BYTES];
    } pool = {.head = {.entropy_count = ENTROPY_BYTES * 8, .buf_size = ENTROPY_BYTES}};
    if (entropy->size < ENTROPY_BYTES) die("too little entropy");
    memcpy(pool.head.buf, entropy->bytes, ENTROPY_BYTES);
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) != 0 || ioctl(fd, RNDRESEEDCRNG) != 0) {
        die("cannot reseed");
    }
    close(fd);
}

/* Names that programs take for the machine's own, anew: a machine id and a boot id. */
static void rename_machine(const char *hostname) {
    char id[40], plain[40], *at = plain;
    sethostname(hostname, strlen(hostname));
    get_text("/proc/sys/kernel/random/uuid", id, sizeof id);
    for (char *from = id; *from; from++) {
        if (*from != '-') *at++ = *from;
    }
    *at = 0;
    put_text("/etc/machine-id", plain);
    get_text("/proc/sys/kernel/random/uuid", id, sizeof id);
    put_text("/run/boot_id", id);
    mount("/run/boot_id", "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL);
}

/* resume ENTROPY TIME_NS HOSTNAME SEED MEMORY PIDS DISK FILES [NAME VALUE]... -> hello */
void resume(struct frame *frame) {
    static char *pairs[FIELDS_MAX];
    char seed[17];
    int count = 0;
    if (!is_machine || frame->count < PAIR_FIRST) {
        refuse("0", "denied", "not a request");
        return;
    }
    const struct field *fields = frame->fields;
    set_clock(number_of(&fields[2]));
    reseed(&fields[1]);
    rename_machine(text_of(frame, 3));
    limits = (struct limits){number_of(&fields[5]), number_of(&fields[6]), number_of(&fields[7]),
                             number_of(&fields[8])};
    mount_work(limits.disk, MS_REMOUNT);
    setenv("VENUS_SEED", text_of(frame, 4), 1);
    pairs[count++] = "VENUS_SEED";
    pairs[count++] = (char *)text_of(frame, 4);
    for (int i = PAIR_FIRST; i + 1 < frame->count; i += 2) {
        setenv(text_of(frame, i), text_of(frame, i + 1), 1);
        pairs[count++] = (char *)text_of(frame, i);
        pairs[count++] = (char *)text_of(frame, i + 1);
    }
    get_text("/proc/sys/kernel/random/uuid", seed, sizeof seed); /* 15 fresh hex digits and '-' */
    interpreter_resumed(seed, pairs, count);
    say("hello", PROTOCOL_TEXT, python_version, NULL);
}

static int count_processes(void) {
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    char path[300], line[8];
    int count = 0;
    while (processes != NULL && (entry = readdir(processes)) != NULL) {
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        /* kernel threads have no command line, zombies neither */
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') count += get_text(path, line, 8) > 0;
    }
    if (processes != NULL) closedir(processes);
    return count;
}

/* stats CH -> bytes CH "TOTAL FREE AVAILABLE PROCESSES", memory in bytes */
void tell_stats(const char *channel) {
    static char text[4096];
    unsigned long long figures[3] = {0, 0, 0};
    const char *names[3] = {"MemTotal:", "MemFree:", "MemAvailable:"};
    get_text("/proc/meminfo", text, sizeof text);
    for (int i = 0; i < 3; i++) {
        char *at = strstr(text, names[i]);
        if (at != NULL) figures[i] = strtoull(at + strlen(names[i]), NULL, 10) * 1024;
    }
    snprintf(text, sizeof text, "%llu %llu %llu %d", figures[0], figures[1], figures[2],
             count_processes());
    say("bytes", channel, text, NULL);
}

/* Give what only caches hold back to the free list. Not compacted: that would copy pages which all
   clones share to places of this clone's own. */
void trim(void) {
    sync();
    put_text("/proc/sys/vm/drop_caches", "3");
}

void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
}
