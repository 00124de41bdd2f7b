"""How much memory this host has left, for the host pools: what the system and the cgroups allow, huge and locked pages.

How host pools share it is the planner's part; the device's memory is asked for elsewhere in this package.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from poolplan.errors import InvalidOptionError, MemoryQueryError

_CAP_IPC_LOCK = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """What a host's memory holds at one moment. Bytes throughout; nothing is rounded.

    Read it once, before any rank of the host allocates: memory that other ranks have pinned by then is not available,
    and to divide what is left by the ranks counts it twice (sgl-project/sglang#38156).

        >>> host = HostMemory(total_bytes=64 << 30, available_bytes=50 << 30)
        >>> host.budget_bytes(ranks_on_host=8) >> 30
        5

    Attributes:
        total_bytes: The machine's memory.
        available_bytes: What the system can hand out without swapping, page cache that it can drop included.
        cgroup_limit_bytes: The limit of the cgroup that leaves least; None where none has one.
        cgroup_headroom_bytes: What that cgroup leaves, its page cache that can be dropped included.
        cgroup_path: That cgroup, as the mount names it.
        cgroup_version: 1 or 2.
        huge_page_bytes: The size of a huge page of the default size; 0 where the kernel has none.
        free_huge_pages: Huge pages set aside that nobody has or is promised. They are not in `available_bytes`.
        locked_limit_bytes: What this process may lock; None without a limit (or with CAP_IPC_LOCK).
        locked_bytes: What it has locked.

    Raises:
        InvalidOptionError: A number that is not whole, or below 0; fields of a cgroup without the others.
    """

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None = None
    cgroup_headroom_bytes: int | None = None
    cgroup_path: str | None = None
    cgroup_version: int | None = None
    huge_page_bytes: int = 0
    free_huge_pages: int = 0
    locked_limit_bytes: int | None = None
    locked_bytes: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        cgroup = ("cgroup_limit_bytes", "cgroup_headroom_bytes", "cgroup_path", "cgroup_version")
        if len({getattr(self, name) is None for name in cgroup}) > 1:
            raise InvalidOptionError("cgroup_path", repr(self.cgroup_path), f"pass all of {', '.join(cgroup)}, or none")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "cgroup_path" and not (value is None and field.default is None):
                _check_whole(field.name, value)

    @classmethod
    def query(cls, root: str | os.PathLike[str] = "/", pid: int | str = "self") -> HostMemory:
        """Return what the process `pid` of the Linux system under `root` has.

        Limits of cgroups above the one that a container mounts cannot be seen from inside.

        Raises:
            MemoryQueryError: A file is missing or says something else than expected. A limit is never passed over.
        """
        try:
            return cls._read(Path(root), Path(root, "proc", str(pid)))
        except OSError as error:
            raise _query_error(str(error)) from error

    @classmethod
    def _read(cls, system: Path, process: Path) -> HostMemory:
        meminfo = _Table(system / "proc/meminfo")
        total_bytes = meminfo.number("MemTotal") * 1024
        # Never MemFree: weights just read stay in the page cache until somebody needs it (vllm-project/vllm#48140).
        available_bytes = meminfo.number("MemAvailable") * 1024
        level = _read_binding_level(system, process, total_bytes)
        # A kernel without huge pages has none of their lines.
        free_huge_pages = meminfo.number("HugePages_Free", 0) - meminfo.number("HugePages_Rsvd", 0)
        status = _Table(process / "status")
        return cls(
            total_bytes=total_bytes,
            available_bytes=available_bytes,
            cgroup_limit_bytes=level and level.limit_bytes,
            cgroup_headroom_bytes=level and level.headroom_bytes,
            cgroup_path=level and level.path,
            cgroup_version=level and level.version,
            huge_page_bytes=meminfo.number("Hugepagesize", 0) * 1024,
            free_huge_pages=max(0, free_huge_pages),
            locked_limit_bytes=None if _may_lock_all(status) else _read_locked_limit(process / "limits"),
            locked_bytes=status.number("VmLck") * 1024,
        )

    @property
    def headroom_bytes(self) -> int:
        """What can be allocated in all: the lesser of what the system has available and what the cgroup leaves."""
        if self.cgroup_headroom_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.cgroup_headroom_bytes)

    @property
    def source(self) -> str:
        """Which of the two binds, in one line."""
        if self.cgroup_headroom_bytes is None or self.available_bytes <= self.cgroup_headroom_bytes:
            return f"system: {self.available_bytes:,} bytes available of {self.total_bytes:,}"
        cgroup = f"cgroup v{self.cgroup_version} {self.cgroup_path}"
        return f"{cgroup}: limit {self.cgroup_limit_bytes:,} bytes, {self.cgroup_headroom_bytes:,} left"

    def budget_bytes(self, *, reserve_bytes: int = 10 << 30, ranks_on_host: int = 1, locked: bool = False) -> int:
        """Return what all host pools of one rank may take together; 0 where nothing is left.

        Args:
            reserve_bytes: What stays free for all else on the host, once for all ranks.
            ranks_on_host: Ranks that take as much each, those of other servers included.
            locked: For runtimes that mlock their pools: no more than this process may still lock. That limit is each
                process's own, and not divided.

        Raises:
            InvalidOptionError: A number that is not whole, a reserve below 0, or fewer ranks than 1.
        """
        _check_whole("reserve_bytes", reserve_bytes)
        _check_whole("ranks_on_host", ranks_on_host, low=1)
        budget = max(0, self.headroom_bytes - reserve_bytes) // ranks_on_host
        if locked and self.locked_limit_bytes is not None:
            return min(budget, max(0, self.locked_limit_bytes - self.locked_bytes))
        return budget

    def huge_page_budget_bytes(self, *, ranks_on_host: int = 1) -> int:
        """Return the bytes of the free huge pages that one rank may take: whole pages, the same for all ranks.

        Raises:
            InvalidOptionError: Ranks that are not a whole number from 1.
        """
        _check_whole("ranks_on_host", ranks_on_host, low=1)
        return self.free_huge_pages // ranks_on_host * self.huge_page_bytes


def _check_whole(name: str, value: object, low: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidOptionError(name, repr(value), f"pass a whole number from {low}")


def _may_lock_all(status: _Table) -> bool:
    capabilities = status.text("CapEff")
    if not re.fullmatch("[0-9a-f]+", capabilities):
        raise _query_error(f"{status.path} has CapEff {capabilities!r}")
    return bool(int(capabilities, 16) >> _CAP_IPC_LOCK & 1)


def _read_locked_limit(path: Path) -> int | None:
    soft = re.search(r"^Max locked memory +(\S+)", _read_text(path), re.MULTILINE)
    if soft is None:
        raise _query_error(f"{path} has no line 'Max locked memory'")
    return None if soft[1] == "unlimited" else _parse_number(path, soft[1])


# Cgroups. Their files: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.


class _Files(NamedTuple):
    """What the files of the memory controller are called, and the lines of memory.stat."""

    version: int
    limits: tuple[str, ...]
    usage: str
    # The file pages, descendants' included, that the kernel drops before it kills in the group. Both lists of them, as
    # in MemAvailable, so that the two bounds mean one thing. (The working set by which a kubelet evicts leaves active
    # pages out; the limit does not.) Shared memory and tmpfs cannot be dropped, and are listed as anonymous pages.
    page_cache: tuple[str, ...]


_FILES = {
    "cgroup": _Files(
        1, ("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
    ),
    # Above memory.high nothing is killed, but all is slowed until usage is below: a pool cannot stay there either.
    "cgroup2": _Files(2, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")),
}
_UNLIMITED = 1 << 64  # more than any number in these files


class _Level(NamedTuple):
    """A cgroup that has a limit."""

    headroom_bytes: int
    limit_bytes: int
    path: str
    version: int


def _read_binding_level(system: Path, process: Path, total_bytes: int) -> _Level | None:
    """Of the cgroups from the process's own to the top of the mount, the one that leaves least."""
    membership = _read_membership(process / "cgroup")
    if membership is None:
        return None
    hierarchy, own = membership
    mount, top, relative = _find_group(system, process / "mountinfo", hierarchy, own)
    levels = [
        _read_level(mount / group, _FILES[hierarchy], str(top / group), total_bytes)
        for group in (relative, *relative.parents)
    ]
    return min((level for level in levels if level), key=lambda level: level.headroom_bytes, default=None)


def _read_membership(path: Path) -> tuple[str, PurePosixPath] | None:
    """The type of the hierarchy with the memory controller, and the process's cgroup in it."""
    groups: dict[str, PurePosixPath] = {}
    for line in (_read_text_if_any(path) or "").splitlines():  # a kernel without cgroups has no such file
        entry = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        if entry is None:
            raise _query_error(f"{path} has the line {line!r}")
        if not entry[1]:
            groups["cgroup2"] = PurePosixPath(entry[2])
        elif "memory" in entry[1].split(","):
            groups["cgroup"] = PurePosixPath(entry[2])
    # A hybrid host has both; the controller is v1's then, for one that v2 uses is in no line of v1.
    return next(((name, groups[name]) for name in _FILES if name in groups), None)


def _find_group(
    system: Path, mountinfo: Path, hierarchy: str, own: PurePosixPath
) -> tuple[Path, PurePosixPath, PurePosixPath]:
    """A mount, the cgroup at its top, and the process's own relative to that."""
    shown: list[tuple[bool, int, Path, PurePosixPath, PurePosixPath]] = []
    for point, top in _read_mounts(mountinfo, hierarchy).items():
        mount = system / point.lstrip("/")
        relative = _relative_group(mount, top, own)
        if relative is not None:
            shown.append((not own.is_relative_to(top), len(top.parts), mount, top, relative))
    if not shown:
        raise _query_error(f"{mountinfo} has no mount that shows the memory cgroup {own}")
    # Of several mounts one that surely shows the group, and of those the highest, which shows the most limits.
    return min(shown)[2:]


def _relative_group(mount: Path, top: PurePosixPath, own: PurePosixPath) -> PurePosixPath | None:
    """Where below the top of a mount the group is; None where the mount does not show it.

    In a container /docker/a may be the top of the mount, and the group /docker/a/b or, in a namespace, /b.
    """
    if own.is_relative_to(top):
        relative = own.relative_to(top)
    elif ".." in (*own.parts, *top.parts):
        return None
    elif (mount / own.relative_to("/")).is_dir():
        relative = own.relative_to("/")
    else:  # named from elsewhere: the top is the least that the container's runtime lets it see
        relative = PurePosixPath()
    # A group outside of its namespace has a path with "..": what is found there are the limits of others.
    return relative if ".." not in relative.parts and (mount / relative).is_dir() else None


def _read_mounts(path: Path, hierarchy: str) -> dict[str, PurePosixPath]:
    """The mount points of the memory controller's hierarchy, each with the cgroup at its top."""
    mounts: dict[str, PurePosixPath] = {}
    for line in _read_text(path).splitlines():
        before, _, after = line.partition(" - ")
        mount, filesystem = before.split(" "), after.split(" ")
        if filesystem[0] != hierarchy or (hierarchy == "cgroup" and "memory" not in filesystem[-1].split(",")):
            continue
        if len(mount) < 5:
            raise _query_error(f"{path} has the line {line!r}")
        top, point = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in mount[3:5])
        mounts[point] = PurePosixPath(top)
    return mounts


def _read_level(directory: Path, files: _Files, path: str, total_bytes: int) -> _Level | None:
    """A cgroup's least limit and what it leaves; None without one. The root of v2 has not even the files."""
    names = (*files.limits, files.usage)
    amounts = [amount for amount in (_read_amount(directory / name) for name in names) if amount is not None]
    if not amounts:
        return None
    if len(amounts) < len(names):
        raise _query_error(f"{directory} has some of {', '.join(names)}, and not all")
    *limits, usage_bytes = amounts
    limit_bytes = min(limits)
    # v1 has no word for no limit, but a number near 2^63 that depends on the page size.
    if limit_bytes >= (total_bytes if files.version == 1 else _UNLIMITED):
        return None
    stat = _Table(directory / "memory.stat")
    page_cache_bytes = sum(stat.number(name) for name in files.page_cache)
    reclaimable_bytes = max(0, page_cache_bytes - _read_protected_bytes(directory))
    headroom_bytes = max(0, limit_bytes - max(0, usage_bytes - reclaimable_bytes))
    return _Level(headroom_bytes, limit_bytes, path, files.version)


def _read_protected_bytes(directory: Path) -> int:
    """What reclaim at the limit of this cgroup must leave alone.

    That is the memory.min of its children: they bound what is theirs below, and the group's own only counts for the
    limits above (mem_cgroup_calculate_protection in mm/memcontrol.c).
    """
    return sum(_read_amount(child) or 0 for child in directory.glob("*/memory.min"))


# Files


class _Table:
    """A file of lines `name: value unit` or `name value`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = (line.split() for line in _read_text(path).splitlines())
        self._values = {words[0].rstrip(":"): words[1] for words in lines if len(words) > 1}

    def text(self, name: str) -> str:
        if name not in self._values:
            raise _query_error(f"{self.path} has no {name}")
        return self._values[name]

    def number(self, name: str, default: int | None = None) -> int:
        if default is not None and name not in self._values:
            return default
        return _parse_number(self.path, self.text(name))


def _read_amount(path: Path) -> int | None:
    text = _read_text_if_any(path)
    if text is None:
        return None
    return _UNLIMITED if text.strip() == "max" else _parse_number(path, text.strip())


def _read_text_if_any(path: Path) -> str | None:
    try:
        return _read_text(path)
    except FileNotFoundError:
        return None


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")  # the names of mounts can be any bytes


def _parse_number(path: Path, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _query_error(f"{path} has {text!r} where a number should be")
    return int(text)


def _query_error(problem: str) -> MemoryQueryError:
    return MemoryQueryError(f"the host's memory cannot be read: {problem}; pass the bytes of the host pools yourself")
