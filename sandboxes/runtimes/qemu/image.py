"""The guest's file system: agent, busybox, the drivers it needs, and this machine's Python.

All of it is unpacked into the template's memory, so every clone shares it.
"""

import lzma
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandboxes.runtimes.process.bwrap import ETC, find_interpreter
from sandboxes.runtimes.qemu.build import GUEST
from sandboxes.runtimes.qemu.cpio import Archive
from sandboxes.runtimes.qemu.tools import QemuUnavailable, Tools

DRIVERS: Final = ("virtio_pci", "virtio_console", "virtio_balloon")

LEFT_OUT: Final = frozenset(
    {
        "config-3", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
        "site-packages", "test", "tests", "tkinter", "turtledemo",
    }
)  # fmt: skip
"""Of the standard library: what no tool of a sandbox needs, and most of its size."""

PROGRAM_TIMEOUT_S: Final = 60.0

_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_LIBRARY: Final = re.compile(r"(/\S+) \(0x")


def make_image(tools: Tools, agent: Path, *, with_python: bool = True) -> Archive:
    """All files of the guest. Raises QemuUnavailable."""
    archive = Archive()
    archive.file("init", agent, 0o755)
    for folder in ("dev", "proc", "run", "sys", "work"):
        archive.folder(folder)
    archive.link("tmp", "/work/.tmp")
    for target, text in ETC.items():
        archive.file(target, text.encode())
    _add_busybox(archive, tools.busybox)
    _add_drivers(archive, tools.modules)
    if with_python:
        _add_python(archive)
    return archive


def _add_busybox(archive: Archive, busybox: Path) -> None:
    archive.file("bin/busybox", busybox, 0o755)
    for name in _output([str(busybox), "--list"]).split():
        if name != "busybox":
            archive.link(f"bin/{name}", "busybox")
    for folder in ("usr/bin", "usr/local/bin"):
        archive.folder(folder)
    archive.link("usr/bin/env", "/bin/env")


def _add_drivers(archive: Archive, modules: Path) -> None:
    found = {
        path.name.partition(".")[0].replace("-", "_"): path
        for path in sorted(modules.glob("kernel/**/*.ko*"))
    }
    built_in = modules / "modules.builtin"
    fixed = {
        Path(line).stem.replace("-", "_")
        for line in (built_in.read_text().splitlines() if built_in.exists() else ())
    }
    order: list[str] = []
    for name in DRIVERS:
        _order_driver(name, found, fixed, order, archive)
    archive.file("venus/modules", "".join(f"/venus/{name}.ko\n" for name in order).encode())


def _order_driver(
    name: str, found: dict[str, Path], fixed: set[str], order: list[str], archive: Archive
) -> None:
    """Add a driver after what it needs."""
    if name in order or name in fixed:
        return
    if name not in found:
        raise QemuUnavailable(f"the guest kernel has no driver {name}")
    content = _driver(found[name])
    needs = _DEPENDS.search(content)
    for need in (needs.group(1).decode() if needs else "").split(","):
        if need:
            _order_driver(need.replace("-", "_"), found, fixed, order, archive)
    archive.file(f"venus/{name}.ko", content)
    order.append(name)


def _driver(path: Path) -> bytes:
    if path.name.endswith(".ko"):
        return path.read_bytes()
    if path.name.endswith(".ko.xz"):
        return lzma.decompress(path.read_bytes())
    raise QemuUnavailable(f"cannot unpack the driver {path.name}")


def _add_python(archive: Archive) -> None:
    """The interpreter that `process` sandboxes use, its library, and what both load."""
    python = find_interpreter().path
    about = "import sys, sysconfig; print(sys.version.split()[0], sysconfig.get_path('stdlib'))"
    version, library = _output([python, "-I", "-S", "-c", about]).split()
    archive.file(python, Path(python), 0o755)
    archive.link("usr/local/bin/python3", python)
    shared = [python]
    for path in _library_files(Path(library)):
        archive.file(str(path), path)
        if ".so" in path.name:
            shared.append(str(path))
    for name in sorted(set(_LIBRARY.findall(_output(["ldd", *shared])))):
        if name not in archive:
            archive.file(name, Path(name).resolve(), 0o755)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("evaluate", "warm"):
            archive.file(
                f"venus/{name}.pyc", compile_module(python, name, Path(folder)).read_bytes()
            )
    archive.file("venus/python", f"{python} {version}\n".encode())


def _library_files(library: Path) -> Iterator[Path]:
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        is_left_out = any(part in LEFT_OUT or part.startswith("config-3") for part in parts)
        if path.is_file() and not is_left_out and not re.search(r"\.opt-\d\.pyc$", path.name):
            yield path


def compile_module(python: str, name: str, folder: Path) -> Path:
    """Bytecode of a module of the guest, made by the interpreter that will run it."""
    source, target = folder / f"{name}.py", folder / f"{name}.pyc"
    source.write_bytes((GUEST / f"{name}.py").read_bytes())
    names = f"{str(source)!r}, {str(target)!r}, {name!r}"
    code = f"import py_compile; py_compile.compile({names}, doraise=True, {_UNCHECKED})"
    _output([python, "-I", "-S", "-c", code])
    return target


_UNCHECKED: Final = "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH"
"""The same source gives the same bytes, whenever it is compiled: they are part of a template's key."""


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise QemuUnavailable(f"cannot make the guest's files: {error}") from error
    return done.stdout
