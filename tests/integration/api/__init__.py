"""Tests: the gateway over real Postgres and real sockets."""
