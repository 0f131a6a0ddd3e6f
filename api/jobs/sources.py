"""What a spec names outside itself: its base model, and datasets that give an environment its tasks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from api.jobs.outcome import Outcome
from api.jobs.resolution import put_at
from api.jobs.uses import PlacedUse
from api.problems import near_names
from stores import datasets
from stores.unit_of_work import AsyncConnection

REF: Final = re.compile(r"([a-z][a-z0-9_-]{0,62})(@[0-9]{1,9})?")

NAMES_MAX: Final = 64
"""Datasets looked up for one spec; a spec with more is refused anyhow."""


def base_named(body: Any) -> object:
    """`model.base` of a document that nobody has validated yet."""
    model = body.get("model") if isinstance(body, dict) else None
    return model.get("base") if isinstance(model, dict) else None


def _datasets_named(body: Any) -> Iterator[str]:
    evaluation = body.get("evaluation") if isinstance(body, dict) else None
    for environment in (*_environments_in(body), *_environments_in(evaluation)):
        uses = environment.get("datasets") if isinstance(environment, dict) else None
        for use in uses if isinstance(uses, list) else ():
            ref = use.get("ref") if isinstance(use, dict) else None
            match = REF.fullmatch(ref) if isinstance(ref, str) else None
            if match is not None:
                yield match[1]


def _environments_in(part: Any) -> Sequence[Any]:
    environments = part.get("environments") if isinstance(part, dict) else None
    return environments if isinstance(environments, list) else ()


async def known_datasets(
    connection: AsyncConnection, project_id: str, body: Any
) -> Mapping[str, Sequence[Any]]:
    """Version rows, oldest first, of all datasets of the project; read only for those named."""
    named = sorted(set(_datasets_named(body)))[:NAMES_MAX]
    if not named:
        return {}
    found: dict[str, Sequence[Any]] = dict.fromkeys(
        await datasets.names(connection, project_id), ()
    )
    for name in found.keys() & set(named):
        found[name] = await datasets.all_versions(connection, project_id, name)
    return found


def check_datasets(
    placed: PlacedUse,
    normal: dict[str, Any],
    known: Mapping[str, Sequence[Any]],
    outcome: Outcome,
) -> dict[str, int]:
    """Pin each dataset to a ready version; returns rows by split that datasets provide."""
    provided: dict[str, int] = {}
    refs = [use.ref for use in placed.use.datasets]
    for number, use in enumerate(placed.use.datasets):
        pointer = f"{placed.pointer}/datasets/{number}/ref"
        row = _ready_version(use.ref, known, pointer, outcome)
        if row is None:
            continue
        pinned = f"{use.ref.partition('@')[0]}@{row.version}"
        put_at(normal, pointer, pinned)
        refs[number] = pinned
        if pinned != use.ref:
            outcome.resolved.append((pointer, pinned, "the newest ready version"))
        for split, file in row.files.items():
            provided[split] = provided.get(split, 0) + int(file["rows"] or 0)
    for ref in sorted({ref for ref in refs if refs.count(ref) > 1}):
        message = f"The dataset {ref} is named twice."
        outcome.error(
            f"{placed.pointer}/datasets", "repeated_dataset", message, "Raise its weight."
        )
    return provided


def _ready_version(
    ref: str, known: Mapping[str, Sequence[Any]], pointer: str, outcome: Outcome
) -> Any:
    name, _, number = ref.partition("@")
    if name not in known:
        near = near_names(name, list(known))
        message = f"There is no dataset {name!r} in this project."
        outcome.error(pointer, "unknown_dataset", message, f"See GET /v1/datasets.{near}")
        return None
    rows = known[name]
    ready = [r for r in rows if r.state == "ready" and number in ("", str(r.version))]
    if not ready:
        states = ", ".join(f"{row.version}: {row.state}" for row in rows[-5:]) or "none"
        message = f"Dataset {name!r} has no such ready version."
        outcome.error(pointer, "version_not_ready", message, f"Newest versions: {states}.")
        return None
    return ready[-1]
