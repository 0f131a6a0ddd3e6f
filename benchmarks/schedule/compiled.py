"""The hand-run benchmark on compiled modules: the same results for a fraction of the CPU.

    python -m benchmarks.schedule.compiled benchmarks.schedule.cells --minutes 60

What a run imports of the pure packages and the simulator is copied to `out/compiled/DIGEST`, compiled
there by mypyc, and put before the tree; the module named is then run as ever. The digest is that of the
sources, by which records are known too, so a compiled run and an interpreted one are one record. A build
is used once a few small runs gave what the interpreter gives, to the last digit. It needs a C compiler.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.schedule.records import CODE, ROOT, code_digest

BUILDS: Final = ROOT / "out" / "compiled"

INTERPRETED: Final = {
    "kv.shares": "a generic dataclass, which mypyc cannot build",
    "scheduler.core.indexes": "an exception class, which mypyc cannot derive from a built-in one",
}
"""Modules left as they are, and why. None of them is called often."""

ENTRY: Final = "benchmarks.schedule.run"

TRIED: Final = (
    ("mid", "venus", "--tier", "--batches", "2"),
    ("mid", "venus", "--off", "demotion", "--batches", "2"),
    ("mid", "rollflash", "--batches", "2"),
    ("mid", "thunderagent-upstream", "--batches", "2"),
    ("mid", "ttl", "--batches", "2"),
)
"""Runs that a build must repeat exactly: of each kind of queue and eviction, seconds each."""

SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
extensions = mypycify(sys.argv[1:], opt_level="2", debug_level="0")
setup(name="compiled", packages=[], ext_modules=extensions, script_args=["build_ext", "--inplace"])
"""

LISTING: Final = f"""
import sys
import {ENTRY}, scheduler.core.strategies
print(*sys.modules, sep="\\n")
"""


class BuildFailed(RuntimeError):
    """The modules could not be compiled, or do something else than the interpreted ones."""


def ready_build() -> Path:
    """The folder of this tree's compiled modules, built first when it is not there."""
    folder = BUILDS / code_digest()[:20]
    if folder.is_dir():
        return folder
    BUILDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILDS, prefix="new-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        _copy_sources(place)
        _compile(place, sources_of(imported_by_a_run()))
        _compare(place)
        place.rename(folder)
    return folder


def sources_of(modules: Sequence[str]) -> list[str]:
    """Files of those modules that are compiled, in order."""
    packages = tuple(one.replace("/", ".") for one in CODE)
    chosen = [
        module
        for module in sorted(modules)
        if module not in INTERPRETED and module.startswith(tuple(f"{one}." for one in packages))
    ]
    paths = [Path(*module.split(".")) for module in chosen]
    return [
        str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))
        for path in paths
    ]


def environment(folder: Path | None) -> dict[str, str]:
    """Of a process that imports from this folder before the tree; None: from the tree alone."""
    places = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    if folder is not None:
        places.insert(0, str(folder))
    path = os.pathsep.join(place for place in places if place)
    # The folder of the call must not come first, or it would hide the build.
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Names of what two records of one case do not share, besides the CPU that they took."""
    names = sorted({*left, *right} - {"cpu_s"})
    return [name for name in names if left.get(name) != right.get(name)]


def imported_by_a_run() -> list[str]:
    """Names of all modules that a run imports."""
    return _output([sys.executable, "-c", LISTING], ROOT, environment(None)).split()


def _copy_sources(place: Path) -> None:
    """The packages that decide a run, and those above them, without what was compiled before."""
    for package in CODE:
        for above in Path(package).parents:
            marker = ROOT / above / "__init__.py"
            if marker.exists():
                (place / above).mkdir(parents=True, exist_ok=True)
                shutil.copy(marker, place / above)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, place / package, ignore=ignored)


def _compile(place: Path, sources: Sequence[str]) -> None:
    print(
        f"compiling {len(sources)} modules, some three minutes of CPU", file=sys.stderr, flush=True
    )
    _output([sys.executable, "-c", SETUP, *sources], place, dict(os.environ))
    shutil.rmtree(place / "build")


def _compare(place: Path) -> None:
    """Raises when a small run on the build differs from the interpreter's."""
    for words in TRIED:
        call = [sys.executable, "-m", ENTRY, *words]
        told = [json.loads(_output(call, ROOT, environment(one))) for one in (None, place)]
        differing = differences(told[0], told[1])
        if differing:
            raise BuildFailed(f"{' '.join(words)}: compiled modules give other {differing}")


def _output(call: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        call, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildFailed(f"{' '.join(call[:3])} ended with {done.returncode}:\n{end}")
    return done.stdout


def main() -> None:
    """Become the module named, on compiled modules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="what to run, such as benchmarks.schedule.cells")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its arguments")
    asked = parser.parse_args()
    variables = environment(ready_build())
    os.execve(sys.executable, [sys.executable, "-m", asked.module, *asked.words], variables)


if __name__ == "__main__":
    main()
