"""Templates: machines that were booted, warmed up and frozen into two files, for clones to map.

`<folder>/<key>/` holds `ram`, the guest's memory, and `state`, its devices; `record.json` is written
last and makes it whole. Nobody writes to `ram` afterwards: clones map it private, and the launcher
keeps QEMU from cutting pages out of it. A key names everything that decides the content, the tenant
included: snapshots are never shared between tenants.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.logging import get_logger
from sandboxes.ports import ForkFailed
from sandboxes.runtimes.guest_control import PrepareSnapshot
from sandboxes.runtimes.guest_link import AgentRequest
from sandboxes.runtimes.qemu.hardware import Hardware
from sandboxes.runtimes.qemu.machine import IGNORE_SHARED, KERNEL_WORDS, Machine
from sandboxes.runtimes.qemu.start import Boot, Started, end_machine, start_machine
from sandboxes.runtimes.qemu.vmm import MonitorError
from venusrl.env.sandbox import ExecRequest, PythonRequest, ReadRequest, SandboxError, WriteRequest

FORMAT: Final = "2"
"""Of what `_save` leaves, as a part of every key."""

BOOT_TIMEOUT_S: Final = 90.0
"""Three to seven seconds where instructions are emulated; many times that on a busy machine."""

BOOT_TRIES: Final = 2
"""Emulated timers may fail to calibrate at a boot; nothing but the boot is ever repeated."""

SAVE_TIMEOUT_S: Final = 60.0
SAVE_POLL_S: Final = 0.01
LOCK_POLL_S: Final = 0.1

OUTPUT_CAP: Final = 1 << 16

WARM_UP: Final[tuple[AgentRequest, ...]] = (
    ExecRequest(("sh", "-c", "ls / | cat > .warm; rm .warm"), timeout_s=BOOT_TIMEOUT_S),
    WriteRequest(".warm", b"x" * 4096),
    ReadRequest(".warm"),
    ExecRequest(("rm", "-f", ".warm"), timeout_s=BOOT_TIMEOUT_S),
    PrepareSnapshot(),
    PythonRequest("print(1)", timeout_s=BOOT_TIMEOUT_S),
    PrepareSnapshot(),
)
"""Whatever every sandbox does first is done once here: its pages are shared then."""


@dataclass(frozen=True, slots=True)
class Template:
    """A frozen machine. `shared_bytes` is what its memory file really holds."""

    machine: Machine
    folder: Path
    python: str

    @property
    def ram(self) -> Path:
        """The guest's memory."""
        return self.folder / "ram"

    @property
    def state(self) -> Path:
        """Its devices."""
        return self.folder / "state"

    @property
    def shared_bytes(self) -> int:
        """Bytes of memory that the boot and the warm-up touched."""
        return self.ram.stat().st_blocks * 512


class TemplateStore:
    """The templates of one tenant in one folder, which several processes may use."""

    def __init__(self, folder: Path, tenant: str) -> None:
        self._folder = folder
        self._tenant = tenant
        self._building: dict[str, asyncio.Lock] = {}

    async def get(self, hardware: Hardware, machine: Machine) -> Template:
        """The template of this machine, made if there is none. Raises ForkFailed."""
        about = (hardware.digest, machine.accel, str(machine.ram_bytes), self._tenant, KERNEL_WORDS)
        recipe = "\0".join((FORMAT, *about, repr(WARM_UP)))
        key = hashlib.sha256(recipe.encode()).hexdigest()[:32]
        async with self._building.setdefault(key, asyncio.Lock()):
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{key}.lock").open("w") as lock:
                await _acquire(lock.fileno())
                found = self._find(key, machine)
                return found or await self._build(key, hardware, machine)

    def _find(self, key: str, machine: Machine) -> Template | None:
        record = self._folder / key / "record.json"
        if not record.exists():
            return None
        return Template(machine, record.parent, str(json.loads(record.read_text())["python"]))

    async def _build(self, key: str, hardware: Hardware, machine: Machine) -> Template:
        folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=self._folder))
        try:
            python = await _freeze_once_more(hardware, machine, folder)
            record = {"python": python, "ram_bytes": machine.ram_bytes, "tenant": self._tenant}
            (folder / "record.json").write_text(json.dumps(record))
            shutil.rmtree(self._folder / key, ignore_errors=True)
            os.rename(folder, self._folder / key)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Template(machine, self._folder / key, python)


async def _acquire(fd: int) -> None:
    """Take a lock between processes without blocking the loop; closing the file gives it back."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(LOCK_POLL_S)


def make_ram(path: Path, size: int) -> None:
    """An empty memory file. Machines run under uids of their own, and all of them map it; only the
    folder keeps other users away."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o666 if os.getuid() == 0 else 0o600)
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


async def boot(hardware: Hardware, machine: Machine, ram: Path, image: Path) -> Started:
    """Start a machine from its kernel. Raises ForkFailed."""
    make_ram(ram, machine.ram_bytes)
    files = (("-kernel", hardware.tools.kernel), ("-initrd", image))
    how = Boot(ram, files, ("-append", KERNEL_WORDS))
    started = await start_machine(hardware, machine, how, OUTPUT_CAP, lambda cause: None)
    started.vmm.on_end = lambda: started.link.fail(started.vmm.last_words)
    return started


async def _freeze_once_more(hardware: Hardware, machine: Machine, folder: Path) -> str:
    """As `_freeze`, with a second try for a boot that failed."""
    for _ in range(BOOT_TRIES - 1):
        try:
            return await _freeze(hardware, machine, folder)
        except ForkFailed as error:
            get_logger().warning("template.boot_failed", cause=str(error))
    return await _freeze(hardware, machine, folder)


async def _freeze(hardware: Hardware, machine: Machine, folder: Path) -> str:
    """Boot, warm up and save; the guest's Python version. Raises ForkFailed."""
    started = await boot(hardware, machine, folder / "ram", hardware.image)
    try:
        async with asyncio.timeout(BOOT_TIMEOUT_S):
            python = await started.link.ready
        for request in WARM_UP:
            await started.link.call(request)
        await _save(started, folder / "state")
    except (SandboxError, MonitorError, TimeoutError, OSError) as error:
        said = started.vmm.console[-300:]
        why = f"{error or type(error).__name__}" + (f"; console: {said}" if said else "")
        raise ForkFailed(f"no template could be made: {why}") from error
    finally:
        await end_machine(started, "its template was frozen")
    return python


async def _save(started: Started, path: Path) -> None:
    """Write its devices, which stops it. Raises MonitorError, TimeoutError or OSError.

    It is not stopped first: a clone of a stopped machine would have to be told to run.
    """
    vmm = started.vmm
    await vmm.execute("migrate-set-capabilities", IGNORE_SHARED)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        await vmm.lend(fd, "state")
    finally:
        os.close(fd)
    await vmm.execute("migrate", {"uri": "fd:state"})
    async with asyncio.timeout(SAVE_TIMEOUT_S):
        while True:
            told = await vmm.execute("query-migrate")
            status = told.get("status") if isinstance(told, dict) else None
            if status == "completed":
                return
            if status in ("failed", "cancelled"):
                raise MonitorError(f"the machine was not saved: {told}")
            await asyncio.sleep(SAVE_POLL_S)
