"""Processes that Celery keepers spawn and watch: rollout hosts, trainers, sandbox node agents."""
