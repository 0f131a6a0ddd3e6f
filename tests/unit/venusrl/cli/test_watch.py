"""Following a job through the public API, as lines and as a panel."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from tests.support.scripted_api import Body, job_json, page, point, scripted_api
from venusrl.cli.watch import Lines, Panel, Progress, Snapshot, follow, line_of
from venusrl.client import Client
from venusrl.models.jobs import Job

PROGRESS: Mapping[str, Any] = {
    "state": "running",
    "step": 2,
    "max_steps": 4,
    "groups": {"open": 5, "complete": 1, "assigned": 3, "per_batch": 8, "promoted": 2},
    "staleness": {"0": 2, "1": 1},
    "rollouts": {"running": 40, "waiting": 8},
    "tokens_per_s": 812.4,
    "hosts": [],
    "a_field_of_a_later_server": 1,
}

QUEUED: Mapping[str, Any] = {"state": "queued", "queue_position": 2, "reason": "no free trainer"}


class Recorded:
    """A screen that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def show(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)


def watched(
    jobs: Sequence[Body],
    progress: Sequence[Body],
    metrics: Sequence[Body],
    evaluations: Sequence[Body] = (),
) -> list[Snapshot]:
    """Every snapshot of a job with these answers."""
    routes = {
        "GET /v1/jobs/job_1": jobs,
        "GET /v1/jobs/job_1/progress": progress,
        "GET /v1/jobs/job_1/metrics": metrics,
        "GET /v1/jobs/job_1/evaluations": evaluations or [page()],
    }
    screen = Recorded()
    with scripted_api(routes) as api, Client(api.address, "vrl_t") as client:
        follow(client, "job_1", screen, sleep=lambda _seconds: None)
    return screen.seen


def test_following_ends_with_the_job_and_has_all_its_points() -> None:
    seen = watched(
        [job_json("running"), job_json("running"), job_json()],
        [PROGRESS],
        [page(point(1, 0.1)), page(point(2, 0.2)), page(point(3, 0.3), point(4, 0.4))],
    )
    assert [one.curve for one in seen] == [(0.1,), (0.1, 0.2), (0.1, 0.2, 0.3, 0.4)]
    assert seen[-1].job.state == "succeeded"


def test_only_new_points_are_asked_for() -> None:
    routes: dict[str, Sequence[Body]] = {
        "GET /v1/jobs/job_1": [job_json("running"), job_json()],
        "GET /v1/jobs/job_1/progress": [PROGRESS],
        "GET /v1/jobs/job_1/metrics": [page(point(1, 0.1), point(2, 0.2)), page()],
        "GET /v1/jobs/job_1/evaluations": [page()],
    }
    with scripted_api(routes) as api, Client(api.address, "vrl_t") as client:
        follow(client, "job_1", Recorded(), sleep=lambda _seconds: None)
        asked = [one.path for one in api.asked if "/metrics" in one.path]
    assert "after_step=-1" in asked[0]
    assert "after_step=2" in asked[1]


def test_a_new_attempt_starts_a_new_curve() -> None:
    seen = watched(
        [
            job_json("running"),
            job_json("running", attempt_id="att_2"),
            job_json(attempt_id="att_2"),
        ],
        [PROGRESS],
        [page(point(1, 0.1)), page(point(1, 0.1), point(1, 0.5, "att_2")), page()],
    )
    assert [one.curve for one in seen] == [(0.1,), (0.5,), (0.5,)]


def test_a_pause_that_waits_for_a_person_ends_the_watch() -> None:
    paused = job_json("paused", queue_reason="no_signal: flat")
    seen = watched([job_json("running"), paused], [PROGRESS], [page()])
    assert [one.job.state for one in seen] == ["running", "paused"]


def test_a_pause_that_is_about_to_end_does_not_end_the_watch() -> None:
    resuming = job_json("paused", generation=3, observed_generation=2)
    seen = watched([resuming, job_json()], [PROGRESS], [page()])
    assert [one.job.state for one in seen] == ["paused", "succeeded"]


def test_a_line_says_step_reward_speed_groups_staleness_and_queue() -> None:
    snapshot = Snapshot(
        Job.model_validate(job_json("running")), Progress.model_validate(PROGRESS), (0.1, 0.25)
    )
    assert line_of(snapshot) == (
        "state running  step 2/4  reward 0.250  tokens/s 812  "
        "groups 5 open 1 complete 3/8 assigned  staleness 0:2 1:1  "
        "rollouts 40 running 8 waiting  queue not queued"
    )


def test_a_queued_job_says_its_position_and_why() -> None:
    snapshot = Snapshot(Job.model_validate(job_json("queued")), Progress.model_validate(QUEUED), ())
    assert line_of(snapshot).endswith("queue position 2, no free trainer")


def test_a_queued_job_says_when_it_will_start_if_that_is_known() -> None:
    body = {**QUEUED, "predicted_start": "2030-01-02T03:04:05+00:00"}
    snapshot = Snapshot(Job.model_validate(job_json("queued")), Progress.model_validate(body), ())
    assert line_of(snapshot).endswith("no free trainer, starts about 2030-01-02 03:04 UTC")


def test_an_evaluation_shows_how_far_it_is() -> None:
    running = {**PROGRESS, "evaluation": {"step": 0, "opened": 200, "unfinished": 50, "tasks": 256}}
    snapshot = Snapshot(
        Job.model_validate(job_json("running")), Progress.model_validate(running), ()
    )
    assert line_of(snapshot).endswith("evaluation of step 0: 150/256")


def evaluated(step: int, score: float | None, **fields: Any) -> dict[str, Any]:
    """A finished evaluation as the API shows it."""
    counts = {"tasks": 4, "scored": 8, "unscorable": 0, "seconds": 1.0}
    return {"attempt_id": "att_1", "step": step, "score": score, **counts, **fields}


def test_the_last_evaluation_is_shown_with_each_of_its_environments() -> None:
    parts = [
        {"name": name, "ref": f"{name}@1", "weight": 1.0, "tasks": 2, "scored": 4, "unscorable": 0,
         "score": score}
        for name, score in (("calc", 0.25), ("shell", None))
    ]  # fmt: skip
    running = {**PROGRESS, "evaluation": {"step": 2, "opened": 4, "unfinished": 1, "tasks": 4}}
    seen = watched(
        [job_json("running"), job_json("running"), job_json()],
        [PROGRESS, running, PROGRESS],
        [page()],
        [page(evaluated(0, 0.125)), page(evaluated(0, 0.125)),
         page(evaluated(0, 0.125), evaluated(2, 0.5, environments=parts))],
    )  # fmt: skip
    assert line_of(seen[0]).endswith("evaluated step 0: 0.125")
    assert line_of(seen[-1]).endswith("evaluated step 2: 0.500  calc 0.250  shell -")


def test_lines_are_written_only_when_something_changed() -> None:
    written: list[str] = []
    screen = Lines(written.append)
    job = Job.model_validate(job_json("running"))
    for step in (1, 1, 2):
        screen.show(Snapshot(job, Progress.model_validate({**PROGRESS, "step": step}), ()))
    assert [line.split("  ")[1] for line in written] == ["step 1/4", "step 2/4"]


def test_a_panel_shows_bar_fields_and_curve() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    snapshot = Snapshot(
        Job.model_validate(job_json("running")), Progress.model_validate(PROGRESS), (0.1, 0.9)
    )
    Panel(console.print).show(snapshot)
    text = console.export_text()
    assert "calc  job_1  attempt 1" in text
    assert "50%" in text
    assert "▁█" in text
    assert "3/8 assigned" in text
