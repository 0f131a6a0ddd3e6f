"""The coordinator's pure core: `accept` refuses what is late or foreign, `step` decides what follows.

No clock, no chance, no I/O: time is an argument, order ends in an id. One module holds one idea;
`coordinator.py` is the only entry. The scheduler process, the simulator and replays run this code.
"""
