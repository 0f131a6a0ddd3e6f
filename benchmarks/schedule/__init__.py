"""The scheduling benchmark: every strategy over the same groups on the same modelled machines."""
