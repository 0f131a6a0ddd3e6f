"""Whole runs of the coordinator on a virtual clock, with modelled hosts and faults."""
