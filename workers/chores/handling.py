"""What a chore's handler gets and how it says that it cannot be done."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from domain.errors import VenusError
from environments.package import unpack
from infra.settings import Settings
from stores.blobs import Blobs
from stores.system.operations import TakenOperation
from stores.unit_of_work import Database
from venusrl.env.host.manifest import Finding


@dataclass(frozen=True, slots=True)
class ChoreTools:
    """The process's handles."""

    settings: Settings
    database: Database
    blobs: Blobs


class ChoreFailed(VenusError):
    """The operation ends as failed with this code; trying again would fail again."""

    def __init__(self, code: str, detail: str) -> None:
        """Keep the closed code apart from the sentence for people."""
        super().__init__(detail)
        self.code = code


Handler: TypeAlias = Callable[[ChoreTools, TakenOperation], Awaitable[Mapping[str, object]]]
"""Does one kind of operation and returns its result. Must be safe to repeat."""


def readable_package(folder: Path, data: bytes) -> Path:
    """Unpack an environment package under `folder`, readable for the sandbox's own user."""
    target = folder / "package"
    unpack(data, target)
    folder.chmod(0o755)
    return target


def finding_json(one: Finding) -> dict[str, str]:
    """A finding of a package as its version stores it."""
    return {
        "pointer": storable(f"/{one.file}{one.pointer}"),
        "code": one.code,
        "message": storable(one.message),
        "hint": one.hint,
        "severity": one.severity,
    }


def storable(text: str) -> str:
    """What user code said, without what no JSON column holds: NUL and halves of characters."""
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    )
