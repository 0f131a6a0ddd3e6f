"""Range headers, and whole numbers in headers."""

import pytest

from api.bodies import number_in
from api.checkpoints.service import Part, part_of
from api.problems import Problem

ALL = Part(0, 10, is_partial=False)

CASES: dict[str | None, Part] = {
    None: ALL,
    "": ALL,
    "bytes=": ALL,
    "bytes=-": ALL,
    "bytes=a-b": ALL,
    "bytes=0-1,3-4": ALL,
    "bytes=0-": Part(0, 10, is_partial=True),
    "bytes=3-5": Part(3, 6, is_partial=True),
    "bytes=9-9": Part(9, 10, is_partial=True),
    "bytes=3-999999": Part(3, 10, is_partial=True),
    "bytes=-4": Part(6, 10, is_partial=True),
    "bytes=-400": Part(0, 10, is_partial=True),
}


def test_a_range_is_what_it_asks_for_or_the_whole() -> None:
    assert {header: part_of(header, 10) for header in CASES} == CASES


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=5-4", "bytes=-0"])
def test_a_range_without_bytes_is_refused(header: str) -> None:
    with pytest.raises(Problem) as caught:
        part_of(header, 10)
    assert caught.value.status == 416


def test_a_header_that_is_no_small_whole_number_counts_as_zero() -> None:
    texts = ("12", "", "-1", "1.0", "x", "²", "٣", "9" * 19)
    assert [number_in({"n": text}, "n") for text in texts] == [12, 0, 0, 0, 0, 0, 0, 0]
    assert number_in({}, "n") == 0
