"""The whole stack, strategy against strategy: real jobs, engines with few pages, sandboxes, tool delays."""
