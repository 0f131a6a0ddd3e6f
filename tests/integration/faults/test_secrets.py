"""F27: secrets that a job uses are in no log, row, event, metric, export, error or stored file.

A canary goes through whole jobs as the environment's variable, as the key of a judge and as the key
of the API. Environments print it, raise it, die with it on their lips, and judges say it back. Then
everything that the platform keeps or says is searched for it, also in the usual encodings.
"""

import base64
import io
import json
import secrets as random_secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.integration.faults.jobs import Platform, job_spec, member, said
from tests.support.chat_server import ChatServer, chat_server, completion
from tests.support.requirements import requires
from tests.support.waiting import wait_until
from venusrl.client import Client
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

LEAKY: Final = """
import base64
import os

from venusrl.env import *


class Env(Environment):
    @classmethod
    def load(cls, split, config):
        if config.get("mode") == "load":
            raise ValueError("load met " + os.environ["TOKEN"])
        return [Task(f"{split}-{n}", (Message("user", f"1{n}+07"),)) for n in range(4)]

    async def setup(self, task, sandbox):
        print("setup has", os.environ["TOKEN"])
        os.write(2, f"raw: {os.environ['TOKEN']}\\n".encode())

    async def reply(self, turn):
        token = os.environ["TOKEN"]
        if self.config.get("mode") == "raise":
            raise ValueError("reply met " + token)
        if self.config.get("mode") == "die":
            os.write(2, f"last words: {token}\\n".encode())
            os._exit(3)
        return None

    @reward(weight=1.0)
    async def judged(self, rollout: Rollout) -> float:
        token = os.environ["TOKEN"]
        print(base64.b64encode(f"user:{token}".encode()).decode(), repr(token.encode()))
        if rollout.index == 2:
            raise ValueError("reward met " + token)
        if rollout.index == 3:
            return Unscorable("odd", "x" * 480 + token)
        return float(await self.judge.ask(str(rollout.index)))
"""

SCRIPT: Final = {member(index): [said("19")] for index in range(4)}


@dataclass(slots=True)
class Canaries:
    """Values that must be nowhere, and everything that was heard while they were in use."""

    token: str = field(default_factory=lambda: f'canary"{random_secrets.token_hex(12)}\\end')
    judge_key: str = field(default_factory=lambda: f"sk-canary-{random_secrets.token_hex(12)}")
    api_key: str = ""
    heard: dict[str, str] = field(default_factory=dict)

    def needles(self) -> Iterator[bytes]:
        """The values as they are, and as programs spell them."""
        for value in (self.token, self.judge_key, self.api_key):
            assert len(value) > 20
            yield value.encode()
            yield json.dumps(value)[1:-1].encode()
            yield repr(value.encode())[2:-1].encode()
            yield base64.b64encode(value.encode())[:24]
            yield base64.b64encode(f"user:{value}".encode())[8:32]
            yield value.encode().hex().encode()

    def found_in(self, data: bytes) -> list[bytes]:
        """Which of them a text holds."""
        return [one for one in self.needles() if one in data]


def judge(body: Mapping[str, Any], number: int) -> Any:
    """Scores by the member's index; says back every key it is asked with, in one way or another."""
    prompt = body["messages"][0]["content"]
    return completion("1.0" if prompt == "0" else "0.25", tokens=2)


@pytest.fixture(scope="module")
def canaries(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    """All jobs of this module have run, and everything that was said is on record."""
    made = Canaries()
    ((project,),) = platform.stack.query("select id from project")
    made.api_key = platform.stack.admin.keys.create("canary", str(project)).secret
    folder = tmp_path_factory.mktemp("leaky")
    write_leaky(folder)
    with ExitStack() as stack:
        client = stack.enter_context(Client(platform.client.base_url, made.api_key))
        server = stack.enter_context(chat_server(judge))
        echoing = stack.enter_context(chat_server(lambda *_: (401, f"key {made.judge_key}?")))
        client.secrets.set("TOKEN", made.token)
        client.secrets.set("judge-key", made.judge_key)
        client.environments.push(folder)
        jobs = run_jobs(Platform(platform.stack, platform.scripts), made, (server, echoing))
        listen(client, made, jobs)
        ask_wrongly(platform, made)
        yield made


def write_leaky(folder: Path) -> None:
    """The package: it says its secret wherever it can."""
    folder.chmod(0o755)
    (folder / "venus.toml").write_text(
        'name = "leaky"\nversion = "1"\nsdk = 1\nentry = "env:Env"\nsandbox = false\n'
        'secrets = ["TOKEN"]\n'
    )
    (folder / "env.py").write_text(LEAKY)


def leaky_job(name: str, server: ChatServer, **config: Any) -> dict[str, Any]:
    """A job on it, with a judge."""
    return job_spec(
        name,
        environments=[{"ref": "leaky", "config": config, "shuffle": False}],
        judges={"j": {"url": server.url, "model": "m", "secret": "judge-key"}},
        secrets={"TOKEN": "TOKEN"},
    )


def run_jobs(
    platform: Platform, canaries: Canaries, servers: tuple[ChatServer, ChatServer]
) -> list[Job]:
    """One that succeeds, one whose judge refuses, one that raises, one that dies, one that never starts."""
    server, echoing = servers
    jobs = [platform.start(leaky_job("leaky", server), SCRIPT)]
    with ExitStack() as stack:
        for mode in ("raise", "die"):
            spec = leaky_job(f"leaky {mode}", server, mode=mode)
            jobs.append(stack.enter_context(platform.running(spec, SCRIPT)))
        spec = leaky_job("leaky judge", echoing)
        jobs.append(stack.enter_context(platform.running(spec, SCRIPT)))
        jobs.append(platform.start(leaky_job("leaky load", server, mode="load")))
        platform.succeeded(jobs[0])
        assert platform.settled(jobs[4]).state == "failed"
        for one, end in ((jobs[1], "env_failed"), (jobs[2], "env_failed")):
            wait_until(lambda one=one, end=end: has_try(platform, canaries, one, end), 240.0)  # type: ignore[misc]
        refused = {"unscorable_reason": "judge_refused"}
        wait_until(lambda: has_rollout(platform, jobs[3], refused), 240.0)
    assert set(server.keys) == {f"Bearer {canaries.judge_key}"}
    assert set(echoing.keys) == {f"Bearer {canaries.judge_key}"}
    return jobs


def has_try(platform: Platform, canaries: Canaries, job: Job, end: str) -> bool:
    """Whether a try of the job ended so; processes are looked at on the way."""
    for process in platform.stack.processes():
        try:
            seen = psutil.Process(process.pid)
            canaries.heard[f"process {process.pid}"] = repr((seen.cmdline(), seen.environ()))
        except psutil.Error:
            continue  # It ended meanwhile.
    return any(one.end == end for row in platform.rollouts(job) for one in row.tries)


def has_rollout(platform: Platform, job: Job, wanted: Mapping[str, Any]) -> bool:
    """Whether a rollout of the job looks like this."""
    rows = [one.model_dump() for one in platform.client.rollouts.list(job.id)]
    return any(wanted.items() <= row.items() for row in rows)


def listen(client: Client, canaries: Canaries, jobs: list[Job]) -> None:
    """Everything that the API says of the jobs."""
    heard = canaries.heard
    heard["secrets"] = repr(list(client.secrets.list()))
    heard["versions"] = repr(list(client.environments.versions("leaky")))
    for job in jobs:
        name = job.name
        heard[f"{name} job"] = client.jobs.get(job.id).model_dump_json()
        heard[f"{name} events"] = repr(list(client.jobs.events(job.id)))
        heard[f"{name} metrics"] = repr(list(client.jobs.metrics(job.id)))
        heard[f"{name} bill"] = client.jobs.bill(job.id).model_dump_json()
        heard[f"{name} groups"] = repr(list(client.groups.list(job.id)))
        for one in client.rollouts.list(job.id):
            heard[f"{name} {one.id}"] = client.rollouts.get(one.id).model_dump_json()
        with httpx.Client(headers={"Authorization": f"Bearer {canaries.api_key}"}) as http:
            address = f"{client.base_url}/v1/jobs/{job.id}/rollouts/export"
            heard[f"{name} export"] = http.get(address, timeout=60.0).text


def ask_wrongly(platform: Platform, canaries: Canaries) -> None:
    """Requests that are refused; what they say is recorded."""
    headers = {"Authorization": f"Bearer {canaries.api_key}"}
    value = canaries.token
    with httpx.Client(base_url=platform.client.base_url, headers=headers, timeout=30.0) as http:
        bodies: list[Any] = [{"value": [value]}, {"value": value, value: 1}, {"value": value * 999}]
        answers = [http.put("/v1/secrets/wrong", json=body) for body in bodies]
        answers.append(http.put("/v1/secrets/wrong", content=f'{{"value": {json.dumps(value)}'))
        answers.append(http.get("/v1/jobs", headers={"Authorization": f"Basic {canaries.api_key}"}))
        answers.append(
            http.get("/v1/jobs", headers={"Authorization": f"Bearer {canaries.api_key}x"})
        )
    for number, answer in enumerate(answers):
        assert answer.is_client_error
        # A field's name is what the request itself says; its value is not repeated.
        if number != 1:
            canaries.heard[f"refusal {number}"] = answer.text + str(answer.headers)


def test_no_answer_of_the_api_and_no_process_shows_a_secret(canaries: Canaries) -> None:
    assert any(name.startswith("process") for name in canaries.heard)
    assert "raised" in "".join(canaries.heard.values())
    for name, text in canaries.heard.items():
        assert canaries.found_in(text.encode()) == [], name


def test_a_validation_gets_the_secrets_that_are_named_like_its_variables(
    canaries: Canaries,
) -> None:
    assert "ready" in canaries.heard["versions"]
    assert "is not set here" not in canaries.heard["versions"]


def test_causes_still_say_what_happened(platform: Platform, canaries: Canaries) -> None:
    said = "\n".join(text for name, text in canaries.heard.items() if "process" not in name)
    for words in (
        "reply met [redacted]",
        "last words: [redacted]",
        "reward met [redacted]",
        "load met [redacted]",
        "answered 401: key [redacted]?",
    ):
        assert words in said, words


def test_no_row_of_any_table_shows_a_secret(platform: Platform, canaries: Canaries) -> None:
    tables = platform.stack.query(
        "select table_name from information_schema.tables where table_schema = 'public'"
    )
    assert len(tables) > 20
    for (table,) in tables:
        rows = platform.stack.query(f'select one::text from "{table}" one')
        data = "\n".join(str(row[0]) for row in rows).encode()
        assert canaries.found_in(data) == [], table


def test_no_file_of_the_installation_shows_a_secret(platform: Platform, canaries: Canaries) -> None:
    """Logs, stored objects, packages, checkpoints, and the files of the database server."""
    ((cluster,),) = platform.stack.query("show data_directory")
    roots = {platform.stack.home, Path(str(cluster))}
    looked_at = []
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            try:
                data = path.read_bytes()
            except OSError:
                continue  # Gone meanwhile, or a socket.
            looked_at.append(path)
            # Segments of the event log are compressed; as they lie they would hide everything.
            text = zlib.decompress(data) if path.suffix == ".segment" else data
            assert canaries.found_in(text) == [], path
    logs = [one for one in looked_at if one.suffix == ".log"]
    assert logs
    assert any(b"try.failed" in one.read_bytes() for one in logs)
    assert any("objects" in one.parts for one in looked_at)
    assert any(one.suffix == ".segment" for one in looked_at)


def test_the_search_finds_what_is_there(canaries: Canaries) -> None:
    stream = io.BytesIO()
    for value in (canaries.token, canaries.judge_key, canaries.api_key):
        stream.write(json.dumps({"a": value}).encode())
    assert len(canaries.found_in(stream.getvalue())) >= 3


def test_judges_are_in_the_bill_once(platform: Platform, canaries: Canaries) -> None:
    jobs = [one for one in platform.client.jobs.list() if one.name == "leaky"]
    bill = platform.client.jobs.bill(jobs[0].id)
    (line,) = bill.judges
    graded = [one for one in platform.client.rollouts.list(jobs[0].id) if one.verdict is not None]
    assert line.judge == "j"
    assert line.calls == sum(1 for one in graded if one.verdict == "scored")
    assert line.rollouts == line.calls
    assert (line.prompt_tokens, line.sampled_tokens) == (10 * line.calls, 2 * line.calls)
