"""The `process` runtime: bubblewrap namespaces and hard limits, the kernel shared."""

from sandboxes.runtimes.process.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]
