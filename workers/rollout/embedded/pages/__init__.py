"""Whose is which page: the page table of one engine, free of torch and of time.

nodes.py   a page of tokens in the radix tree, trajectories, leases of running turns
leaves.py  the pages that may go, in the order that `kv.eviction` gives
table.py   open, fill, park, close, fork, release, retire, export and adopt
audit.py   the accounting, derived anew: free + evictable + locked == total
memory.py  what has been here: by it the engine knows what it computes again
"""
