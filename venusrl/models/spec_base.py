"""Types that all parts of a job spec share."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from venusrl.models._base import NAME, TEXT, Wire

MAX_STEPS_MAX: Final = 9_999
"""Steps of one job: evaluations number their groups by step with four digits."""

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME)]
LabelValue = Annotated[str, Field(max_length=200, pattern=TEXT)]
Labels = Annotated[dict[Name, LabelValue], Field(max_length=32)]
Split = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
EnvironmentRef = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}(@[0-9]{1,9})?$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,62}$")]
SecretName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]


class SpecPart(Wire):
    """Part of a spec."""

    model_config = ConfigDict(use_attribute_docstrings=True)
