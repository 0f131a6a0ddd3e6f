"""Exec wrapper: `python -I -S pdeathsig.py SIGNAL PARENT COMMAND...` (see `infra.process`).

Run by path, standard library only, so that it costs a bare interpreter start and nothing more.
"""

import ctypes
import os
import sys


def main(arguments: list[str]) -> None:
    """Ask for the parent-death signal, check that the parent still lives, become the command."""
    number, parent, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(1, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
