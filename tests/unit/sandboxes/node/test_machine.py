"""What is read of a machine's memory, from files as kernels write them."""

from pathlib import Path

from sandboxes.core.names import MIB
from sandboxes.node.machine import Machine

MEMINFO = """MemTotal:        4194304 kB
MemFree:         1048576 kB
MemAvailable:    3145728 kB
SwapTotal:       2097152 kB
SwapFree:         524288 kB
HugePages_Total:       0
"""


def machine(folder: Path, pressure: str | None = None, **group: str) -> Machine:
    proc, groups = folder / "proc", folder / "groups"
    (proc / "pressure").mkdir(parents=True)
    (groups / "memory").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    if pressure is not None:
        (proc / "pressure" / "memory").write_text(pressure)
    for name, text in group.items():
        (groups / name.replace("__", "/").replace("_in_", "_in_").replace("-", ".")).write_text(
            text
        )
    return Machine(proc, groups)


def test_without_a_limit_the_machine_speaks(tmp_path: Path) -> None:
    found = machine(tmp_path, **{"memory-max": "max\n", "memory-current": "7\n"})
    assert found.capacity_bytes() == 4096 * MIB
    assert found.look().used_bytes == 1024 * MIB
    assert found.look().swap_free_bytes == 512 * MIB


def test_a_control_groups_limit_and_its_use_without_idle_file_pages(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        **{
            "memory-max": f"{1024 * MIB}\n",
            "memory-current": f"{600 * MIB}\n",
            "memory-stat": f"anon 5\ninactive_file {100 * MIB}\n",
        },
    )
    assert found.capacity_bytes() == 1024 * MIB
    assert found.look().used_bytes == 500 * MIB


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        **{
            "memory__memory-limit_in_bytes": f"{2048 * MIB}",
            "memory__memory-usage_in_bytes": f"{800 * MIB}",
            "memory__memory-stat": f"cache 9\ntotal_inactive_file {300 * MIB}\n",
        },
    )
    assert found.capacity_bytes() == 2048 * MIB
    assert found.look().used_bytes == 500 * MIB


def test_version_1_without_a_limit_writes_a_huge_one(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        **{
            "memory__memory-limit_in_bytes": "9223372036854771712",
            "memory__memory-usage_in_bytes": "5",
        },
    )
    assert found.capacity_bytes() == 4096 * MIB
    assert found.look().used_bytes == 1024 * MIB


def test_pressure_is_a_share_of_time(tmp_path: Path) -> None:
    text = "some avg10=6.25 avg60=1.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 total=0\n"
    assert machine(tmp_path, pressure=text).look().pressure == 0.0625


def test_pressure_that_cannot_be_read_is_none_not_zero(tmp_path: Path) -> None:
    assert machine(tmp_path).look().pressure is None
