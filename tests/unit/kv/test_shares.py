"""Accounts of tenants on one resource, and who gets the next slot."""

import pytest

from domain.ids import OrganizationId
from kv.shares import Account, Ledger, WaitingTurn, next_turn

A, B = OrganizationId("org_a"), OrganizationId("org_b")


def ledger(horizon_s: float = 1.0, **weights: float) -> Ledger[OrganizationId]:
    accounts = {A: Account(weights.get("a", 1.0)), B: Account(weights.get("b", 1.0))}
    return Ledger(horizon_s, accounts)


def turn(tenant: OrganizationId, rank: int = 0, name: str = "t") -> WaitingTurn:
    return WaitingTurn(tenant, rank, name)


def test_the_party_that_got_least_over_its_weight_is_next() -> None:
    book = ledger(horizon_s=0.0, a=1.0, b=4.0)
    book.hold(A, 1.0, 0.0)
    book.hold(B, 3.0, 0.0)
    assert book.next_of([A, B], 1, 10.0) == B
    book.hold(A, 0.0, 10.0)
    assert book.next_of([A, B], 1, 20.0) == A


def test_what_is_in_use_counts_in_advance_so_that_grants_of_one_moment_alternate() -> None:
    book, got = ledger(horizon_s=5.0), []
    for _ in range(4):
        tenant = book.next_of([A, B], 1, 0.0)
        assert tenant is not None
        got.append(tenant)
        book.hold(tenant, got.count(tenant), 0.0)
    assert got == [A, B, A, B]


def test_who_did_not_wait_is_lifted_to_the_least_of_those_that_wait() -> None:
    book = ledger(horizon_s=0.0, b=2.0)
    book.wait(A, 0.0)
    book.hold(A, 1.0, 0.0)
    book.wait(B, 100.0)
    assert book.due(B, 100.0) == book.due(A, 100.0) == 100.0
    assert book.accounts[B].used == 200.0


def test_who_is_ahead_when_it_waits_again_stays_ahead() -> None:
    book = ledger(horizon_s=0.0)
    book.wait(A, 0.0)
    book.wait(B, 0.0)
    book.charge(B, 50.0)
    book.rest(B, 1.0)
    book.wait(B, 2.0)
    assert book.due(B, 2.0) == 50.0


def test_the_virtual_time_never_falls_when_the_one_that_waits_is_behind() -> None:
    book = ledger(horizon_s=0.0)
    book.charge(A, 100.0)
    book.wait(A, 0.0)
    book.rest(A, 0.0)
    book.wait(B, 1.0)
    assert book.virtual == 100.0
    assert book.due(B, 1.0) == 100.0


def test_within_its_guarantee_a_party_is_served_whatever_it_got() -> None:
    book = ledger()
    book.account(B).guaranteed = 2.0
    book.charge(B, 1000.0)
    for held, served in ((0, B), (1, B), (2, A)):
        book.hold(B, held, 0.0)
        assert book.next_of([A, B], 1, 0.0) == served


def test_no_rank_takes_the_slot_that_another_tenant_is_owed() -> None:
    book = ledger()
    book.hold(A, 1.0, 0.0)
    chosen = next_turn(book, [turn(A, 0, "best"), turn(B, 9, "last"), turn(B, 8, "b")], 0.0)
    assert chosen == turn(B, 8, "b")


def test_equal_ranks_end_in_the_turn_s_id_whatever_the_order() -> None:
    waiting = [turn(A, 1, "y"), turn(A, 1, "x")]
    assert next_turn(ledger(), waiting, 0.0) == next_turn(ledger(), waiting[::-1], 0.0)
    assert next_turn(ledger(), waiting, 0.0) == turn(A, 1, "x")


def test_nobody_waiting_is_nobody_s_slot() -> None:
    assert next_turn(ledger(), [], 0.0) is None


def test_accounts_that_say_nothing_are_forgotten_and_those_with_a_weight_stay() -> None:
    book = ledger(b=3.0)
    book.wait(A, 0.0)
    book.rest(A, 1.0)
    book.forget_idle(1.0)
    assert list(book.accounts) == [B]


def test_an_account_ahead_of_the_others_is_not_forgotten() -> None:
    book = ledger()
    book.wait(B, 0.0)
    book.charge(A, 10.0)
    book.forget_idle(1.0)
    assert A in book.accounts


def test_a_weight_must_be_positive() -> None:
    with pytest.raises(AssertionError):
        Account(weight=0.0)
