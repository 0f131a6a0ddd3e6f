"""Public REST resources, one file per noun; `api/` serves them as they are."""
