"""The environment package of the benchmark: episodes of drawn lengths whose tools sleep."""
