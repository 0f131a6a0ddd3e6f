"""The files that `venus env init` writes; `NAME` and `Class` stand for the new environment's own."""
