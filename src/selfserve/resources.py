"""How many CPUs and how much memory this process may really use.

A container's limits stand in its control groups (version 1 or 2, and in those of its ancestors),
not in what the machine has. More threads than that make every step wait for a descheduled one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path("/")


def available_cpus(root: Path = ROOT, affinity: Collection[int] | None = None) -> int:
    """CPUs to compute on, at least 1: the smallest of affinity, physical cores among those, and
    every control group's quota, rounded down.

    `root` is where `proc` and `sys` lie; `affinity` the CPU numbers that may be used, by default
    those of this process.
    """
    cpus = _affinity() if affinity is None else affinity
    limits: list[float] = [len(cpus), _physical_cores(root, cpus), *_cpu_quotas(root)]
    return max(1, int(min(limits)))


def available_memory_bytes(root: Path = ROOT) -> int:
    """Bytes that this process may still fill: the smallest of the system's available memory and
    every control group's limit. `root` is where `proc` and `sys` lie."""
    return min([_system_memory(root), *_memory_limits(root)])


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _physical_cores(root: Path, cpus: Collection[int]) -> int:
    """Cores that `cpus` lie on; two hardware threads of one core count once."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(_read(topology) or f"cpu {cpu}")
    return len(cores)


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _groups(root, "cpu"):
        quota, period = ((_read(folder / "cpu.max") or "max") + " 100000").split()[:2]
        if quota == "max":
            quota = _read(folder / "cpu.cfs_quota_us") or "-1"
            period = _read(folder / "cpu.cfs_period_us") or "100000"
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read(folder / name) or ""
            if limit.isdecimal():
                yield int(limit)


def _system_memory(root: Path) -> int:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups for `controller`, from its own up to the topmost
    that can be seen, in each mounted hierarchy."""
    mounts = _mounts(root, controller)
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        unified = hierarchy == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for mount_root, mount_point in mounts["cgroup2" if unified else "cgroup"]:
            yield from _ancestors(mount_point, _relative(path, mount_root))


def _mounts(root: Path, controller: str) -> dict[str, list[tuple[str, Path]]]:
    """By file system type: (the group that is the mount's top, where it is mounted)."""
    found: dict[str, list[tuple[str, Path]]] = {"cgroup": [], "cgroup2": []}
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        place, _, source = line.partition(" - ")
        mount_root, mount_point = place.split()[3:5]
        kind, *_rest, options = source.split()
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            found[kind].append((mount_root, root / mount_point.lstrip("/")))
    return found


def _relative(path: str, mount_root: str) -> str:
    """`path` as seen below the mount; the mount's top where the path lies outside of it (in a
    container that sees its own group only)."""
    if mount_root == "/":
        return "" if path.startswith("/..") else path.strip("/")
    below = path == mount_root or path.startswith(mount_root + "/")
    return path[len(mount_root) :].strip("/") if below else ""


def _ancestors(mount_point: Path, relative: str) -> Iterator[Path]:
    folder = mount_point / relative
    yield folder
    while folder != mount_point:
        folder = folder.parent
        yield folder


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
