"""Test seams of the rollout host: failpoint names, and the scripted engine where tests allow it.

No job spec can ask for the scripted engine: it takes a variable of the process, and that counts only
where failpoints are allowed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from domain.ids import AttemptId
from infra.failpoints import ALLOW_VARIABLE
from infra.settings import BadSettingError

ATTACHED: Final = "rollout.attached"
"""The journal was returned, nothing is sampled yet."""

GENERATED: Final = "rollout.generated"
"""A turn is sampled and not yet journalled: the only moment at which tokens may be lost."""

TAKEN: Final = "rollout.taken"
"""The environment has replied, its observation is not appended yet."""

BEFORE_UPLOAD: Final = "rollout.before_upload"
"""The journal is sealed, the trajectory is not stored."""

UPLOADED: Final = "rollout.uploaded"
"""The trajectory is stored, the rollout is open."""

CLOSED: Final = "rollout.closed"
"""The close is committed, the leader does not know; `drop` loses the notification."""

EXPORTED: Final = "kv.exported"
"""The pages of a rollout that leaves are copied, the target has heard nothing."""

FETCHED: Final = "kv.fetched"
"""The target holds the pages, the source may let go, nothing is sampled with them yet."""

SYNC_CHUNK: Final = "sync.chunk"
"""A chunk of new weights is about to be written; `count=2` is the middle of a small model's."""

ENGINE_VARIABLE: Final = "VENUS_ENGINE"
SCRIPT_VARIABLE: Final = "VENUS_ENGINE_SCRIPT"


def scripted_engine(attempt_id: AttemptId, environ: Mapping[str, str] | None = None) -> Path | None:
    """The script that this attempt replays instead of running a model; None outside tests.

    Where the variable names a folder, it is `ATTEMPT.json` there, and attempts without one run
    their model.
    """
    source = os.environ if environ is None else environ
    kind = source.get(ENGINE_VARIABLE, "")
    if kind in ("", "embedded"):
        return None
    if kind != "scripted":
        raise BadSettingError(f"{ENGINE_VARIABLE}={kind!r}: embedded or scripted")
    if source.get(ALLOW_VARIABLE) != "1":
        raise BadSettingError(f"{ENGINE_VARIABLE}=scripted is for tests: set {ALLOW_VARIABLE}=1")
    script = Path(source[SCRIPT_VARIABLE])
    if not script.is_dir():
        return script
    own = script / f"{attempt_id}.json"
    return own if own.exists() else None
