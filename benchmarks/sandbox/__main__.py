"""The sandbox benchmark: `python -m benchmarks.sandbox`; a few minutes on one core.

Prints a line for each check, then the tables, or JSON with `--json`; `--write FOLDER` keeps both there.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.sandbox.cells import baselines, demand, run_cell
from benchmarks.sandbox.checks import all_checks, cells_of
from benchmarks.sandbox.placement import measure_all
from benchmarks.sandbox.report import as_json, markdown
from benchmarks.sandbox.results import Results


def main() -> int:
    """Run, print; 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument(
        "--cells", nargs="+", help="only cells whose name contains one of these words"
    )
    parser.add_argument("--no-placement", action="store_true", help="simulated nodes only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="folder for sandbox.md and sandbox.json")
    asked = parser.parse_args()
    cells = {}
    for cell in cells_of(asked.cells):
        cells[cell] = run_cell(cell)
        print(f"{cell.name}: {cells[cell].sandboxes:.0f} sandboxes", file=sys.stderr, flush=True)
    placement = [] if asked.no_placement else measure_all()
    results = Results(cells, baselines(), placement, demand()[1])
    if asked.json:
        print(as_json(results), end="")
    else:
        for check in all_checks(results):
            print(f"{check.verdict:7} {check.what}: {check.reached} (wanted {check.wanted})")
        print(f"\n{markdown(results)}", end="")
    if asked.write:
        asked.write.mkdir(parents=True, exist_ok=True)
        (asked.write / "sandbox.md").write_text(markdown(results))
        (asked.write / "sandbox.json").write_text(as_json(results))
    return any(check.passed is False for check in all_checks(results))


if __name__ == "__main__":
    sys.exit(main())
