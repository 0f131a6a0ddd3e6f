"""Requirements of packages on this machine: built once, kept in the user's cache by their hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from venusrl.env.host.dependencies import PackageSource, build
from venusrl.env.host.requirements import pinned

CACHE_VARIABLE: Final = "XDG_CACHE_HOME"
CACHE_FOLDER: Final = "venusrl/dependencies"
"""Below the user's cache; whoever deletes it makes the next command build again."""


def cache_folder() -> Path:
    """Where built folders lie, by the hash of pins and interpreter."""
    named = os.environ.get(CACHE_VARIABLE)
    base = Path(named) if named else Path.home() / ".cache"
    return base / CACHE_FOLDER


async def built_here(package: Path) -> Path | None:
    """The built requirements of a package; None when it has none. Raises PackageInvalid."""
    requirements = pinned(package)
    if not requirements.pins:
        return None
    target = cache_folder() / requirements.key
    if not target.is_dir():
        await build(requirements, target, PackageSource.of_machine(os.environ))
    return target
