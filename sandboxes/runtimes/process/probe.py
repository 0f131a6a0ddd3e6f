"""Whether a sandbox starts here: `python -m sandboxes.runtimes.process.probe [zygote|seccomp]`.

Forks one exactly as the node agent does, runs code in it and destroys it. Exits 0 when it did;
otherwise 1, with the cause on standard error. With `zygote` it must come from a zygote, with `seccomp`
run under a filter of system calls. Without a word bubblewrap must work too.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from domain.ids import AttemptId, group_id
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.ports import ForkFailed, SandboxSpec
from sandboxes.runtimes.process.runtime import ProcessRuntime
from sandboxes.runtimes.process.zygote import WARM_MODULES
from venusrl.env.sandbox import ExecResult, PythonRequest, SandboxError

ATTEMPT: Final = AttemptId("att_probe")
KEY: Final = MemberKey(ATTEMPT, group_id(ATTEMPT, 0), 0, 1, SandboxPurpose.AGENT)


async def probe(wanted: str) -> None:
    """Start, use and end one sandbox. Raises ForkFailed or SandboxError."""
    with tempfile.TemporaryDirectory(prefix="venus-probe-") as folder:
        runtime = ProcessRuntime(Path(folder, "guest"), WARM_MODULES if wanted else None)
        try:
            (sandbox,) = await runtime.fork([SandboxSpec(KEY, "probe", 0, SandboxLimits())])
            result = await sandbox.call(PythonRequest("print(6 * 7)"))
            if wanted == "zygote" and runtime.zygote_failure is not None:
                raise ForkFailed(runtime.zygote_failure)
            if wanted == "seccomp" and not runtime.capabilities().syscall_filter:
                raise ForkFailed("no library libseccomp compiles the filter of system calls")
        finally:
            await runtime.close()
    if not isinstance(result, ExecResult) or result.stdout != b"42\n":
        raise SandboxError("lost", f"it answered {result!r}")


def main() -> int:
    """Command-line entry."""
    try:
        asyncio.run(probe("".join(sys.argv[1:2])))
    except (ForkFailed, SandboxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
