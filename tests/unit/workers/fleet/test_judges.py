"""A judge on a real socket: answers, refusals, outages, and hosts that must not be reached."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from infra.clock import ManualClock
from tests.support.chat_server import ChatServer, Script, chat_server, completion
from tests.support.waiting import eventually
from venusrl.env.host.chat_wire import TRIES_MAX
from venusrl.env.judge import JudgeRequest, JudgeUnavailable
from workers.fleet.judges import ANSWER_BYTES_MAX, HttpJudge, JobJudges, completions_of

KEY = "sk-canary-of-a-judge"


class Quick(ManualClock):
    """A clock on which every pause is over at once; it keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)


def judge_at(server: ChatServer | str, **more: Any) -> HttpJudge:
    """A judge that may reach the loopback."""
    url = server if isinstance(server, str) else server.url
    given: dict[str, Any] = {"allowed_hosts": ("127.0.0.1",), "key": KEY, "at_once": 4} | more
    return HttpJudge(url, "grader", clock=Quick(), draw=lambda low, high: high, **given)


@asynccontextmanager
async def asking(script: Script, **more: Any) -> AsyncIterator[tuple[HttpJudge, ChatServer]]:
    """A judge and its server."""
    with chat_server(script) as server:
        judge = judge_at(server, **more)
        try:
            yield judge, server
        finally:
            await judge.close()


@contextmanager
def unavailable(reason: str, match: str) -> Iterator[None]:
    """The judge gives no answer for this reason; the key is in no word of it."""
    with pytest.raises(JudgeUnavailable, match=match) as failed:
        yield
    assert failed.value.reason == reason
    assert KEY not in str(failed.value)
    assert KEY not in repr(failed.value.__context__)


def paused(judge: HttpJudge) -> list[float]:
    """Pauses between tries."""
    assert isinstance(judge.clock, Quick)
    return judge.clock.paused


async def test_an_answer_carries_its_text_and_tokens() -> None:
    async with asking(lambda *_: completion("7 of 10", tokens=3)) as (judge, server):
        answer = await judge.ask("how good?")
    assert (answer.text, answer.prompt_tokens, answer.sampled_tokens) == ("7 of 10", 10, 3)
    assert server.keys == [f"Bearer {KEY}"]
    (asked,) = server.asked
    assert asked["model"] == "grader"
    assert asked["messages"] == [{"role": "user", "content": "how good?"}]


async def test_a_burst_is_waited_out_as_long_as_the_server_asks() -> None:
    def script(_: Any, number: int) -> Any:
        busy = (429, "slow down", {"Retry-After": "7"})
        return busy if number == 0 else completion("ok")

    async with asking(script) as (judge, _):
        assert (await judge.ask("?")).text == "ok"
    assert paused(judge) == [7.0]


async def test_an_unreadable_or_huge_wish_to_wait_is_not_followed() -> None:
    wishes = ["99999999", "Wed, 21 Oct 2026 07:28:00 GMT", "-5", "x"]

    def script(_: Any, number: int) -> Any:
        return (503, "", {"Retry-After": wishes[number]}) if number < 4 else completion("ok")

    async with asking(script) as (judge, _):
        await judge.ask("?")
    assert paused(judge) == [60.0, 1.0, 2.0, 4.0]


async def test_an_outage_is_unreachable_after_all_tries() -> None:
    async with asking(lambda *_: (500, f"broken {KEY}")) as (judge, server):
        with unavailable("unreachable", "answered 500"):
            await judge.ask("?")
    assert len(server.asked) == TRIES_MAX


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with chat_server(lambda *_: completion("ok")) as server:
        address = server.url
    judge = judge_at(address)
    with unavailable("unreachable", "ConnectError"):
        await judge.ask("?")
    await judge.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_not_tried_again(status: int) -> None:
    async with asking(lambda *_: (status, f"bad key {KEY}")) as (judge, server):
        with unavailable("refused", f"answered {status}: bad key"):
            await judge.ask("?")
    assert len(server.asked) == 1


async def test_a_server_that_hangs_costs_its_time_limits() -> None:
    over = threading.Event()

    def script(*_: Any) -> Any:
        over.wait(20.0)
        return completion("late")

    async with asking(script, try_s=0.2) as (judge, _):
        with unavailable("unreachable", r"no answer within 0\.2 s"):
            await judge.ask("?")
        judge.answer_s = 0.2
        judge.try_s = 20.0
        with unavailable("unreachable", r"no answer within 0\.2 s"):
            await judge.ask("?")
        over.set()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("no json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no chat completion"),
        ('{"choices": []}', "no chat completion"),
        ('{"choices": [{"message": {"content": {"a": 1}}}]}', "content is a dict"),
        ('{"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}', "was cut"),
        ("x" * (ANSWER_BYTES_MAX + 1), "longer than"),
    ],
    ids=["text", "deep", "list", "empty", "object", "cut", "huge"],
)
async def test_what_is_no_verdict_is_a_bad_answer(body: str, words: str) -> None:
    async with asking(lambda *_: (200, body)) as (judge, server):
        with unavailable("bad_answer", words):
            await judge.ask("?")
    assert len(server.asked) == 1


async def test_a_compressed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(json.dumps({"choices": []}).encode())
    script = lambda *_: (200, packed, {"Content-Encoding": "gzip"})  # noqa: E731 - one answer
    async with asking(script) as (judge, _):
        with unavailable("bad_answer", "compressed"):
            await judge.ask("?")


async def test_tokens_that_are_no_counts_count_nothing() -> None:
    usage = {"prompt_tokens": "many", "completion_tokens": -5}
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    async with asking(lambda *_: (200, body)) as (judge, _):
        answer = await judge.ask("?")
    assert (answer.prompt_tokens, answer.sampled_tokens) == (0, 0)


async def test_no_more_calls_run_at_once_than_the_job_allows() -> None:
    here, most, lock = [0], [0], threading.Lock()
    go = threading.Event()

    def script(*_: Any) -> Any:
        with lock:
            here[0] += 1
            most[0] = max(most[0], here[0])
        go.wait(20.0)
        with lock:
            here[0] -= 1
        return completion("ok")

    async with asking(script, at_once=2) as (judge, server):
        asked = [asyncio.create_task(judge.ask(str(n))) for n in range(6)]
        await eventually(lambda: len(server.asked) == 2)
        go.set()
        await asyncio.gather(*asked)
    assert most[0] == 2
    assert len(server.asked) == 6


async def test_a_redirect_is_not_followed() -> None:
    with chat_server(lambda *_: completion("from inside")) as inside:
        target = {"Location": f"{inside.url}/chat/completions"}
        async with asking(lambda *_: (307, "", target)) as (judge, _):
            with unavailable("refused", "redirects are not followed"):
                await judge.ask("?")
    assert inside.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433"])
async def test_the_own_network_is_not_reached_unless_it_is_listed(host: str) -> None:
    with chat_server(lambda *_: completion("from inside")) as server:
        port = server.http.server_address[1]
        judge = judge_at(f"http://{host}:{port}/v1", allowed_hosts=("127.0.0.9",))
        with unavailable("refused", "not a public host"):
            await judge.ask("?")
        await judge.close()
    assert server.asked == []


async def test_a_listed_port_opens_no_other() -> None:
    with chat_server(lambda *_: completion("ok")) as server:
        port = server.http.server_address[1]
        one = judge_at(server, allowed_hosts=(f"127.0.0.1:{port}",))
        assert (await one.ask("?")).text == "ok"
        other = judge_at(server, allowed_hosts=(f"127.0.0.1:{port + 1}",))
        with unavailable("refused", "not a public host"):
            await other.ask("?")
        await one.close()
        await other.close()


async def test_the_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with asking(lambda *_: completion("direct")) as (judge, _):
        assert (await judge.ask("?")).text == "direct"


async def test_judges_are_asked_by_name_and_the_only_one_without() -> None:
    with chat_server(lambda body, _: completion(str(body["model"]))) as server:
        only = JobJudges({"a": judge_at(server)})
        both = JobJudges({"a": judge_at(server), "b": judge_at(server)})
        assert (await only.ask(JudgeRequest("?"))).text == "grader"
        assert (await both.ask(JudgeRequest("?", "b"))).text == "grader"
        with unavailable("not_configured", "name one: a, b"):
            await both.ask(JudgeRequest("?"))
        with unavailable("not_configured", "no judge 'c'; it has a, b"):
            await both.ask(JudgeRequest("?", "c"))
        with unavailable("not_configured", "has these judges, name one: none"):
            await JobJudges({}).ask(JudgeRequest("?"))
        await only.close()
        await both.close()


def test_the_route_lies_below_the_address_and_its_query_stays() -> None:
    assert str(completions_of("https://j.example/v1/")) == "https://j.example/v1/chat/completions"
    found = str(completions_of("https://j.example/v1?api-version=2#x"))
    assert found == "https://j.example/v1/chat/completions?api-version=2"
