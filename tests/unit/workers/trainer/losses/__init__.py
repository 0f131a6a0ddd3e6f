"""Unit tests of the token losses."""
