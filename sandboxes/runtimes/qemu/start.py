"""Starts one machine and connects to its agent; template, probe and clones begin here."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.ports import ForkFailed
from sandboxes.runtimes.guest_link import GuestLink
from sandboxes.runtimes.qemu.hardware import Hardware
from sandboxes.runtimes.qemu.machine import IGNORE_SHARED, Machine
from sandboxes.runtimes.qemu.vmm import Vmm

HANGUP_GRACE_S: Final = 10.0
"""A machine that ends closes its agent's stream first; its end, which names the cause, follows."""


class MachineLink(GuestLink):
    """A link that leaves it to the machine's end to say why it broke."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        asyncio.get_running_loop().call_later(HANGUP_GRACE_S, self.fail, "its guest agent ended")


@dataclass(frozen=True, slots=True)
class Boot:
    """What one machine is started with, beside the devices that all have."""

    ram: Path
    files: tuple[tuple[str, Path], ...] = ()
    """Options that name a file, opened by us: the machine's uid may not be able to walk to it."""
    words: tuple[str, ...] = ()
    state: Path | None = None
    """Of the template that a clone continues from."""


@dataclass(slots=True)
class Started:
    """A machine and the link to its agent, which may not have said hello yet."""

    vmm: Vmm
    link: MachineLink
    ram_inode: int


async def start_machine(
    hardware: Hardware,
    machine: Machine,
    boot: Boot,
    output_cap: int,
    on_lost: Callable[[str], None],
) -> Started:
    """Start a machine. Raises ForkFailed; nothing is left then."""
    monitor, monitor_theirs = socket.socketpair()
    agent, agent_theirs = socket.socketpair()
    try:
        with ExitStack() as ours:
            ours.callback(monitor_theirs.close)
            ours.callback(agent_theirs.close)
            ram = _open(boot.ram, os.O_RDWR, ours)
            ends = (agent_theirs.fileno(), monitor_theirs.fileno())
            words = machine.words(f"/proc/self/fd/{ram}", *ends, is_shared=boot.state is None)
            fds = [ram, *ends]
            for option, path in boot.files:
                fds.append(_open(path, os.O_RDONLY, ours))
                words += [option, f"/proc/self/fd/{fds[-1]}"]
            command = hardware.launch(
                [*words, *boot.words], machine.accel, is_clone=boot.state is not None
            )
            monitor.setblocking(False)
            vmm = Vmm(command, fds, monitor)
            inode = os.fstat(ram).st_ino
    except OSError as error:
        agent.close()
        monitor.close()
        raise ForkFailed(f"cannot start a machine: {error}") from error
    agent.setblocking(False)
    link = MachineLink(output_cap, on_lost)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=agent)
    return Started(vmm, link, inode)


async def continue_from(vmm: Vmm, state: Path) -> None:
    """Let a clone go on where its template was frozen. Raises MonitorError or OSError."""
    await vmm.execute("migrate-set-capabilities", IGNORE_SHARED)
    fd = os.open(state, os.O_RDONLY | os.O_CLOEXEC)
    try:
        await vmm.lend(fd, "state")
    finally:
        os.close(fd)
    await vmm.execute("migrate-incoming", {"uri": "fd:state"})


async def end_machine(started: Started, cause: str) -> None:
    """End it and wait until it is gone."""
    started.link.fail(cause)
    started.vmm.kill()
    await started.vmm.gone()


def _open(path: Path, flags: int, stack: ExitStack) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd
