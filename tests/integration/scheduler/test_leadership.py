"""Who leads: one at a time, terms rise, a silent leader's session is ended."""

import psycopg

from stores.system.leadership import Leadership, find_leader
from tests.support import eventually

TTL_S = 1.0


async def test_second_scheduler_waits_while_the_first_leads(database_url: str) -> None:
    first, second = Leadership(database_url, TTL_S), Leadership(database_url, TTL_S)
    term = await first.try_acquire("127.0.0.1:1")
    assert term is not None
    assert await second.try_acquire("127.0.0.1:2") is None
    assert await first.beat(term.number)
    await first.close()
    await second.close()


async def test_term_rises_at_each_takeover(database_url: str) -> None:
    first, second = Leadership(database_url, TTL_S), Leadership(database_url, TTL_S)
    term = await first.try_acquire("127.0.0.1:1")
    assert term is not None
    await first.resign(term.number)
    taken = await second.try_acquire("127.0.0.1:2")
    assert taken is not None
    assert taken.number == term.number + 1
    await second.close()


async def test_standby_waits_for_the_old_heartbeat_to_age(database_url: str) -> None:
    first, second = Leadership(database_url, TTL_S), Leadership(database_url, TTL_S)
    term = await first.try_acquire("127.0.0.1:1")
    assert term is not None
    await first.close()  # died without resigning: its own clock may still let it act
    assert await second.try_acquire("127.0.0.1:2") is None
    taken = await eventually(lambda: second.try_acquire("127.0.0.1:2"), 5 * TTL_S)
    assert taken is not None
    await second.close()


async def test_silent_leader_loses_its_session_and_its_term(database_url: str) -> None:
    stopped, standby = Leadership(database_url, TTL_S), Leadership(database_url, TTL_S)
    term = await stopped.try_acquire("127.0.0.1:1")
    assert term is not None
    taken = await eventually(lambda: standby.try_acquire("127.0.0.1:2"), 6 * TTL_S)
    assert taken is not None
    assert taken.number == term.number + 1
    try:
        assert not await stopped.beat(term.number)
    except psycopg.OperationalError:
        assert not await stopped.beat(term.number)  # a new session does not bring the term back
    await stopped.close()
    await standby.close()


async def test_hosts_find_the_leader_and_nobody_after_a_resignation(database_url: str) -> None:
    leadership = Leadership(database_url, TTL_S)
    assert await find_leader(database_url) is None
    term = await leadership.try_acquire("127.0.0.1:77")
    assert term is not None
    found = await find_leader(database_url)
    assert found is not None
    assert (found.term, found.address, found.key) == (term.number, "127.0.0.1:77", term.key)
    await leadership.resign(term.number)
    assert await find_leader(database_url) is None
