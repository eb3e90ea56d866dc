from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st

from dsec.plugins.container import oci, seccomp

DANGEROUS = """
mount umount2 pivot_root unshare setns clone3 bpf perf_event_open keyctl add_key request_key userfaultfd
io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load init_module finit_module
delete_module reboot swapon swapoff open_by_handle_at fanotify_init fsopen fsmount fsconfig move_mount
open_tree mount_setattr quotactl acct settimeofday clock_settime adjtimex iopl ioperm syslog
lookup_dcookie nfsservctl uselib sethostname setdomainname move_pages mbind kcmp
"""


def rendered(uid_base: int = 1_000_000, nofile: int = 256) -> dict[str, dict[str, object]]:
    config = oci.render(Path("/root-fs"), uid_base, "/proc/7/fd/9", "/dsec/x", nofile, 0, seccomp.profile())
    loaded: dict[str, dict[str, object]] = orjson.loads(config)
    return loaded


@given(st.integers(65_536, 2**31), st.integers(16, 1 << 20))
def test_no_id_of_the_host_is_inside(uid_base: int, nofile: int) -> None:
    linux = rendered(uid_base, nofile)["linux"]
    expected = [{"containerID": 0, "hostID": uid_base, "size": 65_536}]
    assert linux["uidMappings"] == linux["gidMappings"] == expected


def test_every_kind_of_namespace_is_new() -> None:
    assert sorted(one["type"] for one in rendered()["linux"]["namespaces"]) == [  # type: ignore[attr-defined]  # JSON
        "cgroup", "ipc", "mount", "network", "pid", "user", "uts"
    ]  # fmt: skip


def test_no_dangerous_call_is_on_the_allow_list() -> None:
    profile = seccomp.profile()
    allowed = {
        name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]
    }
    assert not allowed & set(DANGEROUS.split())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"


def test_a_condition_always_allows_and_never_denies() -> None:
    for rule in seccomp.profile()["syscalls"]:
        assert "args" not in rule or rule["action"] == "SCMP_ACT_ALLOW"


def test_the_configuration_fits_into_one_pipe() -> None:
    assert len(orjson.dumps(rendered())) < 65_536
