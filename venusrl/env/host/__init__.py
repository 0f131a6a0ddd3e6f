"""The host's end of an environment: reads a package, runs its process, checks it by its cases.

Used by the platform's nodes and validations, and by `venus env` on a laptop: one implementation, so
that what passes here passes there. Standard library only, like the rest of the kit.
"""
