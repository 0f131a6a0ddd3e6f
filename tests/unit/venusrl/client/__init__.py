"""Tests: the client library, on transports that play the API."""
