"""Sandboxes of a project, apart from any job, and the templates that they start from."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from venusrl.models._base import Answer, Wire

MEMBERS_MAX = 64
LIFETIME_S_MAX = 86_400.0
EXEC_S_MAX = 300.0
OUTPUT_BYTES_MAX = 1 << 20
VARIABLES_MAX = 64
VARIABLES_CHARS_MAX = 32_768
ARGUMENTS_MAX = 1024
COMMAND_CHARS_MAX = 100_000
STDIN_CHARS_MAX = 1 << 20
PATH_CHARS_MAX = 4096

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:50]!r} is no name of a variable")
        if "\x00" in text:
            raise ValueError(f"the value of {name} holds a NUL character")
    if sum(len(name) + len(text) for name, text in value.items()) > VARIABLES_CHARS_MAX:
        raise ValueError(f"all variables together have more than {VARIABLES_CHARS_MAX} characters")
    return value


def _words(value: str | list[str]) -> str | list[str]:
    words = [value] if isinstance(value, str) else value
    if not words or not words[0]:
        raise ValueError("a command needs a program")
    if any("\x00" in word for word in words):
        raise ValueError("a command holds no NUL character")
    if not isinstance(value, str) and "=" in value[0]:
        raise ValueError("the name of a program holds no '='")
    if sum(map(len, words)) > COMMAND_CHARS_MAX:
        raise ValueError(f"a command has at most {COMMAND_CHARS_MAX} characters")
    return value


Variables = Annotated[dict[str, str], Field(max_length=VARIABLES_MAX), AfterValidator(_variables)]
"""Values are never shown again."""

Command = Annotated[
    Annotated[str, Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1, max_length=ARGUMENTS_MAX)],
    AfterValidator(_words),
]
"""A text runs in `/bin/sh`; a list is a program and its arguments."""

Lifetime = Annotated[float, Field(gt=0, le=LIFETIME_S_MAX)]
"""Seconds."""

SandboxState = Literal["requested", "running", "paused", "ended"]

SandboxCause = Literal[
    "killed",
    "timed_out",
    "exited",
    "out_of_memory",
    "memory_pressure",
    "lost",
    "node_agent_lost",
    "no_room",
    "never_fits",
    "start_failed",
]


class SandboxCreate(Wire):
    """Body of POST /v1/sandboxes: `n` sandboxes as one fork, started together or not at all."""

    template: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    n: Annotated[int, Field(ge=1, le=MEMBERS_MAX)] = 1
    lifetime_s: Lifetime = 300.0
    """From its start; pauses do not count."""
    env: Variables = Field(default_factory=dict)
    """Variables of every command."""


class SandboxTimeout(Wire):
    """Body of /timeout: how long it lives from now on; a paused one, from when it goes on."""

    lifetime_s: Lifetime


class SandboxExec(Wire):
    """Body of /exec. Commands of one sandbox run one after the other."""

    command: Command
    stdin: Annotated[str, Field(max_length=STDIN_CHARS_MAX)] = ""
    env: Variables = Field(default_factory=dict)
    """Variables of this command, beside the sandbox's own."""
    timeout_s: Annotated[float, Field(gt=0, le=EXEC_S_MAX)] = 30.0
    """When it is over all processes of the command are killed."""
    output_bytes: Annotated[int, Field(ge=0, le=OUTPUT_BYTES_MAX)] = OUTPUT_BYTES_MAX
    """Kept of each stream."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """Of stdin and of both streams of the answer."""


class Sandbox(Answer):
    """One sandbox. Its variables are named, their values never shown."""

    id: str
    project_id: str
    group_id: str
    """The fork that it was made in."""
    member: int
    template: str
    state: SandboxState
    desired: Literal["running", "paused", "ended"]
    """What was asked of it last; its state follows."""
    env_names: list[str]
    lifetime_s: float
    ends_at: datetime | None = None
    """When its lifetime, its wait or its pause ends."""
    left_s: float | None = None
    """What a paused one has left of its lifetime."""
    cause: SandboxCause | None = None
    """Why it ended."""
    detail: str = ""
    """The cause in words; while it is requested, what it waits for."""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None


class SandboxGroup(Answer):
    """A fork and its members."""

    id: str
    sandboxes: list[Sandbox]


class Executed(Answer):
    """How a command ended. A command that fails has an exit code, no error."""

    end: Literal["exited", "timed_out"]
    exit_code: int
    """128 and more: the number of the signal that ended it, above 128."""
    stdout: str
    stderr: str
    encoding: Literal["utf-8", "base64"]
    """As utf-8, bytes that are none are shown as U+FFFD."""
    is_truncated: bool
    truncated_bytes: int
    """What both streams lost to the limit."""
    wall_s: float


class SandboxMetrics(Answer):
    """What a sandbox costs now."""

    at: datetime
    private_bytes: int
    """Memory that no other sandbox shares, swapped pages included."""
    swapped_bytes: int
    shared_bytes: int
    """Mapped of what it was cloned from: in memory once for all."""
    overhead_bytes: int
    """What its machine's own process holds besides."""
    declared_bytes: int
    """Its ceiling."""
    processes: int
    cpu_s: float | None = None
    """CPU seconds so far; null where the runtime does not measure it."""


class Template(Answer):
    """What sandboxes start from, on nodes of one runtime."""

    name: str
    runtime: str
    nodes: int
    """That serve it now."""
    can: dict[str, Any]
    """What the runtime can do; what it cannot answers 501."""
    limits: dict[str, float]
    """Ceilings of one sandbox."""


class Templates(Answer):
    """All of them."""

    data: list[Template]
