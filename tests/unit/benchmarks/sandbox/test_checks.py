"""What the sandbox benchmark says of figures: pass, FAIL, or missing."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.sandbox.cells import (
    ADMISSION,
    CELLS,
    CPU,
    SHARED,
    STORM,
    Baseline,
    Cell,
    CellRecord,
)
from benchmarks.sandbox.checks import all_checks, cells_of
from benchmarks.sandbox.fixed import fixed
from benchmarks.sandbox.report import as_json, markdown
from benchmarks.sandbox.results import Results, bill_of, saving_over, usage_of
from sandboxes.core.names import GIB
from simulation.sandboxes.baselines import BaselineTally
from simulation.sandboxes.demand import MB
from simulation.sandboxes.node import Tally


def record(cell: Cell = ADMISSION, sandboxes: int = 1_400, **changes: Any) -> CellRecord:
    made: dict[str, Any] = {
        "seconds": 100, "sandbox_s": 100 * sandboxes, "sandbox_s_all": 200 * sandboxes,
        "resident_byte_s": 100 * sandboxes * 225 * MB, "private_byte_s": 100 * sandboxes * 220 * MB,
        "overhead_byte_s": 100 * sandboxes * 5 * MB, "core_s": 100.0,
        "refused": Counter({"memory": 3}), "largest_served": 4_060 * MB, **changes,
    }  # fmt: skip
    return CellRecord(cell, (Tally(**made),))


def results(*records: CellRecord) -> Results:
    others = [
        Baseline("e2b-declared", 2 * GIB, BaselineTally(186.0, 1, 0, 0)),
        Baseline("e2b-oss", 2 * GIB, BaselineTally(200.0, 1, 0, 0)),
    ]
    return Results({one.cell: one for one in records}, others, [], "fitted")


def verdicts(found: Results, word: str) -> list[str]:
    return [one.verdict for one in all_checks(found) if word in one.what]


def test_what_was_not_run_is_missing() -> None:
    empty = Results({}, [], [], "fitted")
    assert {one.verdict for one in all_checks(empty)} == {"missing"}


def test_a_saving_is_of_node_hours_and_must_reach_its_least() -> None:
    assert saving_over(record(), results().baselines[0]) == pytest.approx(1 - 186 / 1_400)
    assert verdicts(results(record()), "over e2b-declared at 2") == ["pass", "missing"]
    low = results(record(sandboxes=1_200))
    assert verdicts(low, "admission by use: saving over e2b-declared at 2") == ["FAIL"]


def test_overflow_above_the_limit_fails() -> None:
    assert verdicts(results(record(overflow_s=2)), f"{ADMISSION.name}: seconds") == ["pass"]
    assert verdicts(results(record(overflow_s=3)), f"{ADMISSION.name}: seconds") == ["FAIL"]


def test_an_early_kill_fails_and_so_does_a_storm_without_kills() -> None:
    killed = Counter({"kill": 5})
    assert verdicts(results(record(STORM, rungs=killed)), "storm") == ["pass"]
    assert verdicts(results(record(STORM, rungs=killed, early_kills=1)), "storm") == ["FAIL"]
    assert verdicts(results(record(STORM)), "storm") == ["FAIL"]


def test_the_binding_resource_must_be_named() -> None:
    bound = record(CPU, refused=Counter({"cpu": 5}))
    assert verdicts(results(bound), f"{CPU.name}: binding") == ["pass"]
    assert verdicts(results(record(CPU, refused=Counter())), f"{CPU.name}: binding") == ["FAIL"]


def test_nobody_above_two_gib_fails() -> None:
    assert verdicts(results(record(largest_served=GIB)), "above 2 GiB") == ["FAIL"]


def test_bills_go_from_declared_over_used_to_shared() -> None:
    alone = bill_of(record(), 2 * GIB)
    assert alone.declared > alone.used == alone.shared
    mapped = record(SHARED, mapped_byte_s=100 * 1_400 * 92 * MB, shared_byte_s=100 * 92 * MB)
    together = bill_of(mapped, 2 * GIB)
    assert together.declared > together.used > together.shared
    assert usage_of(record(), 2 * GIB).byte_s_private == 100 * 1_400 * 225 * MB


def test_reports_name_the_digest_of_the_fixed_numbers() -> None:
    found = results(record())
    assert fixed().sha256 in markdown(found)
    assert fixed().sha256 in as_json(found)
    assert len(fixed().sha256) == 64


def test_cells_are_chosen_by_words_of_their_names() -> None:
    assert cells_of(None) == list(CELLS)
    assert cells_of(["storm"]) == [STORM]
    assert len({cell.name for cell in CELLS}) == len(CELLS)
