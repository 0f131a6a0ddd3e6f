"""The guest agent: process 1 of a sandbox, which answers its host over fd 0, a stream socket.

Runs as `python -I -S -X utf8 -c START MEMORY PIDS DISK FILES`, or in a fork of the zygote, standard
library only and few imports, for it starts with every sandbox. One loop serves everything: a request
begins a job or is answered at once, jobs of any number run beside each other, and each round takes one
chunk of each at most. Frames are those of `wire.py`; the second field of most names a channel, a number
that the host gives a request and that all frames about it repeat.

    exec CH TIMEOUT_MS CAP CREDIT ROWS COLUMNS FOLDER PAIRS [NAME VALUE]... ARGV...
    python CH TIMEOUT_MS CAP SOURCE
    -> started CH PID, then out CH BYTES | err CH BYTES | took CH SIZE ...,
       then end CH CODE SIGNAL TIMED_OUT TRUNCATED
    data CH BYTES   eof CH   signal CH NUMBER   resize CH ROWS COLUMNS   credit CH SIZE   stop CH
    requests about files: `files.py`
    shutdown
    hello PROTOCOL PYTHON comes first of all; error CH REASON DETAIL instead of any answer

ROWS 0 means pipes, else a terminal. Credit is what may be sent of the outputs: the host gives more as
its reader reads. CAP bounds each stream: what comes after it is counted and dropped, and needs no
credit. `took` says how much input a program has taken. What is said of a channel that has ended is
ignored: it was on its way. Nothing in here is a boundary: the host treats every byte as hostile.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from sandboxes.guest import files, jobs, wire

PROTOCOL = 2
UNLIMITED = 1 << 60

TICK_S = 0.5
"""A sleep of the whole sandbox, paused or starved of CPU, costs a job at most twice this of its time,
give or take a wake-up."""


class Agent:
    """All that runs in this sandbox at the host's wish."""

    def __init__(self) -> None:
        self._jobs: dict[bytes, jobs.Program | jobs.Evaluation] = {}
        self._interpreter: jobs.Interpreter | None = None
        self._at = time.monotonic()

    def serve(self) -> None:
        """Answer requests until the host closes the socket or asks to stop."""
        is_wanted = True
        while is_wanted:
            poller, owners = select.poll(), {}
            poller.register(0, select.POLLIN)
            for job in self._jobs.values():
                for fd, mask in job.interest().items():
                    poller.register(fd, mask)
                    owners[fd] = job
            events = poller.poll(self._wait_ms())
            self._charge()
            for fd, mask in events:
                if fd:
                    owners[fd].ready(fd, mask)
                else:
                    is_wanted = self._take_request()
            self._conclude()
            self._reap()

    def _wait_ms(self) -> float | None:
        """How long nothing may happen; for ever while no job has a limit."""
        left = min((job.left_s for job in self._jobs.values()), default=float("inf"))
        return None if left > UNLIMITED / 2000 else max(0.0, min(left, TICK_S)) * 1000

    def _charge(self) -> None:
        """Take the time that passed off all jobs; only time in which this process could run counts."""
        now = time.monotonic()
        passed, self._at = min(now - self._at, 2 * TICK_S), now
        for job in self._jobs.values():
            job.left_s -= passed
            if job.left_s <= 0:
                job.expire()

    def _conclude(self) -> None:
        for channel, job in tuple(self._jobs.items()):
            if job.conclude():
                del self._jobs[channel]
                if isinstance(job, jobs.Evaluation) and not job.lives:
                    self._interpreter = None

    def _reap(self) -> None:
        """Collect orphans that ended, but nothing of ours: process 1 is everybody's parent."""
        kept = {job.pid for job in self._jobs.values()}
        if self._interpreter is not None:
            kept.add(self._interpreter.pid)
        peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while (ended := os.waitid(os.P_ALL, 0, peek)) and ended.si_pid not in kept:
                os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            return

    def _take_request(self) -> bool:
        """Read one; False when there is no more."""
        request = wire.receive()
        if not request or request[0] == b"shutdown":
            return False
        kind, channel, words = request[0], request[1], request[2:]
        if kind == b"exec":
            self._begin(channel, words)
        elif kind == b"python":
            self._evaluate(channel, words)
        elif kind in TOLD:
            self._tell(kind, channel, words)
        else:
            frames = files.answer(kind, words)
            wire.send_packed(b"".join(wire.pack([one[0], channel, *one[1:]]) for one in frames))
        return True

    def _begin(self, channel: bytes, words: list[bytes]) -> None:
        try:
            os.chdir(words[5] or files.HOME)
            program = jobs.start_program(channel, words)
        except OSError as error:
            is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            reason = b"not_found" if is_missing else b"denied"
            wire.send([b"error", channel, reason, str(error).encode(errors="backslashreplace")])
            return
        finally:
            os.chdir(files.HOME)
        if program is not None:
            self._jobs[channel] = program

    def _evaluate(self, channel: bytes, words: list[bytes]) -> None:
        seconds, cap = int(words[0]) / 1000, int(words[1])
        try:
            self._interpreter = self._interpreter or jobs.Interpreter()
        except OSError as error:
            outputs = jobs.Outputs(channel, cap, 0, {})
            wire.send([b"started", channel, b"0"])
            outputs.say(str(error))
            outputs.end(126, 0, False)
            return
        one = self._interpreter
        wire.send([b"started", channel, b"%d" % one.pid])
        outputs = jobs.Outputs(channel, cap, UNLIMITED, {one.out: b"out", one.err: b"err"})
        self._jobs[channel] = jobs.Evaluation(outputs, one, words[2], seconds)

    def _tell(self, kind: bytes, channel: bytes, words: list[bytes]) -> None:
        job = self._jobs.get(channel)
        if job is None:
            return
        if kind == b"data":
            job.data(words[0])
        elif kind == b"credit":
            job.outputs.credit += int(words[0])
        elif kind == b"signal":
            job.signal(int(words[0]))
        elif kind == b"resize":
            job.resize(int(words[0]), int(words[1]))
        elif kind == b"eof":
            job.eof()
        else:
            job.stop()


TOLD = frozenset((b"data", b"eof", b"signal", b"resize", b"credit", b"stop"))
"""What is said to a job that runs; nothing answers it."""


def limit(memory: int, pids: int, disk: int, files: int) -> None:
    """Hard limits of this process and all that it will start; nobody inside can raise them."""
    for kind, value in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, pids),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def start(caps: list[int]) -> None:
    """Close the host's files that came along, set the limits, say hello, serve."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    limit(*caps)
    os.makedirs(files.HOME + "/.tmp", exist_ok=True)
    wire.send([b"hello", b"%d" % PROTOCOL, sys.version.split()[0].encode()])
    Agent().serve()
