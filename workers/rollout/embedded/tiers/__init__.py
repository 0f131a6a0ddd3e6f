"""The outer tiers of the embedded engine: pages in the host's memory and in a file.

stores.py     bytes of pages in memory and in a memory-mapped file, checked when they are read
transfers.py  the thread that copies between them; the decode thread never waits for a disk
order.py      which pages of the memory go to the file first
outer.py      which page leaves to which tier, and what is fetched back
"""
