"""`make demo`: the whole platform, and a small model trained on it through the public API alone.

Starts `venus up`, makes an organization, a project and a key, uploads an environment, submits a job,
follows it, and compares its held-out score before and after. Exit 0 only if the job succeeded and
the score rose. Everything stops in the end, unless KEEP=1.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from infra.settings import BadSettingError, Settings
from supervisor.demo_platform import Address, Platform, PlatformFailed
from supervisor.demo_report import Start, Summary, failure_lines, look, report, summarize, verdict
from supervisor.probes import TREE
from venusrl._spec import read_spec
from venusrl.cli.watch import follow, screen_for_output
from venusrl.client import Client, Patience, VenusError

SPEC: Final = TREE / "examples" / "calc-grpo.yaml"
ENVIRONMENT: Final = TREE / "environments" / "builtin" / "calc"

MIN_RISE: Final = 0.05
"""Two standard errors of a score near one half over 256 tasks are 0.06: less could be chance."""

GIVE_UP_WITHIN_S: Final = 5.0
"""A person who pressed Ctrl-C does not wait longer for the API."""

EXIT_NOT_SHOWN: Final = 1
EXIT_USAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides."""

    home: Path
    spec: Path = SPEC
    environment: Path = ENVIRONMENT
    seed: int | None = None
    control: str | None = None
    min_rise: float = MIN_RISE
    summary: Path | None = None
    is_kept: bool = False


class Stopped(BaseException):
    """A signal asked us to end; not an error that anything may swallow."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(options: Options) -> int:
    """One demo; its exit status."""
    began_at, began = datetime.now(UTC), time.monotonic()
    try:
        document = _document(options)
        say(f"starting the platform in {options.home}")
        with Platform(options.home, options.is_kept) as platform:
            address = platform.wait()
            start = Start(began_at, time.monotonic() - began)
            say(f"up at {address.api} after {start.time_to_ready_s:.1f} s")
            status = _train(options, document, address, start)
            _say_what_stays(address) if options.is_kept else say("stopping the platform")
    except (PlatformFailed, VenusError) as error:
        say(str(error))
        return EXIT_NOT_SHOWN
    return status


def _document(options: Options) -> dict[str, Any]:
    document = read_spec(options.spec)
    if options.seed is not None:
        document["seed"] = options.seed
    if options.control is not None:
        document["algorithm"] = {**document.get("algorithm", {}), "control": options.control}
    return document


def _train(options: Options, document: dict[str, Any], address: Address, start: Start) -> int:
    with Client(address.api, address.admin_key) as admin:
        key = _make_tenant(admin)
    if options.is_kept:
        say("to look around:")
        say(f"  export VENUS_API_URL={address.api} VENUS_API_KEY={key}")
    with Client(address.api, key) as client:
        version = client.environments.push(options.environment)
        splits = ", ".join(f"{count} {name}" for name, count in sorted(version.splits.items()))
        say(f"environment {version.ref} is ready ({splits})")
        checked = client.jobs.validate(document)
        for finding in checked.findings:
            say(f"{finding.severity}: {finding.pointer}: {finding.message} {finding.hint}")
        job = client.jobs.create(document)
        say(f"job {job.id} ({job.name}): {address.api}/v1/jobs/{job.id}")
        try:
            with screen_for_output() as screen:
                snapshot = follow(client, job.id, screen)
        except Stopped:
            if not options.is_kept:
                _give_up(address, key, job.id)
            raise
        return _conclude(options, client, summarize(client, snapshot, start))


def _conclude(options: Options, client: Client, summary: Summary) -> int:
    if summary.state != "succeeded":
        for line in failure_lines(client, client.jobs.get(summary.job_id)):
            say(line)
    for line in report(summary, look(client, summary), client.base_url):
        say(line)
    if options.summary is not None:
        options.summary.parent.mkdir(parents=True, exist_ok=True)
        options.summary.write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    reason = verdict(summary, options.min_rise)
    if reason is not None:
        say(f"not shown: {reason}")
        return EXIT_NOT_SHOWN
    what = "the control did not learn" if summary.control else "the model learned"
    say(f"{what}: its held-out score changed by {summary.rise:+.3f}")
    return 0


def _give_up(address: Address, key: str, job_id: str) -> None:
    """Ask once that the job ends: the next demo in this home would wait for it."""
    once = Patience(tries=1)
    try:
        with Client(address.api, key, timeout_s=GIVE_UP_WITHIN_S, patience=once) as client:
            client.jobs.cancel(job_id)
    except VenusError as error:
        say(f"{job_id} goes on when the platform starts again: {error}")


def _make_tenant(admin: Client) -> str:
    """A fresh organization with one project; the secret of its developer's key."""
    name = f"demo {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    organization = admin.organizations.create(name)
    project = admin.projects.create("demo", organization.id)
    return admin.keys.create("demo", project.id).secret


def _say_what_stays(address: Address) -> None:
    say(f"still up at {address.api}; addresses and the admin key are in {address.state_file}")
    say(f"stop it with `kill {address.pid}`")


def say(text: str) -> None:
    """A line for the person at the terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # A terminal that cannot draw blocks must not end the demo.
        reconfigure(errors="replace")
    try:
        options = _options(arguments)
    except BadSettingError as error:
        sys.stderr.write(f"demo: {error}\n")
        return EXIT_USAGE
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        return run(options)
    except Stopped as stopped:
        say("stopped")
        return 128 + stopped.number


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="make demo", description="train a small model end to end")
    parser.add_argument("--home", type=Path, help="folder of the installation (VENUS_HOME)")
    parser.add_argument("--spec", type=Path, default=SPEC, help="job spec, YAML or JSON")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="package folder")
    parser.add_argument("--seed", type=int, help="instead of the spec's seed")
    parser.add_argument("--control", choices=["shuffled_rewards"], help="must not learn")
    parser.add_argument("--min-rise", type=float, default=MIN_RISE, help="of the held-out score")
    parser.add_argument("--summary", type=Path, help="write the numbers here as JSON")
    given = parser.parse_args(arguments)
    return Options(
        home=(given.home or Settings.from_env().home).absolute(),
        spec=given.spec.absolute(),
        environment=given.environment.absolute(),
        seed=given.seed,
        control=given.control,
        min_rise=given.min_rise,
        summary=given.summary,
        is_kept=os.environ.get("KEEP", "0") not in ("", "0"),
    )


if __name__ == "__main__":
    sys.exit(main())
