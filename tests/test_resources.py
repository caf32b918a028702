"""CPU and memory limits, read from made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from selfserve.resources import available_cpus, available_memory_bytes

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU_MOUNT = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY_MOUNT = "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


class Machine:
    """A root folder with `proc` and `sys`; the control group files are added one by one."""

    def __init__(self, root: Path, groups: str, mounts: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", groups)
        self.write("proc/self/mountinfo", mounts)
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpus(self, affinity: int | set[int] = 16) -> int:
        allowed = set(range(affinity)) if isinstance(affinity, int) else affinity
        return available_cpus(self.root, allowed)

    def memory(self) -> int:
        return available_memory_bytes(self.root)


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "0::/app.slice/server", V2_MOUNT)


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    return Machine(
        tmp_path,
        "5:memory:/docker/one\n4:cpu,cpuacct:/docker/one\n0::/",
        f"{V1_CPU_MOUNT}\n{V1_MEMORY_MOUNT}",
    )


def test_without_limits_every_allowed_cpu_counts(v2: Machine) -> None:
    assert v2.cpus() == 16


def test_an_affinity_mask_limits_the_cpus(v2: Machine) -> None:
    assert v2.cpus({3, 7}) == 2


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("200000 100000", 2),
        ("390000 100000", 3),
        ("50000 100000", 1),
        ("25000 10000", 2),
        ("max 100000", 16),
        ("200000", 2),
    ],
)
def test_a_v2_quota_is_rounded_down_but_not_under_one(v2: Machine, quota: str, cpus: int) -> None:
    v2.write("sys/fs/cgroup/app.slice/server/cpu.max", quota)
    assert v2.cpus() == cpus


@pytest.mark.parametrize("folder", ["sys/fs/cgroup", "sys/fs/cgroup/app.slice"])
def test_a_quota_of_an_ancestor_counts(v2: Machine, folder: str) -> None:
    v2.write(f"{folder}/cpu.max", "300000 100000")
    v2.write("sys/fs/cgroup/app.slice/server/cpu.max", "max 100000")
    assert v2.cpus() == 3


@pytest.mark.parametrize(("quota", "cpus"), [("250000", 2), ("50000", 1), ("-1", 16)])
def test_a_v1_quota_counts(v1: Machine, quota: str, cpus: int) -> None:
    v1.write("sys/fs/cgroup/cpu/docker/one/cpu.cfs_quota_us", quota)
    v1.write("sys/fs/cgroup/cpu/docker/one/cpu.cfs_period_us", "100000")
    assert v1.cpus() == cpus


def test_a_v1_quota_of_an_ancestor_counts(v1: Machine) -> None:
    v1.write("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "400000")
    v1.write("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000")
    assert v1.cpus() == 4


def test_a_container_that_sees_only_its_own_group_is_limited_by_it(tmp_path: Path) -> None:
    mount = V1_CPU_MOUNT.replace(" / /sys", " /docker/one /sys")
    machine = Machine(tmp_path, "4:cpu,cpuacct:/docker/one", mount)
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert machine.cpus() == 2


def test_a_group_outside_the_namespace_falls_back_to_the_mounts_top(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../elsewhere", V2_MOUNT)
    machine.write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert machine.cpus() == 2


def test_two_threads_of_one_core_count_once(v2: Machine) -> None:
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        v2.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", pair)
    assert v2.cpus(4) == 2
    assert v2.cpus({0, 2}) == 2
    assert v2.cpus({0, 1}) == 1


def test_a_system_without_proc_and_sys_uses_the_affinity(tmp_path: Path) -> None:
    assert available_cpus(tmp_path, range(6)) == 6


def test_this_process_gets_at_least_one_cpu_and_no_more_than_it_may_use() -> None:
    assert 1 <= available_cpus() <= (os.cpu_count() or 1)


def test_memory_without_limits_is_what_the_system_has_available(v2: Machine) -> None:
    assert v2.memory() == 8 << 30


@pytest.mark.parametrize("folder", ["sys/fs/cgroup/app.slice/server", "sys/fs/cgroup/app.slice"])
def test_a_v2_memory_limit_counts_at_every_level(v2: Machine, folder: str) -> None:
    v2.write("sys/fs/cgroup/app.slice/server/memory.max", "max")
    v2.write(f"{folder}/memory.max", str(2 << 30))
    assert v2.memory() == 2 << 30


def test_a_v1_memory_limit_counts_and_its_unlimited_value_does_not(v1: Machine) -> None:
    v1.write("sys/fs/cgroup/memory/docker/one/memory.limit_in_bytes", "9223372036854771712")
    assert v1.memory() == 8 << 30
    v1.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", str(1 << 30))
    assert v1.memory() == 1 << 30


def test_memory_of_a_system_without_proc_is_its_physical_memory(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) > 1 << 20
