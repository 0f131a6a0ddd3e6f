"""Expected refusals. Each names a closed code that a user or a caller can act on."""


class VenusError(Exception):
    """Base of every expected refusal; `code` is a member of a closed set."""

    code = "internal"


class FencedOut(VenusError):
    """A write carried an old term, epoch, try, hop or grade epoch; the caller must stop acting."""

    code = "fenced_out"


class NotFound(VenusError):
    """The object does not exist or belongs to another tenant."""

    code = "not_found"


class Conflict(VenusError):
    """The object is in a state that forbids the request."""

    code = "conflict"


class PayloadUnreadable(VenusError):
    """A stored object is missing or does not match its recorded sha."""

    code = "payload_unreadable"


class StoreUnavailable(VenusError):
    """The database is away or ended the session: nothing is known to be wrong, try again.

    A commit that ends so may have taken effect; what is tried again must be idempotent.
    """

    code = "store_unavailable"


class SecretUnavailable(VenusError):
    """A secret cannot be sealed or opened: it is gone, or this installation has not its key."""

    code = "secret_unavailable"


class ObjectNotWritten(VenusError):
    """The object store did not take an object: disk full, no permission, or it is away."""

    code = "object_not_written"
