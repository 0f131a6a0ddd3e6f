"""Virtual time: modelled engines, workloads and bounds on which the coordinator's core is measured.

Imports the pure packages only, and the standard library. What it computes depends on its arguments
and seeds alone, so that one seed and one commit reproduce every figure.
"""
