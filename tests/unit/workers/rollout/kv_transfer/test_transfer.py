"""Tickets: what is handed over is what was there, and nothing else is ever taken for it."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra.codec import from_json, to_json
from tests.unit.workers.rollout.kv_transfer.arena import (
    LAYOUT,
    ROLLOUT,
    NumpyArena,
    Wall,
    exported,
    pages_of,
    run_of,
)
from workers.rollout.kv_transfer.pages import KvRun, PageSink, PageSource
from workers.rollout.kv_transfer.segments import Segment
from workers.rollout.kv_transfer.transfer import KEEP_S, KvTransfer

TOKENS = 40


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def source(wall: Wall) -> Iterator[KvTransfer]:
    one = KvTransfer(wall)
    yield one
    one.close()


@pytest.fixture
def target(wall: Wall) -> KvTransfer:
    return KvTransfer(wall)


def descriptors() -> set[str]:
    """Shared memory that this process holds."""
    found = (os.readlink(path) for path in _links())
    return {name for name in found if name.startswith("/memfd:kv-")}


def _links() -> list[Path]:
    return [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def ticket_of(source: KvTransfer) -> KvTicket:
    ticket = source.find(ROLLOUT)
    assert ticket is not None
    return ticket


def refused(target: KvTransfer, ticket: KvTicket, run: KvRun) -> KvFailure:
    with pytest.raises(KvRefused) as caught:
        target.take(ticket, run)
    return caught.value.reason


def test_pages_reach_another_arena_as_they_were(source: KvTransfer, target: KvTransfer) -> None:
    here: PageSource = NumpyArena(12, seed=1)
    there: PageSink = (other := NumpyArena(12, seed=2))
    run = run_of(TOKENS)
    exported(source, NumpyArena(12, seed=1), run)
    content = target.take(ticket_of(source), run_of(TOKENS + 9, token_ids=(*run.token_ids, 1, 2)))
    there.write([5, 0, 2], content)
    assert (other.read([5, 0, 2]) == here.read(pages_of(run))).all()
    assert target.counts == {"imports": 1, "imported_tokens": TOKENS, "imported_bytes": 3 * 4096}


def test_a_copy_outlives_the_eviction_of_its_pages(source: KvTransfer, target: KvTransfer) -> None:
    arena, run = NumpyArena(12), run_of(TOKENS)
    content = exported(source, arena, run)
    arena.numbers[:] = 0
    assert (target.take(ticket_of(source), run) == content).all()


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (KvFailure.OTHER_TENANT, lambda t: replace(t, tenant="org_1")),
        (KvFailure.OTHER_TENANT, lambda t: replace(t, tenant="")),
        (KvFailure.OTHER_WEIGHTS, lambda t: replace(t, weights_sha="sha4")),
        (KvFailure.OTHER_WEIGHTS, lambda t: replace(t, adapter_sha="of another tenant")),
        (KvFailure.OTHER_LAYOUT, lambda t: replace(t, layout=replace(LAYOUT, dtype="bfloat16"))),
        (KvFailure.OTHER_TOKENS, lambda t: replace(t, token_sha="x")),
        (KvFailure.OTHER_TOKENS, lambda t: replace(t, rollout_id=RolloutId("ro_other"))),
        (KvFailure.MALFORMED, lambda t: replace(t, checksums=t.checksums[:-1])),
        (KvFailure.MALFORMED, lambda t: replace(t, tokens=0)),
        (KvFailure.CHECKSUM, lambda t: replace(t, checksums=("0" * 32, *t.checksums[1:]))),
        (KvFailure.EXPIRED, lambda t: replace(t, expires_at=0.0)),
        (KvFailure.GONE, lambda t: replace(t, path="/proc/self/fd/99999")),
        (KvFailure.GONE, lambda t: replace(t, path="/dev/null")),
        (KvFailure.MALFORMED, lambda t: replace(t, path="/proc/self/fd/1\0")),
        (KvFailure.MALFORMED, lambda t: replace(t, path="/proc/\ud800")),
    ],
)
def test_a_ticket_that_does_not_fit_is_refused_with_its_reason_and_counted(
    source: KvTransfer,
    target: KvTransfer,
    reason: KvFailure,
    change: Callable[[KvTicket], KvTicket],
) -> None:
    run = run_of(TOKENS)
    exported(source, NumpyArena(12), run)
    assert refused(target, change(ticket_of(source)), run) is reason
    assert target.counts == {f"import_failed_{reason.value}": 1}


def test_a_ticket_of_a_process_that_wrote_no_tenant_is_read_and_not_used(
    source: KvTransfer, target: KvTransfer
) -> None:
    run = run_of(TOKENS)
    exported(source, NumpyArena(12), run)
    written = json.loads(to_json(ticket_of(source)))
    del written["tenant"]
    old = from_json(json.dumps(written).encode(), KvTicket)
    assert refused(target, old, run) is KvFailure.OTHER_TENANT
    later = from_json(json.dumps(written | {"tenant": "org_0", "more": 1}).encode(), KvTicket)
    assert later == ticket_of(source)


def test_memory_of_another_size_or_that_may_change_is_refused(
    source: KvTransfer, target: KvTransfer
) -> None:
    run = run_of(TOKENS)
    content = exported(source, NumpyArena(12), run)
    ticket = ticket_of(source)
    short = Segment.filled("kv-short", [content[:2]])
    assert refused(target, replace(ticket, path=short.path), run) is KvFailure.SHORT
    short.close()
    open_ended = os.memfd_create("kv-open", os.MFD_ALLOW_SEALING)
    os.write(open_ended, content.tobytes())
    path = f"/proc/{os.getpid()}/fd/{open_ended}"
    assert refused(target, replace(ticket, path=path), run) is KvFailure.GONE
    os.close(open_ended)


def test_pages_of_the_wrong_order_are_found(source: KvTransfer, target: KvTransfer) -> None:
    run = run_of(TOKENS)
    content = exported(source, NumpyArena(12), run)
    swapped = Segment.filled("kv-swapped", [content[[1, 0, 2]]])
    ticket = replace(ticket_of(source), path=swapped.path)
    assert refused(target, ticket, run) is KvFailure.CHECKSUM
    swapped.close()


def test_ids_that_differ_anywhere_are_refused(source: KvTransfer, target: KvTransfer) -> None:
    run = run_of(TOKENS)
    exported(source, NumpyArena(12), run)
    ticket = ticket_of(source)
    for at in (0, TOKENS // 2, TOKENS - 1):
        ids = list(run.token_ids)
        ids[at] += 1
        assert refused(target, ticket, run_of(TOKENS, token_ids=tuple(ids))) in (
            KvFailure.OTHER_TOKENS,
        )
    assert refused(target, ticket, run_of(TOKENS - 1)) is KvFailure.OTHER_TOKENS


def test_an_export_ends_with_its_time(source: KvTransfer, wall: Wall) -> None:
    exported(source, NumpyArena(12), run_of(TOKENS))
    wall.seconds += KEEP_S - 0.1
    assert source.find(ROLLOUT) is not None
    wall.seconds += 0.1
    assert source.figures() == {
        "kv_exports": 1.0,
        "kv_exported_tokens": float(TOKENS),
        "kv_exported_bytes": 3 * 4096.0,
        "kv_exports_expired": 1.0,
        "kv_export_bytes": 0.0,
    }
    assert descriptors() == set()


def test_a_second_export_of_a_rollout_replaces_the_first(source: KvTransfer) -> None:
    for tokens in (TOKENS, TOKENS + 16):
        exported(source, NumpyArena(16), run_of(tokens))
    assert ticket_of(source).tokens == TOKENS + 16
    assert source.held_bytes == 4 * 4096
    assert len(descriptors()) == 1


def test_bytes_and_number_of_exports_have_a_bound(wall: Wall) -> None:
    content = NumpyArena(12).read([0, 1, 2])
    narrow = KvTransfer(wall, bytes_max=2 * 3 * 4096)
    few = KvTransfer(wall, exports_max=2)
    for transfer in (narrow, few):
        runs = [run_of(TOKENS, rollout_id=RolloutId(f"ro_{n}")) for n in range(3)]
        for run in runs[:2]:
            transfer.export(run, content)
        with pytest.raises(KvRefused, match="no_room"):
            transfer.export(runs[2], content)
        assert transfer.release(runs[0].rollout_id)
        transfer.export(runs[2], content)
        transfer.close()
    assert descriptors() == set()


def test_nothing_is_left_when_the_process_lets_go(source: KvTransfer) -> None:
    exported(source, NumpyArena(12), run_of(TOKENS))
    assert descriptors() == {f"/memfd:kv-{ROLLOUT} (deleted)"}
    assert source.release(ROLLOUT)
    assert not source.release(ROLLOUT)
    assert descriptors() == set()


def test_a_run_without_tokens_is_no_export(source: KvTransfer) -> None:
    with pytest.raises(KvRefused, match="no_pages"):
        source.export(run_of(0), np.empty((0, LAYOUT.page_bytes), dtype=np.uint8))


def test_a_held_segment_outlives_its_maker(source: KvTransfer, wall: Wall) -> None:
    run = run_of(TOKENS)
    content = exported(source, NumpyArena(12), run)
    ticket = ticket_of(source)
    held = Segment.opened(ticket.path, ticket.size)
    source.close()
    taken = KvTransfer(wall).take(replace(ticket, path=held.path), run)
    assert (taken == content).all()
    held.close()
    held.close()
    assert not held.is_open
