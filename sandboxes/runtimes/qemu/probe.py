"""Whether a machine can be cloned here: `python -m sandboxes.runtimes.qemu.probe [--tools]`.

Clones one exactly as the node agent does, runs code in it and destroys it; with `--tools`, only looks
for what machines are made of. Exits 0 when all went well, with the accelerator's verdict on standard
output; otherwise 1, with the cause on standard error.
"""

import asyncio
import sys
from typing import Final

from domain.ids import AttemptId, group_id
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.ports import ForkFailed, SandboxSpec
from sandboxes.runtimes.qemu.runtime import QemuRuntime
from sandboxes.runtimes.qemu.tools import cache_folder, find_tools
from venusrl.env.sandbox import ExecResult, PythonRequest, SandboxError

ATTEMPT: Final = AttemptId("att_probe")
KEY: Final = MemberKey(ATTEMPT, group_id(ATTEMPT, 0), 0, 1, SandboxPurpose.AGENT)


async def probe() -> str:
    """Clone, use and end one machine; how it ran. Raises ForkFailed or SandboxError."""
    runtime = QemuRuntime(cache_folder() / "templates")
    try:
        (sandbox,) = await runtime.fork([SandboxSpec(KEY, "probe", 0, SandboxLimits())])
        result = await sandbox.call(PythonRequest("print(6 * 7)"))
    finally:
        await runtime.close()
    if not isinstance(result, ExecResult) or result.stdout != b"42\n":
        raise SandboxError("lost", f"it answered {result!r}")
    return str(runtime.verdict)


def main() -> int:
    """Command-line entry."""
    try:
        if "--tools" in sys.argv:
            tools = find_tools()
            told = f"{tools.qemu}, guest kernel {tools.kernel.name}"
        else:
            told = asyncio.run(probe())
    except (ForkFailed, SandboxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
