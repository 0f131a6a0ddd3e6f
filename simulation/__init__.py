"""Modelled and recorded worlds around the coordinator's core; nothing here acts on a real one."""
