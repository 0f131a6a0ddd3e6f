"""Sandboxes and environment processes on an author's own machine, for `venus env`.

With bubblewrap they are confined like those of a node; without it they are plain child processes in
a temporary folder, which is said once. Nothing here serves somebody else's code.
"""
