"""The command line of a machine. Template and clones get theirs from one record: their devices must
be the same, for a clone continues from the template's device state."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIB: Final = 1 << 20

RAM_BYTES_MIN: Final = 512 * MIB
"""One template serves all small ceilings: its memory costs what is touched, not what is declared."""

GUEST_BASE_BYTES: Final = 96 * MIB
"""Kernel, image and agent, which a sandbox's own ceilings do not count."""

KERNEL_WORDS: Final = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off rdinit=/init"
"""Panics still reach the console, and end the machine: QEMU runs with `-no-reboot`. The guest is not
trusted with keeping anything apart, so it need not pay for mitigations."""


class Accel(StrEnum):
    """How a machine's instructions run."""

    KVM = "kvm"
    TCG = "tcg"


ACCEL_WORDS: Final = {Accel.KVM: "kvm", Accel.TCG: "tcg,tb-size=16,thread=single"}
"""16 MiB of translated code: more would be private memory of every clone."""


def ram_bytes_for(memory_bytes: int, disk_bytes: int) -> int:
    """Memory of the smallest template that can hold these ceilings: a power of two."""
    needed = max(RAM_BYTES_MIN, memory_bytes + disk_bytes + GUEST_BASE_BYTES)
    return 1 << (needed - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Machine:
    """What a template and its clones have in common."""

    qemu: str
    accel: Accel
    ram_bytes: int

    def words(self, ram: str, agent_fd: int, monitor_fd: int, *, is_shared: bool) -> list[str]:
        """Everything but where the first instruction comes from."""
        share = "on" if is_shared else "off"
        return [
            self.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            "-M", "pc,memory-backend=ram,mem-merge=off,dump-guest-core=off,usb=off,vmport=off",
            "-accel", ACCEL_WORDS[self.accel], "-cpu", "max", "-smp", "1",
            "-m", f"{self.ram_bytes // MIB}M",
            "-object",
            f"memory-backend-file,id=ram,size={self.ram_bytes},mem-path={ram},share={share}",
            "-chardev", "stdio,id=console,signal=off", "-device", "isa-serial,chardev=console",
            "-chardev", f"socket,id=agent,fd={agent_fd}",
            "-device", "virtio-serial-pci,id=serial,max_ports=2",
            "-device", "virtserialport,bus=serial.0,chardev=agent,name=venus.agent,nr=1",
            "-device", "virtio-balloon-pci,id=balloon,free-page-reporting=on,deflate-on-oom=on",
            "-chardev", f"socket,id=monitor,fd={monitor_fd}",
            "-mon", "chardev=monitor,mode=control",
        ]  # fmt: skip


CLONE_WORDS: Final = ("-incoming", "defer")
"""A clone waits for the template's device state; its memory is there already."""

IGNORE_SHARED: Final[dict[str, object]] = {
    "capabilities": [{"capability": "x-ignore-shared", "state": True}]
}
"""State without memory, for who writes it and who reads it."""
