"""Proofs at a node's door: both sides know its key, which stands beside its address in Postgres.

Over both nonces, so that nothing that was heard opens the door again, and over host and epoch, so that
the door of another node or of an earlier agent does not pass for this one.
"""

from infra.proofs import proof


def gateways_proof(key: bytes, theirs: bytes, ours: bytes, host_id: str, epoch: int) -> bytes:
    """What the gateway sends: the node's nonce first."""
    return proof(key, b"gateway", theirs, ours, host_id, epoch)


def nodes_proof(key: bytes, theirs: bytes, ours: bytes, host_id: str, epoch: int) -> bytes:
    """What the node sends: the gateway's nonce first."""
    return proof(key, b"door", theirs, ours, host_id, epoch)
