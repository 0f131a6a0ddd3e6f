"""Whether the machine's virtualization runs a guest: one is booted with a deadline.

A device file proves nothing: there are machines where KVM makes a guest that never gets anywhere.
The verdict is kept per boot of the host and version of QEMU.
"""

import asyncio
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandboxes.ports import ForkFailed
from sandboxes.runtimes.qemu.hardware import KVM_DEVICE, Hardware
from sandboxes.runtimes.qemu.machine import MIB, Accel, Machine
from sandboxes.runtimes.qemu.start import end_machine
from sandboxes.runtimes.qemu.template import boot
from sandboxes.runtimes.qemu.tools import cache_folder
from venusrl.env.sandbox import SandboxError

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

DEADLINE_S: Final = 8.0
"""A guest with virtualization is up in half a second, where all is well."""

WHY_CHARS: Final = 160
"""Of QEMU's complaint: the line that says what it could not do."""

TINY_BYTES: Final = 128 * MIB


@dataclass(frozen=True, slots=True)
class Verdict:
    """How machines run here, and why."""

    accel: Accel
    why: str

    def __str__(self) -> str:
        return f"{self.accel}: {self.why}"


async def choose(hardware: Hardware, device: Path = KVM_DEVICE) -> Verdict:
    """The kept verdict of this boot, or a new one."""
    if not os.access(device, os.R_OK | os.W_OK):
        return Verdict(Accel.TCG, f"{device} is not usable")
    boot_id = BOOT_ID.read_text().strip()
    kept = cache_folder() / "accel.json"
    about = {"boot_id": boot_id, "qemu": hardware.version, "kernel": hardware.tools.kernel.name}
    try:
        told = json.loads(kept.read_text())
        if told["about"] == about:
            return Verdict(Accel(told["accel"]), told["why"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none, or one that cannot be read: decide again
    verdict = await _try_kvm(hardware)
    fresh = kept.with_name(f"accel-{os.getpid()}.json")
    fresh.write_text(json.dumps({"about": about, **asdict(verdict)}))
    os.replace(fresh, kept)
    return verdict


async def _try_kvm(hardware: Hardware) -> Verdict:
    machine = Machine(hardware.tools.qemu, Accel.KVM, TINY_BYTES)
    with tempfile.TemporaryDirectory(prefix="venus-kvm-") as folder:
        try:
            started = await boot(hardware, machine, Path(folder, "ram"), hardware.tiny_image)
        except ForkFailed as error:
            return Verdict(Accel.TCG, str(error))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await started.link.ready
            return Verdict(Accel.KVM, "a guest booted")
        except TimeoutError:
            return Verdict(Accel.TCG, f"with KVM a guest did not boot in {DEADLINE_S:.0f} s")
        except SandboxError as error:
            said = " ".join(error.detail.split())[:WHY_CHARS]
            return Verdict(Accel.TCG, f"with KVM no guest boots: {said}")
        finally:
            await end_machine(started, "the probe is over")
