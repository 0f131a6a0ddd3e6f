"""The vocabulary of VenusRL: ids, records, events and commands. Standard library only, no I/O, no clock."""
