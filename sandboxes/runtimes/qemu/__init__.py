"""The `qemu` runtime: virtual machines that are clones of one snapshot and share its pages."""

from sandboxes.runtimes.qemu.runtime import QemuRuntime

__all__ = ["QemuRuntime"]
