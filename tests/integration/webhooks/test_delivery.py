"""What arrives, how it is signed, and what happens when it does not arrive."""

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stores import events
from stores import tables as t
from stores.system import deliveries
from stores.unit_of_work import AsyncConnection
from tests.integration.api.world import World
from tests.integration.webhooks.hooks import Project, is_signed, run
from tests.support.webhook_receiver import Answer, Got, Receiver, receiving
from venusrl.client import Conflict

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "webhooks.md"


def refused(got: Got, number: int) -> Answer:
    """A receiver that is broken."""
    del got, number
    return Answer(500, b"no" * 50_000)


def test_an_event_arrives_signed_and_whole(project: Project, receiver: Receiver) -> None:
    hook = project.hook(receiver.url)
    project.say("job.state")
    assert run(project.world.settings) == 0
    (got,) = receiver.got
    assert is_signed(got, hook.secret)
    assert not is_signed(got, "whsec_" + "A" * 43 + "=")
    said = json.loads(got.body)
    assert (said["type"], said["data"]["body"]) == ("job.state", {"step": 1})
    assert said["data"]["job_id"] == project.job["id"]
    with project.tenant.sdk() as client:
        event = list(client.jobs.events(project.job["id"]))[-1]
    assert (said["data"]["seq"], said["timestamp"]) == (event.id, event.created_at.isoformat())
    (delivery,) = project.deliveries(hook)
    assert (delivery.state, delivery.tries, delivery.event_id) == ("delivered", 1, got.id)
    assert (delivery.attempts[0].code, delivery.attempts[0].response) == ("ok", "thanks")


def test_the_documented_check_accepts_it_and_nothing_that_was_changed(
    project: Project, receiver: Receiver
) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(snippet, names)
    verify = names["verify"]
    hook = project.hook(receiver.url)
    project.say("job.state")
    run(project.world.settings)
    (got,) = receiver.got
    headers = dict(got.headers)
    verify(hook.secret, headers, got.body)
    old = str(int(headers["webhook-timestamp"]) - 301)
    for changed, body in (
        (headers, got.body + b" "),
        ({**headers, "webhook-id": "evt_other"}, got.body),
        ({**headers, "webhook-timestamp": old}, got.body),
    ):
        with pytest.raises(ValueError):
            verify(hook.secret, changed, body)


def test_a_webhook_gets_what_it_wants_of_its_own_project(
    world: World, project: Project, receiver: Receiver
) -> None:
    project.hook(receiver.url + "/kind", types=["checkpoint.*", "job.state"])
    project.hook(receiver.url + "/off", active=False)
    Project.made(world, "stranger").hook(receiver.url + "/stranger")
    project.say("job.state", "job.changed", "checkpoint.ready", "step.committed")
    run(world.settings)
    found = {(one.path, json.loads(one.body)["type"]) for one in receiver.got}
    assert found == {("/hook/kind", "job.state"), ("/hook/kind", "checkpoint.ready")}


def test_no_delivery_outlives_an_event_that_was_rolled_back(
    project: Project, receiver: Receiver
) -> None:
    project.hook(receiver.url)

    async def fails(connection: AsyncConnection) -> None:
        await events.append(connection, project.job["id"], "job.state", {})
        raise KeyError

    with pytest.raises(KeyError):
        project.world.run(fails)
    run(project.world.settings)
    assert receiver.got == []


def test_a_failure_is_tried_again_later_with_the_same_id(project: Project) -> None:
    def recovers(got: Got, number: int) -> Answer:
        return refused(got, number) if number < 2 else Answer()

    with receiving(recovers) as receiver:
        hook = project.hook(receiver.url)
        project.say("job.state")
        for _ in range(2):
            run(project.world.settings)
            (delivery,) = project.deliveries(hook)
            assert delivery.state == "pending"
            assert delivery.next_at is not None
            assert delivery.next_at > datetime.now(UTC)
            run(project.world.settings)
            assert len(receiver.got) == delivery.tries
            project.later()
        run(project.world.settings)
        (delivery,) = project.deliveries(hook)
        assert len(set(receiver.ids)) == 1
        assert all(is_signed(one, hook.secret) for one in receiver.got)
    assert (delivery.state, delivery.tries) == ("delivered", 3)
    assert [(one.code, one.status) for one in delivery.attempts] == [
        ("http_status", 500),
        ("http_status", 500),
        ("ok", 200),
    ]
    assert [len(one.response) for one in delivery.attempts] == [500, 500, len("thanks")]
    with project.tenant.sdk() as client:
        assert client.webhooks.get(hook.id).failing_since is None


def test_tries_are_bounded_and_a_failed_delivery_can_be_sent_again(project: Project) -> None:
    is_mended = threading.Event()

    def answers(got: Got, number: int) -> Answer:
        return Answer() if is_mended.is_set() else refused(got, number)

    with receiving(answers) as receiver:
        hook = project.hook(receiver.url)
        project.say("job.state")
        for _ in range(5):
            run(project.world.settings, tries=3)
            project.later()
        (delivery,) = project.deliveries(hook)
        assert (delivery.state, delivery.tries, len(receiver.got)) == ("failed", 3, 3)
        is_mended.set()
        with project.tenant.sdk() as client:
            assert client.webhooks.redeliver(hook.id, delivery.id).state == "pending"
            run(project.world.settings)
            assert client.webhooks.delivery(hook.id, delivery.id).state == "delivered"
            assert client.webhooks.redeliver(hook.id, delivery.id).state == "pending"
        run(project.world.settings)
        assert len(receiver.got) == 5
        assert len(set(receiver.ids)) == 1


def test_a_redirect_is_a_failure_and_is_not_followed(project: Project, receiver: Receiver) -> None:
    def moved(got: Got, number: int) -> Answer:
        del got, number
        return Answer(307, location=receiver.url)

    with receiving(moved) as first:
        hook = project.hook(first.url)
        project.say("job.state")
        run(project.world.settings)
    (delivery,) = project.deliveries(hook)
    assert (delivery.attempts[0].code, delivery.attempts[0].status) == ("redirect", 307)
    assert receiver.got == []


def test_a_receiver_that_does_not_answer_ends_its_try(project: Project) -> None:
    is_over = threading.Event()

    def hangs(got: Got, number: int) -> Answer:
        del got, number
        is_over.wait(60.0)
        return Answer()

    with receiving(hangs) as receiver:
        hook = project.hook(receiver.url)
        project.say("job.state")
        run(project.world.settings, timeout_s=0.3)
        is_over.set()
    (delivery,) = project.deliveries(hook)
    assert [one.code for one in delivery.attempts] == ["timeout"]
    assert delivery.state == "pending"


def test_a_slow_receiver_takes_no_place_from_another(project: Project, receiver: Receiver) -> None:
    is_over, both = threading.Event(), threading.Lock()
    most = [0, 0]

    def slow(got: Got, number: int) -> Answer:
        del got, number
        with both:
            most[0] += 1
            most[1] = max(most)
        is_over.wait(60.0)
        with both:
            most[0] -= 1
        return Answer()

    def ends(got: Got, number: int) -> Answer:
        if number == 39:
            is_over.set()
        return Answer()

    with receiving(slow) as held, receiving(ends) as free:
        project.hook(held.url)
        project.hook(free.url)
        project.say(*["step.committed"] * 40)
        run(project.world.settings, timeout_s=60.0)
        # The slow one answered nothing until all forty had arrived at the other.
        assert (len(free.got), len(held.got)) == (40, 40)
    assert most[1] <= 8


def test_what_resolves_to_this_machine_is_refused(project: Project, receiver: Receiver) -> None:
    hook = project.hook(receiver.url)
    port = receiver.url.split(":")[2]
    project.world.change(t.webhook, hook.id, url=f"https://localhost:{port}")
    project.say("job.state")
    run(project.world.settings)
    (delivery,) = project.deliveries(hook)
    assert delivery.attempts[0].code == "address_refused"
    assert receiver.got == []


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1:1", "not_encrypted"),
        ("https://no-such-name.invalid/", "name_unknown"),
        ("https://169.254.169.254/latest", "address_refused"),
        ("https://[::ffff:10.0.0.1]/", "address_refused"),
    ],
)
def test_a_target_that_is_never_called_is_told_by_its_code(
    project: Project, receiver: Receiver, url: str, code: str
) -> None:
    hook = project.hook(receiver.url)
    project.world.change(t.webhook, hook.id, url=url)
    project.say("job.state")
    run(project.world.settings, hosts=())
    assert project.deliveries(hook)[0].attempts[0].code == code


def test_a_webhook_that_only_fails_is_switched_off_and_that_is_told(
    world: World, project: Project, receiver: Receiver
) -> None:
    with receiving(refused) as broken:
        hook = project.hook(broken.url)
        project.hook(receiver.url, types=["webhook.*"])
        project.say("job.state", "job.state")
        project.failing_for(hook, 4.9)
        run(world.settings)
        assert world.rows(t.webhook)[0].active
        project.failing_for(hook, 5.1)
        project.later()
        run(world.settings)
        before = len(broken.got)
        project.say("job.state")
        project.later()
        run(world.settings)
        assert len(broken.got) == before
    with project.tenant.sdk() as client:
        shown = client.webhooks.get(hook.id)
        assert not shown.active
        assert shown.disabled_at is not None
        with pytest.raises(Conflict):
            client.webhooks.test(hook.id)
        assert client.webhooks.update(hook.id, active=True).failing_since is None
    told = [json.loads(one.body) for one in receiver.got]
    assert [(one["type"], one["data"]["body"]["webhook_id"]) for one in told] == [
        ("webhook.disabled", hook.id)
    ]
    (noted,) = [row for row in world.rows(t.audit_event) if row.actor == "system"]
    assert (noted.action, noted.target) == ("webhooks.disable", hook.id)


def test_after_a_rotation_both_secrets_sign_until_the_grace_ends(
    project: Project, receiver: Receiver
) -> None:
    hook = project.hook(receiver.url)
    with project.tenant.sdk() as client:
        second = client.webhooks.rotate(hook.id, grace_s=3600)
    assert second.secret != hook.secret
    project.say("job.state")
    run(project.world.settings)
    past = datetime.now(UTC) - timedelta(seconds=1)
    project.world.change(t.webhook, hook.id, previous_until=past)
    project.say("job.state")
    run(project.world.settings)
    signed = [(is_signed(g, hook.secret), is_signed(g, second.secret)) for g in receiver.got]
    assert signed == [(True, True), (False, True)]


def test_with_another_installation_key_nothing_is_sent_under_a_wrong_signature(
    project: Project, receiver: Receiver
) -> None:
    hook = project.hook(receiver.url)
    project.say("job.state")
    run(project.world.settings, key="another")
    (delivery,) = project.deliveries(hook)
    assert (delivery.state, delivery.attempts[0].code) == ("failed", "key_changed")
    assert receiver.got == []


def test_ended_deliveries_are_taken_away_after_a_month(
    world: World, project: Project, receiver: Receiver
) -> None:
    hook = project.hook(receiver.url)
    project.say("job.state", "job.state")
    run(world.settings)
    old = project.deliveries(hook)[0]
    world.change(t.webhook_delivery, old.id, created_at=datetime.now(UTC) - deliveries.KEPT)
    run(world.settings)
    assert [one.id for one in project.deliveries(hook)] == [
        row.id for row in world.rows(t.webhook_delivery) if row.id != old.id
    ]
