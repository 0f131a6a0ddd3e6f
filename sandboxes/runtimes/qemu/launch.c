/* Starts one machine: `launch PARENT UID SHIELD PROGRAM ARGUMENTS...`.
 *
 * The program dies with its parent, gains no privileges and, where UID is not 0, runs as that uid.
 * SHIELD 1 keeps the file below its memory as it is: QEMU answers a guest that gives a page back by
 * cutting that page out of the backing file, also where it mapped the file private, and every other
 * clone of the file would read zeros there. A filter lets that system call do nothing and succeed;
 * the page's private copy is dropped all the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fail(const char *what) {
    fprintf(stderr, "launch: %s: %s\n", what, strerror(errno));
    return 1;
}

static int shield(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FALLOC_FL_PUNCH_HOLE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    uid_t uid = (uid_t)strtoul(argv[2], NULL, 10);
    if (uid != 0 && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))) {
        return fail("cannot change the uid");
    }
    /* A change of uid clears it, so it comes afterwards; a parent that died before is not missed. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return fail("cannot die with the parent");
    if (getppid() != (pid_t)strtol(argv[1], NULL, 10)) return 1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail("cannot give up privileges");
    if (strcmp(argv[3], "1") == 0 && shield() != 0) return fail("cannot shield the memory file");
    execv(argv[4], argv + 4);
    return fail(argv[4]);
}
