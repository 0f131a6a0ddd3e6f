"""Entry point of Celery workers: `celery -A workers.app worker -Q hosts,chores`.

Imports stay light: a slow pool child would be killed at start, and torch never enters a Celery
process.
"""

from infra.broker import make_app
from infra.settings import Settings

app = make_app(Settings.from_env().broker_url)
app.conf.update(include=["workers.keeper", "workers.chores"])
