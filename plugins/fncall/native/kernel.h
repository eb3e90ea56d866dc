/* Of the kernel's interface what musl's headers do not have; names, numbers and layouts of include/uapi/linux. */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdint.h>

/* sched.h */
#define CLONE_PIDFD 0x1000
struct clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* mount.h */
enum { FSOPEN_CLOEXEC = 1, FSMOUNT_CLOEXEC = 1, FSCONFIG_SET_STRING = 1, FSCONFIG_CMD_CREATE = 6 };
enum { MOVE_MOUNT_F_EMPTY_PATH = 4, MOVE_MOUNT_T_EMPTY_PATH = 0x40, OPEN_TREE_CLONE = 1, OPEN_TREE_CLOEXEC = 02000000 };
enum { MOUNT_ATTR_RDONLY = 1, MOUNT_ATTR_NOSUID = 2, MOUNT_ATTR_NODEV = 4, MOUNT_ATTR_NOEXEC = 8 };
struct mount_attr {
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};

/* openat2.h */
enum { RESOLVE_NO_SYMLINKS = 4, RESOLVE_BENEATH = 8 };
struct open_how {
    uint64_t flags, mode, resolve;
};

/* capability.h */
enum { CAP_SYS_ADMIN = 21, _LINUX_CAPABILITY_VERSION_3 = 0x20080522 };
struct __user_cap_header_struct {
    uint32_t version;
    int pid;
};
struct __user_cap_data_struct {
    uint32_t effective, permitted, inheritable;
};

/* filter.h, bpf_common.h */
enum { BPF_LD = 0, BPF_JMP = 5, BPF_RET = 6, BPF_W = 0, BPF_ABS = 0x20, BPF_K = 0, BPF_JEQ = 0x10, BPF_JGT = 0x20,
       BPF_JGE = 0x30, BPF_JSET = 0x40 };
struct sock_filter {
    uint16_t code;
    uint8_t jt, jf;
    uint32_t k;
};
struct sock_fprog {
    unsigned short len;
    struct sock_filter *filter;
};

/* seccomp.h, audit.h */
#define SECCOMP_RET_KILL_PROCESS 0x80000000U
#define SECCOMP_RET_ERRNO 0x00050000U
#define SECCOMP_RET_ALLOW 0x7fff0000U
#define SECCOMP_MODE_FILTER 2
#define AUDIT_ARCH_X86_64 0xC000003EU
#define AUDIT_ARCH_AARCH64 0xC00000B7U
struct seccomp_data {
    int nr;
    uint32_t arch;
    uint64_t instruction_pointer, args[6];
};

#endif
