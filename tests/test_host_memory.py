"""What a host's memory holds: recorded file systems of hosts and containers, and this machine's own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from poolplan.errors import InvalidOptionError, MemoryQueryError
from poolplan.memory.host import HostMemory

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNLIMITED_V1 = 9_223_372_036_854_771_712  # what Linux 6.18 on x86-64 answers
V2_MOUNT = "35 24 0:30 {} /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"

MEMINFO = """\
MemTotal:       67108864 kB
MemFree:         8388608 kB
MemAvailable:   52428800 kB
Buffers:           53084 kB
Cached:         44040192 kB
HugePages_Total:       0
HugePages_Free:        0
HugePages_Rsvd:        0
HugePages_Surp:        0
Hugepagesize:       2048 kB
Hugetlb:               0 kB
"""
STATUS = """\
Name:\tpython
Groups:\t
VmLck:\t       0 kB
VmRSS:\t    9984 kB
CapEff:\t00000000a80425fb
"""
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max open files            20000                20000                files     
Max locked memory         8388608              unlimited            bytes     
Max address space         unlimited            unlimited            bytes     
"""  # noqa: W291


def system(root: Path, *trees: dict[str, str], **process: str) -> Path:
    """A system of 64 GiB with 50 GiB available and no cgroups, but for `trees` and the files of the process."""
    files = {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, "proc/self/limits": LIMITS}
    files["proc/self/mountinfo"] = "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    for tree in (*trees, {f"proc/self/{name}": text for name, text in process.items()}):
        files |= tree
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def v2(
    directory: str, limit: object, used: int, *, files: int = 0, high: object = "max", **more: str
) -> dict[str, str]:
    """A cgroup of version 2 under /sys/fs/cgroup that uses `used` bytes, `files` of them file pages, 3/4 active."""
    contents = {
        "memory.max": f"{limit}\n",
        "memory.high": f"{high}\n",
        "memory.min": "0\n",
        "memory.current": f"{used}\n",
        "memory.stat": (
            f"anon {used - files}\nfile {files}\nshmem 0\ninactive_anon {used - files}\nactive_anon 0\n"
            f"inactive_file {files // 4}\nactive_file {files // 4 * 3}\nunevictable 0\n"
        ),
    }
    contents |= {name.replace("_", "."): text for name, text in more.items()}
    return {f"sys/fs/cgroup/{directory}/{name}": text for name, text in contents.items()}


def v1(directory: str, limit: int, used: int, *, files: int = 0) -> dict[str, str]:
    """A cgroup of version 1 under /sys/fs/cgroup/memory. Its own pages are none: all are its descendants'."""
    contents = {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": (
            f"cache 0\nactive_file 0\ninactive_file 0\nhierarchical_memory_limit {limit}\n"
            f"total_cache {files}\ntotal_inactive_file {files // 4}\ntotal_active_file {files // 4 * 3}\n"
        ),
    }
    return {f"sys/fs/cgroup/memory/{directory}/{name}": text for name, text in contents.items()}


def cgroup(host: HostMemory) -> tuple[int | None, str | None, int | None, int | None]:
    return host.cgroup_version, host.cgroup_path, host.cgroup_limit_bytes, host.cgroup_headroom_bytes


# The system


def test_the_system_has_what_is_available_and_not_what_is_free(tmp_path: Path) -> None:
    """vllm-project/vllm#48140: 121 GiB, 40 of weights in the page cache; by MemFree the start was refused."""
    meminfo = f"MemTotal: {121 << 20} kB\nMemFree: {60 << 20} kB\nMemAvailable: {100 << 20} kB\n"
    host = HostMemory.query(system(tmp_path, {"proc/meminfo": meminfo}))
    assert (host.total_bytes, host.available_bytes, host.headroom_bytes) == (121 * GIB, 100 * GIB, 100 * GIB)
    assert host.budget_bytes() == 90 * GIB


def test_no_cgroups_leave_the_system_alone(tmp_path: Path) -> None:
    host = HostMemory.query(system(tmp_path))
    assert cgroup(host) == (None, None, None, None)
    assert host.headroom_bytes == 50 * GIB
    assert host.source == "system: 53,687,091,200 bytes available of 68,719,476,736"


def test_memory_available_is_not_guessed(tmp_path: Path) -> None:
    """Kernels before 3.14 do not say it."""
    root = system(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\nMemFree: 512 kB\n"})
    with pytest.raises(MemoryQueryError, match=r"proc/meminfo has no MemAvailable; pass the bytes of the host pools"):
        HostMemory.query(root)


def test_a_system_without_proc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemoryQueryError, match=r"proc/meminfo'; pass the bytes of the host pools yourself"):
        HostMemory.query(tmp_path)


def test_another_process_is_another_group(tmp_path: Path) -> None:
    root = system(tmp_path, v2("a", 8 * GIB, GIB), cgroup="0::/\n", mountinfo=V2_MOUNT.format("/"))
    for name, text in {"status": STATUS, "limits": LIMITS, "cgroup": "0::/a\n"}.items():
        (root / "proc/17").mkdir(exist_ok=True)
        (root / "proc/17" / name).write_text(text, encoding="utf-8")
    (root / "proc/17/mountinfo").write_text(V2_MOUNT.format("/"), encoding="utf-8")
    assert HostMemory.query(root).cgroup_limit_bytes is None
    assert HostMemory.query(root, 17).cgroup_headroom_bytes == 7 * GIB


# Huge and locked pages


def test_huge_pages_are_counted_apart(tmp_path: Path) -> None:
    """Of 4,096 pages of 2 MiB 1,000 are free, and 100 of these are promised to somebody."""
    meminfo = MEMINFO.replace("HugePages_Total:       0", "HugePages_Total:    4096")
    meminfo = meminfo.replace("HugePages_Free:        0", "HugePages_Free:     1000")
    meminfo = meminfo.replace("HugePages_Rsvd:        0", "HugePages_Rsvd:      100")
    host = HostMemory.query(system(tmp_path, {"proc/meminfo": meminfo}))
    assert (host.huge_page_bytes, host.free_huge_pages) == (2 * MIB, 900)
    assert host.headroom_bytes == 50 * GIB
    assert host.huge_page_budget_bytes() == 1800 * MIB
    assert host.huge_page_budget_bytes(ranks_on_host=8) == 112 * 2 * MIB  # 900 / 8 = 112.5


def test_a_kernel_without_huge_pages_has_none(tmp_path: Path) -> None:
    meminfo = "".join(line for line in MEMINFO.splitlines(keepends=True) if not line.startswith("Huge"))
    assert HostMemory.query(system(tmp_path, {"proc/meminfo": meminfo})).huge_page_budget_bytes() == 0


def test_locked_pools_stay_below_the_limit_of_the_process(tmp_path: Path) -> None:
    """The limit of 8 MiB is the process's own, so that 4 ranks have it each; 3 MiB of it are in use."""
    status = STATUS.replace("VmLck:\t       0 kB", "VmLck:\t    3072 kB")
    host = HostMemory.query(system(tmp_path, status=status))
    assert (host.locked_limit_bytes, host.locked_bytes) == (8 * MIB, 3 * MIB)
    assert host.budget_bytes(ranks_on_host=4, locked=True) == 5 * MIB
    assert host.budget_bytes(ranks_on_host=4) == 10 * GIB  # (50 - 10) / 4


def test_more_locked_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    """A limit can be lowered below what is locked."""
    status = STATUS.replace("VmLck:\t       0 kB", "VmLck:\t    9000 kB")
    assert HostMemory.query(system(tmp_path, status=status)).budget_bytes(locked=True) == 0


@pytest.mark.parametrize(
    "process",
    [
        pytest.param({"limits": LIMITS.replace("8388608  ", "unlimited")}, id="unlimited"),
        # Bit 14 of the capabilities is CAP_IPC_LOCK; those in STATUS are docker's, which leave it out.
        pytest.param({"status": STATUS.replace("a80425fb", "a80465fb")}, id="CAP_IPC_LOCK"),
    ],
)
def test_locked_pools_without_a_limit_have_the_budget(tmp_path: Path, process: dict[str, str]) -> None:
    host = HostMemory.query(system(tmp_path, **process))
    assert host.locked_limit_bytes is None
    assert host.budget_bytes(locked=True) == 40 * GIB


# Cgroups


def test_a_limit_of_v2_leaves_what_is_not_used(tmp_path: Path) -> None:
    """Of 6 GiB in use 4 are file pages, which the kernel drops before it kills."""
    tree = v2("app", 16 * GIB, 6 * GIB, files=4 * GIB)
    host = HostMemory.query(system(tmp_path, tree, cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/")))
    assert cgroup(host) == (2, "/app", 16 * GIB, 14 * GIB)
    assert host.headroom_bytes == 14 * GIB
    assert host.source == "cgroup v2 /app: limit 17,179,869,184 bytes, 15,032,385,536 left"


def test_the_group_that_leaves_least_binds(tmp_path: Path) -> None:
    """The pod may have 20 GiB, and its other container has 17 of them; the own limit of 8 leaves 6."""
    pod = v2("kubepods/pod1", 20 * GIB, 19 * GIB)
    own = v2("kubepods/pod1/a", 8 * GIB, 2 * GIB)
    other = v2("kubepods/pod1/b", "max", 17 * GIB)
    top = v2("kubepods", "max", 30 * GIB)
    root = system(tmp_path, pod, own, other, top, cgroup="0::/kubepods/pod1/a\n", mountinfo=V2_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (2, "/kubepods/pod1", 20 * GIB, GIB)


def test_memory_high_binds_below_memory_max(tmp_path: Path) -> None:
    tree = v2("app", 16 * GIB, 2 * GIB, high=12 * GIB)
    root = system(tmp_path, tree, cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (2, "/app", 12 * GIB, 10 * GIB)


def test_no_limit_anywhere_is_none(tmp_path: Path) -> None:
    tree = v2("app", "max", 2 * GIB)
    root = system(tmp_path, tree, cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (None, None, None, None)


def test_a_group_without_the_memory_controller_has_its_parents_limit(tmp_path: Path) -> None:
    inner = {"sys/fs/cgroup/app/inner/cgroup.procs": "1\n"}
    root = system(tmp_path, v2("app", 4 * GIB, GIB), inner, cgroup="0::/app/inner\n", mountinfo=V2_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (2, "/app", 4 * GIB, 3 * GIB)


def test_page_cache_that_memory_min_protects_is_not_reclaimable(tmp_path: Path) -> None:
    """Of 4 GiB of file pages under the limit children are promised 3; what the group itself is promised is not kept
    from its own limit. Kubernetes sets memory.min to a pod's request."""
    pod = v2("pod", 10 * GIB, 6 * GIB, files=4 * GIB, memory_min=f"{5 * GIB}\n")
    children = (v2("pod/a", "max", GIB, memory_min=f"{2 * GIB}\n"), v2("pod/b", "max", GIB, memory_min=f"{GIB}\n"))
    root = system(tmp_path, pod, *children, cgroup="0::/pod/a\n", mountinfo=V2_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (2, "/pod", 10 * GIB, (10 - 6 + 1) * GIB)
    (root / "sys/fs/cgroup/pod/b/memory.min").write_text("max\n", encoding="utf-8")
    assert HostMemory.query(root).cgroup_headroom_bytes == 4 * GIB


def test_a_group_above_its_limit_leaves_nothing(tmp_path: Path) -> None:
    """Usage can exceed memory.high, and memory.max where it was lowered."""
    tree = v2("app", 16 * GIB, 13 * GIB, high=12 * GIB)
    host = HostMemory.query(system(tmp_path, tree, cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/")))
    assert (host.headroom_bytes, host.budget_bytes(reserve_bytes=0)) == (0, 0)


@pytest.mark.parametrize(
    ("own", "top", "directory", "named"),
    [
        pytest.param("/", "/", ".", "/", id="a namespace"),
        pytest.param("/", "/kubepods/c", ".", "/kubepods/c", id="a namespace, mounted from outside"),
        pytest.param("/sub", "/kubepods/c", "sub", "/kubepods/c/sub", id="a namespace with a group of its own"),
        pytest.param("/kubepods/c", "/kubepods/c", ".", "/kubepods/c", id="a bind mount"),
        pytest.param("/kubepods/c/sub", "/kubepods/c", "sub", "/kubepods/c/sub", id="a group inside a bind mount"),
        pytest.param("/outer/kubepods/c", "/kubepods/c", ".", "/kubepods/c", id="named from another host's root"),
        pytest.param("/../c", "/..", "c", "/../c", id="outside of the namespace, and mounted"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_limit(
    tmp_path: Path, own: str, top: str, directory: str, named: str, version: int
) -> None:
    make, line, mount = (v1, "4:memory:", V1_MOUNT) if version == 1 else (v2, "0::", V2_MOUNT)
    tree = make(directory, 8 * GIB, 3 * GIB, files=GIB)
    root = system(tmp_path, tree, cgroup=f"{line}{own}\n", mountinfo=mount.format(top))
    assert cgroup(HostMemory.query(root)) == (version, named, 8 * GIB, 6 * GIB)


def test_the_highest_mount_shows_all_limits(tmp_path: Path) -> None:
    """A bind mount of the group alone comes first, and the whole hierarchy is at a place with a space in its name."""
    own = v2("pod/a", 8 * GIB, GIB)
    pod = v2("pod", 9 * GIB, 7 * GIB)
    whole = {path.replace("sys/fs/cgroup", "host root/cgroup"): text for path, text in (own | pod).items()}
    alone = v2(".", 8 * GIB, GIB)
    mounts = V2_MOUNT.format("/pod/a") + V2_MOUNT.format("/").replace("/sys/fs/cgroup", r"/host\040root/cgroup")
    root = system(tmp_path, whole, alone, cgroup="0::/pod/a\n", mountinfo=mounts)
    assert cgroup(HostMemory.query(root)) == (2, "/pod", 9 * GIB, 2 * GIB)


def test_a_mount_of_another_group_is_not_ours(tmp_path: Path) -> None:
    """A container manager's group is mounted beside, with less left in it."""
    beside = {path.replace("fs/cgroup", "fs/beside"): text for path, text in v2(".", GIB, GIB).items()}
    mounts = V2_MOUNT.format("/x").replace("/sys/fs/cgroup", "/sys/fs/beside") + V2_MOUNT.format("/pod/a")
    root = system(tmp_path, beside, v2(".", 8 * GIB, GIB), cgroup="0::/pod/a\n", mountinfo=mounts)
    assert cgroup(HostMemory.query(root)) == (2, "/pod/a", 8 * GIB, 7 * GIB)


@pytest.mark.parametrize(("own", "top"), [("/../app", "/"), ("/../app", "/kubepods/c"), ("/", "/..")])
def test_a_group_outside_of_what_is_mounted_is_refused(tmp_path: Path, own: str, top: str) -> None:
    """A process that was moved into a namespace is limited by a group that it cannot see, not by the one there."""
    beside = {"sys/fs/app/memory.max": f"{GIB}\n"}
    root = system(tmp_path, v2(".", 8 * GIB, GIB), beside, cgroup=f"0::{own}\n", mountinfo=V2_MOUNT.format(top))
    with pytest.raises(MemoryQueryError, match=f"has no mount that shows the memory cgroup {own};"):
        HostMemory.query(root)


def test_a_limit_of_v1_leaves_what_is_not_used(tmp_path: Path) -> None:
    """Usage counts descendants, so that the page cache must: the lines total_*, not those without."""
    tree = v1("docker/a", 16 * GIB, 6 * GIB, files=4 * GIB) | v1(".", UNLIMITED_V1, 30 * GIB)
    root = system(tmp_path, tree, cgroup="5:cpu,memory:/docker/a\n", mountinfo=V1_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (1, "/docker/a", 16 * GIB, 14 * GIB)


@pytest.mark.parametrize("limit", [UNLIMITED_V1, (1 << 63) - (1 << 16), 64 * GIB], ids=["4 KiB", "64 KiB", "all"])
def test_no_limit_of_v1_is_a_number_beyond_the_machine(tmp_path: Path, limit: int) -> None:
    """The number depends on the page size; a machine of 64 GiB gives no more than that anyway."""
    tree = v1("docker/a", limit, 6 * GIB) | v1(".", limit, 30 * GIB)
    root = system(tmp_path, tree, cgroup="5:memory:/docker/a\n", mountinfo=V1_MOUNT.format("/"))
    assert cgroup(HostMemory.query(root)) == (None, None, None, None)


HYBRID_CGROUP = """\
9:name=systemd:/
8:pids:/
4:memory:/service/worker
3:cpuset:/
0::/
"""
HYBRID_MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_a_hybrid_host_limits_memory_by_v1(tmp_path: Path) -> None:
    """Version 2 is mounted too, without the memory controller. As on Linux 6.18 in a virtual machine."""
    tree = v1("service/worker", 8 * GIB, GIB) | v1("service", UNLIMITED_V1, GIB) | v1(".", UNLIMITED_V1, 8 * GIB)
    tree |= {"sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n"}
    tree |= {"sys/fs/cgroup/cpuset/service/worker/cpuset.cpus": "0-7\n"}  # the same group of another controller
    root = system(tmp_path, tree, cgroup=HYBRID_CGROUP, mountinfo=HYBRID_MOUNTINFO)
    assert cgroup(HostMemory.query(root)) == (1, "/service/worker", 8 * GIB, 7 * GIB)


def test_a_kernel_with_the_controller_turned_off_has_no_limit(tmp_path: Path) -> None:
    """With cgroup_disable=memory no line names it."""
    text = HYBRID_CGROUP.replace("4:memory:/service/worker\n", "")
    tree = {"sys/fs/cgroup/unified/cgroup.controllers": "\n"}
    root = system(tmp_path, tree, cgroup=text, mountinfo=HYBRID_MOUNTINFO)
    assert HostMemory.query(root).cgroup_limit_bytes is None


APP = "sys/fs/cgroup/app/memory."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({f"{APP}max": "8G\n"}, "memory.max has '8G' where a number should be", id="a unit"),
        pytest.param({f"{APP}max": ""}, "memory.max has '' where a number should be", id="an empty limit"),
        pytest.param({f"{APP}current": "-1\n"}, "memory.current has '-1'", id="a negative number"),
        pytest.param({f"{APP}current": "\u0663\n"}, "memory.current has", id="a digit that is not ASCII"),
        pytest.param({f"{APP}max": None}, r"app has some of memory.max, memory.high, memory.current", id="no limit"),
        pytest.param({f"{APP}current": None}, r"and not all", id="no usage"),
        pytest.param({f"{APP}stat": None}, "No such file or directory: .*memory.stat", id="no statistics"),
        pytest.param({f"{APP}stat": "anon 1\ninactive_file 0\n"}, "memory.stat has no active_file", id="a line less"),
        pytest.param({"proc/self/cgroup": "0::app\n"}, "cgroup has the line '0::app'", id="a group that is no path"),
        pytest.param({"proc/self/cgroup": "0::/b\n"}, "mount that shows the memory cgroup /b;", id="an unseen group"),
        pytest.param({"proc/self/cgroup": "3:memory:/app\n"}, "has no mount", id="an unmounted controller"),
        pytest.param({"proc/self/mountinfo": "1 2 - cgroup2 - rw\n"}, "mountinfo has the line '1 2", id="half a mount"),
        pytest.param({"proc/self/mountinfo": None}, "No such file or directory: .*mountinfo", id="no mounts"),
        pytest.param({"proc/meminfo": "MemTotal: 1 kB\nMemAvailable: x kB\n"}, "meminfo has 'x'", id="no number"),
        pytest.param({"proc/self/status": "VmLck: 0 kB\n"}, "status has no CapEff", id="no capabilities"),
        pytest.param({"proc/self/status": "VmLck: 0 kB\nCapEff: -\n"}, "status has CapEff '-'", id="not capabilities"),
        pytest.param({"proc/self/limits": ""}, "limits has no line 'Max locked memory'", id="no limit to lock"),
    ],
)
def test_a_limit_is_never_passed_over(tmp_path: Path, change: dict[str, str | None], message: str) -> None:
    """What cannot be read ends in an error, since a limit that is not seen ends in the process being killed."""
    root = system(tmp_path, v2("app", 8 * GIB, GIB), cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/"))
    assert HostMemory.query(root).cgroup_headroom_bytes == 7 * GIB
    for path, text in change.items():
        (root / path).unlink()
        if text is not None:
            (root / path).write_text(text, encoding="utf-8")
    with pytest.raises(MemoryQueryError, match=message):
        HostMemory.query(root)


def test_a_limit_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    root = system(tmp_path, v2("app", 8 * GIB, GIB), cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/"))
    (root / f"{APP}max").unlink()
    (root / f"{APP}max").mkdir()  # to read it is refused, for root too
    with pytest.raises(MemoryQueryError, match=r"app.memory\.max'; pass the bytes"):
        HostMemory.query(root)


# Budgets


def test_the_reserve_is_part_of_the_answer() -> None:
    """sgl-project/sglang#8102: 40.00 were asked for and refused with 44.87 free, since 10 are kept: 34.87 can be had."""
    host = HostMemory(total_bytes=64 * 10**9, available_bytes=44_870_000_000)
    assert host.budget_bytes(reserve_bytes=10**10) == 34_870_000_000


def test_ranks_divide_the_host() -> None:
    """sgl-project/sglang#35540: each of 8 ranks took the whole machine for its own."""
    host = HostMemory(total_bytes=2048 * GIB, available_bytes=2000 * GIB)
    assert host.budget_bytes(ranks_on_host=8) == 1990 * GIB // 8
    assert 8 * host.budget_bytes(ranks_on_host=8) <= 1990 * GIB


def test_a_host_is_read_before_any_rank_allocates(tmp_path: Path) -> None:
    """sgl-project/sglang#38156: 4 of 8 ranks had pinned their 100 GiB when the fifth read, and found room for 50."""
    meminfo = f"MemTotal: {900 << 20} kB\nMemAvailable: {810 << 20} kB\n"
    before = HostMemory.query(system(tmp_path, {"proc/meminfo": meminfo}))
    late = HostMemory.query(system(tmp_path, {"proc/meminfo": meminfo.replace(str(810 << 20), str(410 << 20))}))
    assert before.budget_bytes(ranks_on_host=8) == 100 * GIB
    assert late.budget_bytes(ranks_on_host=8) == 50 * GIB


def test_a_pod_has_less_than_its_node(tmp_path: Path) -> None:
    """sgl-project/sglang#20136, #40135: sized by the node's memory, the pools were killed at the pod's limit."""
    meminfo = f"MemTotal: {1024 << 20} kB\nMemAvailable: {900 << 20} kB\n"
    tree = v2(".", 200 * GIB, 30 * GIB) | {"proc/meminfo": meminfo}
    host = HostMemory.query(system(tmp_path, tree, cgroup="0::/\n", mountinfo=V2_MOUNT.format("/")))
    assert host.headroom_bytes == 170 * GIB
    assert host.budget_bytes(ranks_on_host=4) == 40 * GIB


def test_a_ratio_is_capped_by_the_host() -> None:
    """SemiAnalysisAI/InferenceX#2777: ratio 2.5 wanted 4.8 TB pinned on a node of 3.0 TB."""
    host = HostMemory(total_bytes=3 * 10**12, available_bytes=3 * 10**12)
    assert 8 * host.budget_bytes(ranks_on_host=8, reserve_bytes=10**10) == 2_990_000_000_000


def test_nothing_left_is_zero() -> None:
    host = HostMemory(total_bytes=16 * GIB, available_bytes=9 * GIB)
    assert host.budget_bytes() == 0


WORLDS = st.builds(
    HostMemory,
    total_bytes=st.just(1 << 44),
    available_bytes=st.integers(0, 1 << 44),
    cgroup_limit_bytes=st.integers(0, 1 << 44),
    cgroup_headroom_bytes=st.integers(0, 1 << 44),
    cgroup_path=st.just("/"),
    cgroup_version=st.just(2),
    huge_page_bytes=st.sampled_from([0, 2 * MIB, GIB]),
    free_huge_pages=st.integers(0, 1 << 20),
    locked_limit_bytes=st.none() | st.integers(0, 1 << 44),
    locked_bytes=st.integers(0, 1 << 44),
)


@given(host=WORLDS, reserve=st.integers(0, 1 << 44), ranks=st.integers(1, 64), locked=st.booleans())
def test_all_ranks_fit_beside_the_reserve(host: HostMemory, reserve: int, ranks: int, locked: bool) -> None:
    budget = host.budget_bytes(reserve_bytes=reserve, ranks_on_host=ranks, locked=locked)
    assert 0 <= budget <= host.headroom_bytes
    assert ranks * budget <= max(0, host.headroom_bytes - reserve)
    assert ranks * host.huge_page_budget_bytes(ranks_on_host=ranks) <= host.free_huge_pages * host.huge_page_bytes
    if locked and host.locked_limit_bytes is not None:
        assert budget == 0 or budget + host.locked_bytes <= host.locked_limit_bytes
    else:  # and no byte more would do
        assert host.headroom_bytes < reserve or ranks * (budget + 1) > host.headroom_bytes - reserve


@given(host=WORLDS, more=st.integers(0, 1 << 40), options=st.tuples(st.integers(0, 1 << 44), st.integers(1, 64)))
def test_more_memory_is_never_less_budget(host: HostMemory, more: int, options: tuple[int, int]) -> None:
    def budget(**changes: int) -> int:
        changed = dataclasses.replace(host, **changes)
        return changed.budget_bytes(reserve_bytes=options[0], ranks_on_host=options[1])

    assert host.cgroup_headroom_bytes is not None
    assert budget(available_bytes=host.available_bytes + more) >= budget()
    assert budget(cgroup_headroom_bytes=host.cgroup_headroom_bytes + more) >= budget()


@settings(max_examples=100)  # each writes two trees of files
@given(limits=st.tuples(*[st.integers(0, 64 * GIB)] * 2), used=st.integers(0, 64 * GIB), files=st.integers(0, GIB))
def test_a_higher_limit_never_leaves_less(
    tmp_path_factory: pytest.TempPathFactory, limits: tuple[int, int], used: int, files: int
) -> None:
    assume(files <= used)
    hosts: list[HostMemory] = []
    for limit in sorted(limits):
        root = tmp_path_factory.getbasetemp() / "monotone"
        tree = v2("app", limit, used, files=files)
        hosts.append(HostMemory.query(system(root, tree, cgroup="0::/app\n", mountinfo=V2_MOUNT.format("/"))))
        assert 0 <= hosts[-1].headroom_bytes <= limit
    assert hosts[0].headroom_bytes <= hosts[1].headroom_bytes


@pytest.mark.parametrize(
    ("option", "value"), [("reserve_bytes", -1), ("reserve_bytes", 0.5), ("ranks_on_host", 0), ("ranks_on_host", True)]
)
def test_an_option_is_a_whole_number(option: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"{option}={value} is not valid: pass a whole number from [01]"):
        HostMemory(total_bytes=1, available_bytes=1).budget_bytes(**{option: value})


@pytest.mark.parametrize("ranks", [0, "8"])
def test_ranks_of_huge_pages_are_a_whole_number(ranks: Any) -> None:
    with pytest.raises(InvalidOptionError, match="ranks_on_host"):
        HostMemory(total_bytes=1, available_bytes=1).huge_page_budget_bytes(ranks_on_host=ranks)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"available_bytes": None}, "available_bytes"),
        ({"available_bytes": 1e9}, "available_bytes"),
        ({"locked_limit_bytes": -1}, "locked_limit_bytes"),
        ({"free_huge_pages": False}, "free_huge_pages"),
        ({"cgroup_headroom_bytes": 5}, "cgroup_path"),
    ],
    ids=str,
)
def test_a_value_is_checked_where_it_is_made(values: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        HostMemory(**dict[str, Any](total_bytes=1, available_bytes=1) | values)
    assert caught.value.option == option


# This machine

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/meminfo")


@on_linux
def test_this_machine_answers_what_it_says() -> None:
    words = [line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()]
    meminfo = {name.rstrip(":"): int(number) * KIB for name, number, *_ in words}
    host = HostMemory.query()
    assert host.total_bytes == meminfo["MemTotal"]
    assert abs(host.available_bytes - meminfo["MemAvailable"]) < GIB  # other processes come and go
    assert 0 <= host.headroom_bytes <= host.available_bytes
    assert HostMemory.query(pid=os.getpid()).cgroup_path == host.cgroup_path


def own_group() -> Path:
    """The directory of this process's memory cgroup, at the usual place."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    for mount, path in [
        *[("/sys/fs/cgroup/memory", path) for _, controllers, path in lines if "memory" in controllers.split(",")],
        *[("/sys/fs/cgroup", path) for _, controllers, path in lines if not controllers],
    ]:
        if Path(mount + path, "cgroup.procs").is_file():
            return Path(mount + path)
    pytest.skip("the process's cgroup is not at its usual place")


INSIDE = """
import dataclasses, json
from poolplan import HostMemory, HostPoolConfigurator, ModelSpec, RuntimeSpec, create_memory_pool_configurator

configurator = create_memory_pool_configurator(ModelSpec.from_pretrained("openai/gpt-oss-120b"), RuntimeSpec())
device = configurator.calculate_pool_sizes(60 << 30)
before = HostMemory.query()
budget = before.budget_bytes(reserve_bytes=64 << 20)
plan = HostPoolConfigurator(configurator=configurator, config=device).calculate_pool_sizes(budget)
taken = [b"x" * pool.bytes for pool in plan.pools]  # beyond the limit the kernel kills this process
hosts = [dataclasses.asdict(host) for host in (before, HostMemory.query())]
print(json.dumps({"hosts": hosts, "budget": budget, "plan": plan.as_dict()}))
"""


@on_linux
def test_a_plan_respects_a_real_limit() -> None:
    """A process in a group of 1 GiB plans its host pools within that, and lives on when it has written all of them."""
    group = own_group() / f"poolplan-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        names = [name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).is_file()]
        if not names:
            pytest.skip("the memory controller is not delegated to children of the process's cgroup")
        try:
            (group / names[0]).write_text(str(GIB), encoding="utf-8")
        except OSError as error:
            pytest.skip(f"no limit can be set: {error}")
        script = 'echo $$ > "$0/cgroup.procs" || exit 77; exec "$@"'
        command = ["sh", "-c", script, str(group), sys.executable, "-c", INSIDE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            pytest.skip(f"no process can be moved: {done.stderr}")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
    finally:
        group.rmdir()
    before, after = (HostMemory(**values) for values in answer["hosts"])
    for host in (before, after):
        assert host.cgroup_limit_bytes == GIB
        assert host.cgroup_path is not None and host.cgroup_path.endswith(group.name)
        assert 0 < host.headroom_bytes < GIB
    # The kernel charges a CPU's pages in batches, so that usage is not exact to the page.
    planned = answer["plan"]["total_bytes"]
    assert abs(before.headroom_bytes - after.headroom_bytes - planned) < 32 * MIB
    assert planned <= answer["budget"] == before.headroom_bytes - 64 * MIB
    assert planned > answer["budget"] * 99 // 100
    # By the machine's memory, which the group may not use, the pools would be larger than the limit.
    assert before.available_bytes > 2 * GIB
