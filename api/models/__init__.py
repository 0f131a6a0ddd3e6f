"""Models: built in, uploaded, from a checkpoint or a hub revision."""
