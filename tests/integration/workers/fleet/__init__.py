"""The node agent over real sandboxes, environments and Postgres."""
