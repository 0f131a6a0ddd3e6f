"""Named places where a test may make a process die, freeze, fail, wait or lose a message.

Code calls `hit("noun.moment")`; unless `VENUS_ALLOW_FAILPOINTS=1` was set when the process called
`configure`, that is one comparison. Armed entries come from `VENUS_FAILPOINTS` and from the file
named by `VENUS_FAILPOINTS_FILE` (default: `failpoints/armed` under `VENUS_HOME`), looked at on
every hit, so that a test can arm a running stack. Grammar (entries split by `;` or newline):

    NAME[@KIND]=ACTION[:ARGUMENT][,count=N][,times=N|*][,id=TEXT]

    kill | stop | exit[:CODE] | raise[:os|timeout|connection] | sleep:SECONDS | drop

`KIND` is the process kind given to `configure`. `count=N` fires at the N-th hit in one process.
`times` (default 1) bounds firings over ALL processes and restarts, so a restarted process does not
die again. Each firing is first written to `fired.jsonl` beside the file.
"""

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

ALLOW_VARIABLE: Final = "VENUS_ALLOW_FAILPOINTS"
ARMED_VARIABLE: Final = "VENUS_FAILPOINTS"
FILE_VARIABLE: Final = "VENUS_FAILPOINTS_FILE"

UNLIMITED: Final = -1
"""`times=*`: fires at every matching hit."""

MAX_TIMES: Final = 1000
"""Bounds the search for a free firing ticket; a test that needs more says `times=*`."""


class FailpointError(Exception):
    """What `raise` raises when no other type was asked for."""


class BadFailpointError(ValueError):
    """An entry that cannot be read, or one armed where failpoints are not allowed."""


class Action(StrEnum):
    """What firing does."""

    KILL = "kill"
    STOP = "stop"
    EXIT = "exit"
    RAISE = "raise"
    SLEEP = "sleep"
    DROP = "drop"


RAISED_TYPES: Final[Mapping[str, type[Exception]]] = {
    "": FailpointError,
    "os": OSError,
    "timeout": TimeoutError,
    "connection": ConnectionResetError,
}
"""The closed set of errors that `raise` can bring about: those that adapters must handle anyway."""

ENTRY: Final = re.compile(
    r"(?P<name>[\w.\-]+)(@(?P<kind>[\w\-]+))?=(?P<action>[a-z]+)(:(?P<argument>[^,]*))?(?P<options>(,\w+=[^,]+)*)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One armed failpoint."""

    name: str
    kind: str | None
    action: Action
    argument: str = ""
    count: int = 1
    times: int = 1
    id: str = ""

    @property
    def ticket(self) -> str:
        """File-safe identity under which firings are counted."""
        return self.id or f"{self.name}@{self.kind or 'any'}={self.action}{self.argument}"


def parse(text: str) -> tuple[Entry, ...]:
    """Read armed entries; raises `BadFailpointError` rather than ignoring a misspelt one."""
    parts = [part.strip() for part in re.split(r"[;\n]", text)]
    return tuple(_parse_entry(part) for part in parts if part and not part.startswith("#"))


def _parse_entry(text: str) -> Entry:
    found = ENTRY.fullmatch(text)
    if found is None:
        raise BadFailpointError(f"not a failpoint entry: {text!r}")
    options = dict(part.split("=", 1) for part in found["options"].split(",") if part)
    unknown = options.keys() - {"count", "times", "id"}
    if unknown or found["action"] not in set(Action):
        raise BadFailpointError(f"unknown action or option in {text!r}")
    action, argument = Action(found["action"]), found["argument"] or ""
    if action is Action.RAISE and argument not in RAISED_TYPES:
        raise BadFailpointError(f"raise knows {sorted(RAISED_TYPES)}, not {argument!r}")
    times = options.get("times", "1")
    return Entry(
        name=found["name"],
        kind=found["kind"],
        action=action,
        argument=argument,
        count=int(options.get("count", "1")),
        times=UNLIMITED if times == "*" else int(times),
        id=options.get("id", ""),
    )


class Controller:
    """The armed entries of one process: counts hits, takes firing tickets, acts."""

    def __init__(self, kind: str, static: tuple[Entry, ...], file: Path) -> None:
        self.kind = kind
        self._static = static
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._dynamic: tuple[Entry, ...] = ()
        self._hits: dict[str, int] = {}

    def hit(self, name: str) -> bool:
        """Count this hit for every matching entry, act on the first that is due; True: drop."""
        self._reload()
        for entry in (*self._static, *self._dynamic):
            if entry.name != name or entry.kind not in (None, self.kind):
                continue
            hits = self._hits[entry.ticket] = self._hits.get(entry.ticket, 0) + 1
            is_due = hits == entry.count if entry.times == 1 else hits >= entry.count
            if is_due and self._take_ticket(entry):
                self._record(entry, hits)
                return _act(entry)
        return False

    def _reload(self) -> None:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._stamp, self._dynamic = None, ()
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._dynamic = parse(self._file.read_text())
            self._stamp = stamp

    def _take_ticket(self, entry: Entry) -> bool:
        if entry.times == UNLIMITED:
            return True
        folder = self._file.parent / "tickets"
        folder.mkdir(parents=True, exist_ok=True)
        for ordinal in range(min(entry.times, MAX_TIMES)):
            try:
                (folder / f"{entry.ticket}.{ordinal}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def _record(self, entry: Entry, hits: int) -> None:
        line = {
            "ticket": entry.ticket,
            "name": entry.name,
            "kind": self.kind,
            "action": entry.action,
            "pid": os.getpid(),
            "hits": hits,
            "at": time.time(),
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with (self._file.parent / "fired.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")


def _act(entry: Entry) -> bool:
    match entry.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Action.EXIT:
            os._exit(int(entry.argument or "1"))
        case Action.RAISE:
            raise RAISED_TYPES[entry.argument](f"failpoint {entry.name}")
        case Action.SLEEP:
            time.sleep(float(entry.argument))
        case Action.DROP:
            return True
    return False


_controller: Controller | None = None


def configure(kind: str, environ: Mapping[str, str] | None = None) -> None:
    """Called once by each process's main: names its kind and arms what the environment allows.

    Raises `BadFailpointError` when something is armed but failpoints are not allowed: a forgotten
    variable must not silently make production fragile, nor a test silently pass.
    """
    global _controller
    source = os.environ if environ is None else environ
    armed = source.get(ARMED_VARIABLE, "")
    if source.get(ALLOW_VARIABLE) != "1":
        if armed:
            raise BadFailpointError(f"{ARMED_VARIABLE} is set without {ALLOW_VARIABLE}=1")
        _controller = None
        return
    home = Path(source.get("VENUS_HOME", ".venus"))
    file = Path(source.get(FILE_VARIABLE) or home / "failpoints" / "armed")
    _controller = Controller(kind, parse(armed), file)


def hit(name: str) -> bool:
    """Mark a place that can be made to fail. True means: drop what you were about to send or do."""
    return _controller is not None and _controller.hit(name)
