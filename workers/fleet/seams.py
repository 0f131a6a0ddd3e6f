"""Failpoints of the node agent, listed in `docs/testing.md`."""

from typing import Final

SANDBOX_CREATED: Final = "node.sandbox_created"
"""The sandbox exists, the leader has not heard of it."""

INTENT_JOURNALLED: Final = "node.intent_journalled"
"""The intent is in the journal, its reply has not started."""

REPLIED: Final = "node.replied"
"""The environment has replied, the journal has no record of it."""

BEFORE_GRADE_COMMIT: Final = "node.before_grade_commit"
"""The payload is stored, no row names it."""

AFTER_GRADE_COMMIT: Final = "node.after_grade_commit"
"""Verdicts are committed, the leader has not heard of them."""
