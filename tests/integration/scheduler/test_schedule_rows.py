"""The leader writes what changed in a schedule, under its term, and a new leader starts anew."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from sqlalchemy import insert, select, update

from domain.errors import FencedOut
from domain.ids import AttemptId, GroupId, JobId, ProjectId
from stores import schedules as read
from stores import tables as t
from stores.system import schedules
from stores.system.schedules import ScheduleChange
from stores.unit_of_work import Database, LeaderFence
from tests.support.rows import add_job, add_tenant
