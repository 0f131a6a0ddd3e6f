"""Files of the work folder, whatever links lie in it: the file requests of the reference agent.

    read CH MAX PATH -> bytes CH CONTENT      write CH PATH CONTENT -> ok CH
    stat CH PATH -> entry CH ..., ok CH 1     list CH MAX PATH -> entry CH ..., ok CH WHOLE
    mkdir CH PATH -> ok CH MADE               move CH FROM TO -> ok CH       remove CH PATH -> ok CH
    entry CH NAME KIND SIZE MODE MODIFIED_NS        refused: error CH REASON DETAIL

A path is resolved up to its last part, which is never followed, and must lead into the work folder.
Guest code: standard library only, Python 3.9 on.
"""

from __future__ import annotations

import os
import stat

from sandboxes.guest import wire

HOME = "/work"
REMOVED_ENTRIES_MAX = 10_000
DEPTH_MAX = 64
"""Of a folder that is removed; each level is an open descriptor of the agent."""

Answer = list[list[bytes]]
"""Frames without their channel, which comes second."""


class TooLarge(Exception):
    """More than one request may ask for."""


def inside(path: bytes, may_be_home: bool = False) -> str:
    """The real path of an entry of the work folder; PermissionError for one that leads out of it."""
    joined = os.path.normpath(os.path.join(HOME, os.fsdecode(path)))
    if may_be_home and joined == HOME:
        return HOME
    folder = os.path.realpath(os.path.dirname(joined))
    if folder != HOME and not folder.startswith(HOME + "/"):
        raise PermissionError(f"outside of {HOME}")
    return os.path.join(folder, os.path.basename(joined))


def read_file(limit: int, path: bytes) -> Answer:
    """A regular file's bytes."""
    fd = os.open(inside(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError("not a regular file")
        if status.st_size > limit:
            raise TooLarge(f"{status.st_size} bytes")
        return [[b"bytes", wire.read_exactly(fd, limit)]]
    finally:
        os.close(fd)


def write_file(path: bytes, content: bytes) -> Answer:
    """Replace a regular file, making its folders."""
    target = inside(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermissionError("not a regular file")
        os.ftruncate(fd, 0)
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        return [[b"ok"]]
    finally:
        os.close(fd)


def describe(name: str, status: os.stat_result) -> list[bytes]:
    """One entry, whatever it is."""
    kind = b"other"
    for is_kind, known in (
        (stat.S_ISREG, b"file"),
        (stat.S_ISDIR, b"folder"),
        (stat.S_ISLNK, b"link"),
    ):
        if is_kind(status.st_mode):
            kind = known
    numbers = (status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
    return [b"entry", os.fsencode(name), kind, *(b"%d" % number for number in numbers)]


def stat_entry(path: bytes) -> Answer:
    """What is there, itself."""
    place = inside(path, may_be_home=True)
    return [describe(os.path.basename(place), os.lstat(place)), [b"ok", b"1"]]


def list_folder(limit: int, path: bytes) -> Answer:
    """Entries of a folder by name, so many at most."""
    place = inside(path, may_be_home=True)
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        raise PermissionError("not a folder")
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found: Answer = []
    is_whole = True
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if len(found) == limit:
                    is_whole = False
                    break
                try:
                    found.append(describe(entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # it went away meanwhile
    finally:
        os.close(fd)
    return [*sorted(found), [b"ok", b"%d" % is_whole]]


def make_folder(path: bytes) -> Answer:
    """Make a folder and those above; whether it was not there."""
    place = inside(path, may_be_home=True)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        os.mkdir(place)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise
        return [[b"ok", b"0"]]
    return [[b"ok", b"1"]]


def move_entry(source: bytes, target: bytes) -> Answer:
    """Rename, making the folders above the target."""
    old, new = inside(source), inside(target)
    os.lstat(old)
    os.makedirs(os.path.dirname(new), exist_ok=True)
    os.rename(old, new)
    return [[b"ok"]]


def remove_entry(path: bytes) -> Answer:
    """Remove an entry; of a folder all that it holds, or nothing if that is too much."""
    place = inside(path)
    folder, name = os.path.split(place)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _count(name, fd, 0, REMOVED_ENTRIES_MAX)
        _remove(name, fd)
    finally:
        os.close(fd)
    return [[b"ok"]]


def _folder_names(name: str, parent: int) -> tuple[int, list[str]]:
    """An entry that is a folder, open, and its names; (-1, []) for any other."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        return -1, []
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    return fd, os.listdir(fd)


def _count(name: str, parent: int, depth: int, most: int) -> int:
    """What would be left of `most`. Raises TooLarge."""
    fd, names = _folder_names(name, parent)
    left = most - 1
    try:
        if left < len(names) or depth == DEPTH_MAX:
            raise TooLarge(f"more than {REMOVED_ENTRIES_MAX} entries or {DEPTH_MAX} levels")
        for one in names:
            left = _count(one, fd, depth + 1, left)
    finally:
        if fd >= 0:
            os.close(fd)
    return left


def _remove(name: str, parent: int) -> None:
    fd, names = _folder_names(name, parent)
    if fd < 0:
        os.unlink(name, dir_fd=parent)
        return
    try:
        for one in names:
            _remove(one, fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def answer(kind: bytes, words: list[bytes]) -> Answer:
    """Of one request; what the file system refuses becomes an `error`."""
    try:
        if kind == b"read":
            return read_file(int(words[0]), words[1])
        if kind == b"write":
            return write_file(words[0], words[1])
        if kind == b"stat":
            return stat_entry(words[0])
        if kind == b"list":
            return list_folder(int(words[0]), words[1])
        if kind == b"mkdir":
            return make_folder(words[0])
        if kind == b"move":
            return move_entry(words[0], words[1])
        if kind == b"remove":
            return remove_entry(words[0])
        raise ValueError("not a request")
    except TooLarge as error:
        reason, text = b"too_large", str(error)
    except (FileNotFoundError, NotADirectoryError) as error:
        reason, text = b"not_found", str(error)
    except (OSError, ValueError, IndexError) as error:
        reason, text = b"denied", str(error)
    return [[b"error", reason, text.encode(errors="backslashreplace")]]
