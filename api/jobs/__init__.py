"""Jobs: validation, creation, verbs, events, metrics, ledger."""
