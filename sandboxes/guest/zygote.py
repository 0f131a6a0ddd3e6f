"""The zygote: a warm interpreter that has the guest agent imported and forks itself into sandboxes.

One per runtime and node, started by the runtime with its plan; it serves requests on fd 0, a
sequenced-packet socket, one JSON text each, and runs no code of a sandbox itself:

    fork: {hostname, uid, ...} with the agent's socket and a pipe for a last complaint
    -> {} with the pidfd, or {"error": TEXT}

It is process 1 of a pid namespace in which each member has one of its own: when it ends, the kernel ends
them all. It ends with its parent, which only waits for it, and that one ends with the runtime. Pages
that it holds before the first fork are shared by all members until they write: everything is imported
first, then frozen, so that no collection of garbage writes to them. Guest code: standard library only,
Python 3.9 on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from sandboxes.guest import agent, confine, kernel, root

NAME = "venus-zygote"
"""Members are named after their host names."""

REQUEST_BYTES_MAX = 1 << 16
COMPLAINT_BYTES_MAX = 1024


def main(plan_path: str) -> None:
    """Warm up, move into the root, answer forks until the runtime is gone."""
    kernel.die_with_parent(signal.SIGKILL)
    control = socket.socket(fileno=0)
    try:
        with open(plan_path, encoding="utf-8") as text:
            plan = json.load(text)
        if os.getppid() != plan["parent"]:
            return
        if not kernel.supported():
            raise OSError("no numbers of system calls for this kind of processor")
        for name in plan["warm"]:
            importlib.import_module(name)
        root.leave_host(plan["user_namespace"])
        if waiting := os.fork():
            control.close()
            os.waitpid(waiting, 0)
            return
        kernel.die_with_parent(signal.SIGKILL)
        kernel.name_process(NAME)
        root.build(plan)
    except (OSError, ImportError) as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps members: pidfds tell of them
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    gc.collect()
    gc.freeze()
    answer(control, os.pidfd_open(os.getpid()))
    serve(control, own_pids, bytes.fromhex(plan["filter"]))


def serve(control: socket.socket, own_pids: int, filter_program: bytes) -> None:
    """Answer requests until the other end is closed."""
    while True:
        text, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 2)
        if not text:
            return
        try:
            pidfd = fork_member(json.loads(text), fds, filter_program)
        except OSError as error:
            control.send(json.dumps({"error": str(error)}).encode())
        else:
            answer(control, pidfd)
        finally:
            kernel.setns(own_pids, kernel.CLONE_NEWPID)
            for fd in fds:
                os.close(fd)


def answer(control: socket.socket, pidfd: int) -> None:
    """Hand over a process: numbers mean something else on the other side."""
    socket.send_fds(control, [b"{}"], [pidfd])
    os.close(pidfd)


def fork_member(member: dict[str, Any], fds: list[int], filter_program: bytes) -> int:
    """One child, process 1 of a new pid namespace: its pidfd."""
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            become(member, fds, filter_program)
        finally:
            os._exit(1)
    return os.pidfd_open(pid)


def become(member: dict[str, Any], fds: list[int], filter_program: bytes) -> None:
    """Turn into the sandbox and serve it to its end."""
    agent_socket, complaint = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.dup2(agent_socket, 0)
        confine.confine(member, filter_program)
        os.environ.clear()
        os.environ.update(member["variables"])
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        agent.start(member["caps"])
    except OSError as error:
        os.write(complaint, str(error).encode()[:COMPLAINT_BYTES_MAX])


if __name__ == "__main__":
    main(sys.argv[1])
