"""The fixed numbers of the sandbox benchmark, read from `fixed.toml` beside this file and nowhere else."""

import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sandboxes.core.cost import Prices

FIXED_FILE: Final = Path(__file__).with_name("fixed.toml")


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """The node."""

    cores: float
    memory_bytes: int
    packing: float


@dataclass(frozen=True, slots=True)
class DemandNumbers:
    """What asks for it."""

    members: int
    wave_s: int
    base_bytes: int
    shared_share: float
    ceiling_bytes: int


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """How long, and how often."""

    seconds: int
    measured_from_s: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TemplateNumbers:
    """Of cells with several templates."""

    count: int
    spread: float
    seed: int


@dataclass(frozen=True, slots=True)
class StormNumbers:
    """Of the cell in which every rung is needed."""

    lost_share: float
    at_s: int
    seconds: int
    swap_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class DeclaredNumbers:
    """Of the baselines."""

    ceilings_bytes: tuple[int, ...]
    vcpus: int
    seconds: int


@dataclass(frozen=True, slots=True)
class PlacementNumbers:
    """Of the leader's part."""

    nodes: int
    sandboxes: int
    filled: tuple[float, ...]
    placements: int
    members: int
    templates: int
    seed: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """All of them."""

    node: NodeNumbers
    demand: DemandNumbers
    run: RunNumbers
    templates: TemplateNumbers
    storm: StormNumbers
    declared: DeclaredNumbers
    prices: Prices
    placement: PlacementNumbers
    sha256: str


@cache
def fixed() -> Fixed:
    """The numbers in the tree; a name that nothing reads is a `TypeError`."""
    content = FIXED_FILE.read_bytes()
    table = tomllib.loads(content.decode())
    table["run"]["seeds"] = tuple(table["run"]["seeds"])
    table["declared"]["ceilings_bytes"] = tuple(table["declared"]["ceilings_bytes"])
    table["placement"]["filled"] = tuple(table["placement"]["filled"])
    return Fixed(
        node=NodeNumbers(**table.pop("node")),
        demand=DemandNumbers(**table.pop("demand")),
        run=RunNumbers(**table.pop("run")),
        templates=TemplateNumbers(**table.pop("templates")),
        storm=StormNumbers(**table.pop("storm")),
        declared=DeclaredNumbers(**table.pop("declared")),
        prices=Prices(**table.pop("prices")),
        placement=PlacementNumbers(**table.pop("placement")),
        sha256=hashlib.sha256(content).hexdigest(),
        **table,
    )
