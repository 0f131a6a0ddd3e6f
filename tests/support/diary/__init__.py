"""An environment package for tests of recovery: every turn leaves exactly one line in the sandbox."""
