"""`venus plan` and `venus jobs whatif`: what a job would take, before it is run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from venusrl.cli.output import AsJson, connected, write_json, write_line, write_table

if TYPE_CHECKING:
    from venusrl.models.plans import Forecast, Interval, PlanResult

LABELS: Final[Mapping[str, str]] = {
    "step_s": "seconds a step",
    "total_s": "seconds in all",
    "staleness_mean": "staleness",
    "engine_use": "engine use",
    "active": "active sequences an engine",
    "sandboxes": "sandboxes",
    "sandboxes_peak": "sandboxes, peak",
    "cost_usd": "cost, USD",
}
"""Figures in the order in which they are printed."""

SURE: Final = ("forecast", "10 %", "90 %")
"""Headings of an interval."""

GUESSED: Final = ("guess", "low", "high")
"""Where nothing is known: the same numbers are no forecast with an interval."""

Steps = Annotated[int | None, typer.Option(min=1, max=200, help="Steps to simulate.")]
Replicas = Annotated[int | None, typer.Option(min=4, max=64, help="Simulated runs.")]
Seed = Annotated[int, typer.Option(min=0)]
Engines = Annotated[
    int | None, typer.Option("--workers", "--engines", min=1, max=4096, help="Engine hosts.")
]
Sandboxes = Annotated[int | None, typer.Option(min=2, help="Sandboxes at once.")]
Slots = Annotated[int | None, typer.Option(min=1, max=4096, help="Of each engine.")]
EngineKind = Annotated[
    str | None, typer.Option("--engine", help="An engine of the table: 8b-h100, ...")
]


def plan(
    spec: Annotated[
        Path, typer.Argument(dir_okay=False, help="Job spec, YAML or JSON; - is standard input.")
    ],
    engines: Engines = None,
    sandboxes: Sandboxes = None,
    slots: Slots = None,
    engine: EngineKind = None,
    profile: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="What rollouts do, YAML or JSON."),
    ] = None,
    steps: Steps = None,
    replicas: Replicas = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Forecast a job: step time, time to the end, staleness, engine use, cost, each with 80 %."""
    from venusrl._spec import read_spec
    from venusrl.cli.jobs import _document

    pool = _pool(engines, sandboxes, slots, engine)
    with connected(as_json, is_lasting=True) as client:
        declared = None if profile is None else read_spec(profile)
        asked = client.plans.create(
            _document(spec, None),
            pool=pool,
            profile=declared,
            steps=steps,
            replicas=replicas,
            seed=seed,
        )
        result = client.plans.wait(asked)
    _show(result, as_json)


def whatif(
    job_id: str,
    engines: Engines = None,
    max_staleness: Annotated[int | None, typer.Option(min=0, max=64)] = None,
    async_ratio: Annotated[float | None, typer.Option(min=1.0, max=16.0)] = None,
    strategy: Annotated[str | None, typer.Option(help="venus, slime-sync, ...")] = None,
    order: Annotated[str | None, typer.Option(help="oldest, nearest or longest.")] = None,
    group_size: Annotated[int | None, typer.Option(min=2, max=512)] = None,
    groups_per_batch: Annotated[int | None, typer.Option(min=1, max=4096)] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One value: stop.max_steps=200; repeatable.")
    ] = None,
    sandboxes: Sandboxes = None,
    slots: Slots = None,
    engine: EngineKind = None,
    steps: Steps = None,
    replicas: Replicas = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """A recorded job under other settings; first the unchanged ones beside what really happened."""
    from venusrl._spec import laid_over

    scheduling = {
        "max_staleness": max_staleness,
        "async_ratio": async_ratio,
        "strategy": strategy,
        "order": order,
    }
    rollout = {"group_size": group_size, "groups_per_batch": groups_per_batch}
    with connected(as_json, is_lasting=True) as client:
        changes = laid_over(_given(scheduling=scheduling, rollout=rollout), values or [])
        asked = client.plans.whatif(
            job_id,
            changes,
            pool=_pool(engines, sandboxes, slots, engine),
            steps=steps,
            replicas=replicas,
            seed=seed,
        )
        result = client.plans.wait(asked)
    _show(result, as_json)


def _given(**parts: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        name: {key: value for key, value in part.items() if value is not None}
        for name, part in parts.items()
    }
    return {name: part for name, part in kept.items() if part}


def _pool(
    engines: int | None, sandboxes: int | None, slots: int | None, engine: str | None
) -> dict[str, Any]:
    pool = {"engines": engines, "sandboxes": sandboxes, "slots": slots, "engine": engine}
    return {name: value for name, value in pool.items() if value is not None}


def _show(result: "PlanResult", as_json: bool) -> None:
    if as_json:
        write_json(result)
        return
    if result.warning is not None:
        write_line(f"warning: {result.warning}")
    if result.recorded is not None and result.unchanged is not None:
        _show_error(result)
    if result.changed is not None:
        write_line("changed settings, each figure corrected by its own error above")
        _show_forecast(result.changed, SURE)
    if result.forecast is not None:
        _show_forecast(result.forecast, SURE if result.warning is None else GUESSED)
    for one in result.assumptions:
        write_line(f"{one.source}: {one.input}: {one.detail}")
    if result.cut_short:
        write_line("cut short: the limit of CPU seconds was reached")


def _show_error(result: "PlanResult") -> None:
    """Its own error on what is known, before anything that is not."""
    assert result.recorded is not None
    assert result.unchanged is not None
    made, simulated = result.recorded.steps, result.unchanged.steps
    part = "" if simulated == made else f", the first {simulated} simulated"
    write_line(f"unchanged settings beside what happened, {made} steps{part}")
    real = dict(result.recorded.figures)
    rows: list[tuple[object, ...]] = []
    for name, label, interval in _figures(result.unchanged):
        off = f"{result.error[name]:+.0%}" if name in result.error else "-"
        rows.append((label, _number(real[name]), *_cells(interval), off))
    write_table(("", "recorded", *SURE, "error"), rows)
    write_line("")


def _show_forecast(one: "Forecast", columns: tuple[str, str, str]) -> None:
    rows: list[tuple[object, ...]] = []
    for name, label, interval in _figures(one):
        said = f"{label} of {one.slots}" if name == "active" else label
        rows.append((said, *_cells(interval)))
    rows += [(f"staleness {lag}, share", *_cells(share)) for lag, share in enumerate(one.staleness)]
    write_table(("", *columns), rows)
    write_line(f"{one.engines} engines, {one.steps} steps simulated {one.replicas} times")
    write_line("")


def _figures(one: "Forecast") -> "Iterator[tuple[str, str, Interval]]":
    for name, label in LABELS.items():
        if name in one.figures:
            yield name, label, one.figures[name]


def _cells(interval: "Interval") -> tuple[str, str, str]:
    return _number(interval.median), _number(interval.low), _number(interval.high)


def _number(value: float) -> str:
    return f"{value:.4g}"
