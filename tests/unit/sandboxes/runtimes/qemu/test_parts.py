"""What a machine is made of: found or named as missing, packed, sized, measured."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from sandboxes.runtimes.qemu.accel import choose
from sandboxes.runtimes.qemu.build import build_agent, build_launcher
from sandboxes.runtimes.qemu.cpio import Archive
from sandboxes.runtimes.qemu.hardware import Hardware
from sandboxes.runtimes.qemu.machine import MIB, Accel, Machine, ram_bytes_for
from sandboxes.runtimes.qemu.memory import read_mappings, stats_of
from sandboxes.runtimes.qemu.tools import QemuUnavailable, Tools, find_tools
from tests.support.requirements import requires


def test_a_machine_without_qemu_says_so_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QemuUnavailable, match=r"QEMU is missing.*install_guest"):
        find_tools()


def test_a_folder_without_a_kernel_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("qemu-system-x86_64", "busybox", "cc"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VENUS_GUEST_KERNEL", str(tmp_path))
    with pytest.raises(QemuUnavailable, match="no guest kernel"):
        find_tools()
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "vmlinuz-6.1-cloud").write_bytes(b"")
    (tmp_path / "lib" / "modules" / "6.1-cloud").mkdir(parents=True)
    assert find_tools().kernel.name == "vmlinuz-6.1-cloud"


def test_an_agent_cannot_be_built_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(QemuUnavailable, match="cannot compile the agent"):
        build_agent(str(tmp_path / "cc"), tmp_path)


@requires("compiler")
def test_binaries_are_built_once_and_are_static(tmp_path: Path) -> None:
    agent, launcher = build_agent("cc", tmp_path), build_launcher("cc", tmp_path)
    before = agent.stat().st_mtime_ns
    assert build_agent("cc", tmp_path).stat().st_mtime_ns == before
    assert b"/lib64/ld-linux" not in agent.read_bytes()[:4096]
    assert sorted(tmp_path.iterdir()) == sorted([agent, launcher])


@requires("compiler")
def test_the_launcher_lets_a_clone_cut_no_hole_into_its_memory_file(tmp_path: Path) -> None:
    launcher, victim = build_launcher("cc", tmp_path), tmp_path / "ram"
    victim.write_bytes(b"x" * 8192)
    command = [str(launcher), str(os.getpid()), "0"]
    punch = ["/usr/bin/fallocate", "--punch-hole", "--offset", "0", "--length", "4096", str(victim)]
    subprocess.run([*command, "1", *punch], check=True)
    assert victim.read_bytes() == b"x" * 8192
    subprocess.run([*command, "0", *punch], check=True)
    assert victim.read_bytes() == bytes(4096) + b"x" * 4096


def test_an_archive_is_read_by_those_who_know_the_format(tmp_path: Path) -> None:
    archive = Archive()
    archive.file("/a/b/file", b"content", 0o755)
    archive.link("a/link", "b/file")
    out = io.BytesIO()
    archive.write(out)
    text = out.getvalue()
    assert len(text) % 4 == 0
    assert text.startswith(b"070701")
    names = [b"a\0", b"a/b\0", b"a/b/file\0", b"a/link\0", b"TRAILER!!!\0"]
    places = [text.index(b"0" * 8 + name) for name in names]
    assert places == sorted(places)
    assert "/a/b" in archive


def test_small_ceilings_share_a_template_and_large_ones_fit() -> None:
    assert ram_bytes_for(64 * MIB, 32 * MIB) == ram_bytes_for(256 * MIB, 64 * MIB) == 512 * MIB
    assert ram_bytes_for(2048 * MIB, 64 * MIB) == 4096 * MIB


def test_template_and_clone_have_the_same_devices() -> None:
    machine = Machine("qemu", Accel.TCG, 512 * MIB)
    template = machine.words("/ram", 5, 6, is_shared=True)
    clone = machine.words("/ram", 5, 6, is_shared=False)
    assert [one for one in template if "share=" not in one] == [
        one for one in clone if "share=" not in one
    ]
    assert any(one.startswith("on,") and "spawn=deny" in one for one in clone)


def test_the_memory_of_a_process_is_read_and_of_a_gone_one_is_none() -> None:
    inode = Path(os.__file__).stat().st_ino
    held = stats_of(os.getpid(), inode, 1)
    assert (held.private_bytes, held.pids) == (0, 0)
    assert held.overhead_bytes > 1 * MIB
    assert read_mappings(1 << 22, inode) == []


async def test_without_the_device_the_verdict_is_emulation_and_says_why(tmp_path: Path) -> None:
    tools = Tools("qemu", tmp_path, tmp_path, tmp_path, "cc")
    hardware = Hardware(tools, tmp_path, tmp_path, tmp_path, "7.2")
    verdict = await choose(hardware, tmp_path / "kvm")
    assert verdict.accel is Accel.TCG
    assert "not usable" in verdict.why
