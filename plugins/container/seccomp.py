"""The seccomp profile: an allow-list, so that a system call of a later kernel is not let in unseen.

What is not listed answers ENOSYS, on which programs fall back, as they do for clone3 (its flags lie in
memory, where a filter cannot look). Conditions are allow rules only: a plain comparison sees 64 bits while
the kernel uses 32, so a *deny* rule can be passed by setting bit 32, an allow rule cannot. Left out on
purpose: mounts and namespaces, bpf, perf_event_open, keyctl, userfaultfd, io_uring, modules, kexec, clocks,
swap, quota, file handles, fanotify, I/O ports, NUMA placement and old multiplexers.
"""

from __future__ import annotations

import errno
import platform
from typing import Any, Final

from dsec.bus.errors import MissingTool

ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

NAMESPACES: Final = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} of clone(2); CLONE_NEWTIME exists for clone3 and unshare only."""

FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Address families that may be opened; not AF_PACKET, AF_VSOCK, AF_ALG and the many old ones."""

PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, both with UNAME26, ADDR_NO_RANDOMIZE (debuggers), and the query."""

REFUSED: Final = [
    "mount",
    "umount2",
    "pivot_root",
    "unshare",
    "setns",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
]
"""Known calls for which EPERM tells programs more than ENOSYS."""

_ALLOWED: Final = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot clock_getres
clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2
fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area
getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel
io_destroy io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr
lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore
mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify mq_open
mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd mseal msync munlock munlockall
munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_getfd pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2
prlimit64 process_madvise process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64
pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages
removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area
set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid
setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd
signalfd4 socketpair splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee
tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork
vmsplice wait4 waitid write writev
"""

Rule = dict[str, Any]


def profile() -> dict[str, Any]:
    """The `linux.seccomp` object of an OCI configuration, for this machine's own instruction set only.

    Raises MissingTool on a machine that is neither x86-64 nor 64-bit ARM.
    """
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise MissingTool(f"containers have no seccomp profile for {platform.machine()} machines")
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [architecture],
        "syscalls": [
            _allow(*_ALLOWED.split()),
            _allow("clone", args=[_when(0, "SCMP_CMP_MASKED_EQ", NAMESPACES, 0)]),
            *(
                _allow("socket", args=[_when(0, "SCMP_CMP_MASKED_EQ", 0xFFFFFFFF, family)])
                for family in FAMILIES.values()
            ),
            *(_allow("personality", args=[_when(0, "SCMP_CMP_EQ", value)]) for value in PERSONALITIES),
            {"names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        ],
    }


def _allow(*names: str, args: list[Rule] | None = None) -> Rule:
    rule: Rule = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    return rule | {"args": args} if args else rule


def _when(index: int, op: str, value: int, second: int = 0) -> Rule:
    """One condition; for MASKED_EQ `value` is the mask and `second` what must be left."""
    return {"index": index, "op": op, "value": value, "valueTwo": second}
