"""Which of the named capabilities this machine has: `python -m tests.support.capabilities bwrap ...`

Prints those it has, separated by commas, for `VENUS_REQUIRE`; exits 1 when one is missing.
"""

import sys

from tests.support.requirements import probe


def main(names: list[str]) -> int:
    """Command-line entry."""
    had = [name for name in names if probe(name).is_ok]
    sys.stdout.write(",".join(had) + "\n")
    return 0 if had == names else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
