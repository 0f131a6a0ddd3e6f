"""Named mistakes, each of which a named test must find."""
