"""Parts of a node that serve sandboxes of tenants."""
