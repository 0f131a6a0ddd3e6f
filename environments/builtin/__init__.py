"""Environment packages that ship with the platform. Folders below are packages, not modules."""
