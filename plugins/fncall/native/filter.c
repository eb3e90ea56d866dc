/* The seccomp filter: an allow-list (calls.txt, by name), everything else does not exist (ENOSYS).

   Allowed numbers are compared as ranges, so that the kernel, which tries each number once to build its cache,
   is done quickly. Conditions allow, they never deny: a comparison of 64 bits cannot be passed by by setting
   bits that the kernel ignores. */
#include "fn.h"
#include "kernel.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#else
#error "no seccomp filter for this machine"
#endif

#define NAMESPACE_FLAGS 0x7E020000U /* CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} */

static int allowed[] = {
#include "calls.h" /* made from calls.txt */
};
static const int refused[] = {SYS_mount, SYS_umount2, SYS_pivot_root, SYS_unshare, SYS_bpf, SYS_ptrace,
    SYS_perf_event_open, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_chroot};
static const int families[] = {AF_UNIX, AF_INET, AF_INET6};

static struct sock_filter code[1024];
static unsigned short length;

static void emit(unsigned short op, unsigned char jt, unsigned char jf, unsigned k) {
    code[length++] = (struct sock_filter){op, jt, jf, k};
}

static void load(unsigned offset) {
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void give(unsigned what) {
    emit(BPF_RET | BPF_K, 0, 0, what);
}

static void when(int number, unsigned what) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)number);
    give(what);
}

static void conditions(void) {
    const unsigned first = offsetof(struct seccomp_data, args), many = sizeof families / sizeof *families;
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone);
    load(first);
    emit(BPF_JMP | BPF_JSET | BPF_K, 0, 1, NAMESPACE_FLAGS);
    give(SECCOMP_RET_ERRNO | EPERM);
    give(SECCOMP_RET_ALLOW);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, (unsigned char)(2 * many + 2), SYS_socket);
    load(first);
    for (unsigned i = 0; i < many; i++)
        when(families[i], SECCOMP_RET_ALLOW);
    give(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
}

static int order(const void *one, const void *other) {
    return *(const int *)one - *(const int *)other;
}

static void ranges(void) {
    const size_t count = sizeof allowed / sizeof *allowed;
    qsort(allowed, count, sizeof *allowed, order);
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && allowed[next] <= allowed[next - 1] + 1; next++)
            ;
        emit(BPF_JMP | BPF_JGT | BPF_K, 3, 0, (unsigned)allowed[next - 1]);
        emit(BPF_JMP | BPF_JGE | BPF_K, 0, 1, (unsigned)allowed[i]);
        give(SECCOMP_RET_ALLOW);
        give(SECCOMP_RET_ERRNO | ENOSYS);
    }
}

int filter(int joins_namespaces) {
    length = 0;
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, MACHINE);
    give(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(struct seccomp_data, nr));
    when(SYS_setns, joins_namespaces ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | EPERM);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        when(refused[i], SECCOMP_RET_ERRNO | EPERM);
    conditions();
    ranges();
    give(SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog all = {length, code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}
