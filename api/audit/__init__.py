"""Audit: every call that may change something leaves a row, in the transaction of the change."""
