"""What the body of a plan may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from venusrl.models.plans import PlanProfile

QUANTILES = {"p10": 1, "p50": 2, "p90": 4}
PROFILE: dict[str, Any] = dict.fromkeys(
    ("turns", "prompt_tokens", "output_tokens", "observation_tokens", "tool_s"), QUANTILES
)


@pytest.mark.parametrize("name", ["turns", "output_tokens"])
def test_a_rollout_of_no_turns_or_no_tokens_is_refused(name: str) -> None:
    nothing = {"p10": 0, "p50": 0, "p90": 0}
    with pytest.raises(ValidationError, match="at least one"):
        PlanProfile.model_validate({**PROFILE, name: nothing})
    PlanProfile.model_validate({**PROFILE, "observation_tokens": nothing, "tool_s": nothing})
