"""A second start does not wait for what the first one left in the database."""

import psycopg

from supervisor.services import forget_former_run


def test_leases_and_leadership_of_a_former_run_end_at_once(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into host_lease (id, kind, desired, owner, lease_until)"
            " values ('host_node0', 'node', 'up', 'gone', now() + interval '1 hour')"
        )
        connection.execute(
            "insert into leadership (id, term, address, key, backend_pid, heartbeat_at)"
            " values (1, 7, '127.0.0.1:1', '\\x00', 1, now())"
        )
        forget_former_run(database_url)
        lease = connection.execute("select epoch, lease_until < now() from host_lease").fetchone()
        led = connection.execute("select term, address from leadership").fetchone()
    assert lease == (1, True), "the leader raises the epoch, as for every lease that expired"
    assert led == (7, "")
