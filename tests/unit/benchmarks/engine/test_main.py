"""What the command prints: figures, or why there are none."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import report, slots
from benchmarks.engine.__main__ import Part, measure
from benchmarks.engine.figures import spread
from benchmarks.engine.vllm_side import NotRun

NOTHING = argparse.Namespace()


def test_a_part_that_cannot_run_says_why_in_both_forms(tmp_path: Path) -> None:
    def refuse(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
        raise NotRun("no such thing here")

    record, text = measure(Part(refuse, report.slot_table), NOTHING, tmp_path)
    assert record == {"not_run": "no such thing here"}
    assert text == "Not run: no such thing here\n"


def test_figures_are_a_table_and_plain_data(tmp_path: Path) -> None:
    one = slots.figures(slots.CASES[0], [slots.Probe(16, 1, 1), slots.Probe(16, 1, 2)])
    record, text = measure(
        Part(lambda arguments, folder: [one], report.slot_table), NOTHING, tmp_path
    )
    assert json.loads(json.dumps(record)) == [
        {
            "case": slots.CASES[0].name,
            "busy": {"median": 16.0, "least": 16, "most": 16, "count": 2},
            "slot_steps": {"median": 1.0, "least": 1, "most": 1, "count": 2},
            "token_steps": {"median": 1.5, "least": 1, "most": 2, "count": 2},
        }
    ]
    assert text.splitlines()[-1].split()[-2:] == [f"{spread([1.0, 2.0]).median:,.0f}", "(1-2)"]
