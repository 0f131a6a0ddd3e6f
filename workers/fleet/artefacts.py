"""Names and bounds of what a sealed try leaves for its grader, inside its trajectory."""

from typing import Final

STATE_ARTEFACT: Final = ".venus/state.json"
"""The environment's last snapshot as JSON; graders restore it and never see the name."""

ARTEFACTS_MAX: Final = 64
"""Files taken from one sandbox."""

ARTEFACT_CHARS_MAX: Final = 1 << 18
"""Kept of each file: all of them travel in one frame and in the trajectory."""
