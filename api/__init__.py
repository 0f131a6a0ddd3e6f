"""The REST gateway: a folder per noun with `routes.py` (parse, call, serialize) and `service.py` (verbs)."""
