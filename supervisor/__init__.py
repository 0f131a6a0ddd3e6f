"""`venus up`: starts, watches and stops everything on one machine; `venus doctor` looks before.

Stands above api, scheduler and workers only as a process stands above its children: it runs their
mains and imports none of them (ADR 0002).
"""
