"""Every byte of a node is counted once."""

import pytest

from sandboxes.core.names import TemplateId
from sandboxes.core.pages import NodePages, PageUse
from tests.unit.sandboxes.core.made import key

T = TemplateId("t")


def pages() -> NodePages:
    made = NodePages(1_000, other_bytes=7)
    made.load(T, 100)
    return made


def test_shared_pages_are_counted_once_whatever_the_number_of_clones() -> None:
    node = pages()
    for index in range(3):
        node.admit(key(index), T, PageUse(10, 0, 2))
    assert (node.private_bytes, node.overhead_bytes, node.shared_bytes) == (30, 6, 100)
    assert node.committed_bytes == 143


def test_swapped_pages_are_private_but_not_resident() -> None:
    node = pages()
    node.admit(key(1), T, PageUse(50, 40, 2))
    assert node.committed_bytes - node.resident_bytes == 40
    assert node.use_of(key(1)).resident_bytes == 12


def test_a_sibling_that_leaves_changes_nobody_elses_marginal_cost() -> None:
    node = pages()
    node.admit(key(1), T, PageUse(10))
    node.admit(key(2), T, PageUse(20))
    node.release(key(1))
    assert node.use_of(key(2)) == PageUse(20)
    assert (node.private_bytes, node.shared_bytes) == (20, 100)


def test_a_mapped_snapshot_is_never_unloaded() -> None:
    node = pages()
    node.admit(key(1), T)
    assert node.idle_templates() == ()
    with pytest.raises(AssertionError, match="mapped"):
        node.unload(T)


def test_an_idle_snapshot_gives_its_bytes_back() -> None:
    node = pages()
    node.admit(key(1), T)
    node.release(key(1))
    assert node.idle_templates() == (T,)
    assert node.unload(T) == 100
    assert node.committed_bytes == 7


def test_more_swapped_than_private_is_refused() -> None:
    with pytest.raises(AssertionError, match="swapped"):
        PageUse(10, 11)


def test_one_key_is_one_sandbox() -> None:
    node = pages()
    node.admit(key(1), T)
    with pytest.raises(AssertionError, match="one key"):
        node.admit(key(1), T)


def test_a_sum_that_drifted_is_found() -> None:
    node = pages()
    node.admit(key(1), T, PageUse(10))
    assert node.faults() == []
    node.private_bytes += 1
    assert node.faults() == ["private: 11 kept, 10 held"]
