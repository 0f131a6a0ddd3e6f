"""Usage: seconds for which things were held."""

from datetime import datetime
from typing import Literal

from venusrl.models._base import Answer

GroupBy = Literal["job", "project", "resource"]
BucketSize = Literal["hour", "day"]


class UsageLine(Answer):
    """Seconds of one resource, held by one object in one bucket of time (UTC).

    `bucket_start` and `bucket_end` are cut to `since` and `until`. Where several are held at once
    their seconds add up.
    """

    bucket_start: datetime
    bucket_end: datetime
    resource: str
    project_id: str | None = None
    """Of the lines by job and by project."""
    job_id: str | None = None
    """Of the lines by job."""
    seconds: float
