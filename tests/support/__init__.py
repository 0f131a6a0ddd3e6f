"""Helpers that every kind of test may use: waiting, requirements, real services, failpoints."""

from tests.support.requirements import requires
from tests.support.waiting import eventually, wait_until

__all__ = ["eventually", "requires", "wait_until"]
