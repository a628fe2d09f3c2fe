"""The named comparison: the `eventsourcing` library's own application and ProjectionRunner on the same server.

    python -m benchmarks.library throughput DSN EVENTS
    python -m benchmarks.library latency DSN SAVES_PER_S SECONDS

`throughput`: EVENTS saved events are projected (an upsert and the tracking record, one transaction each).
`latency`: a save, until the runner has made its row visible.
"""

from __future__ import annotations

import json
import sys
import time
from threading import Event
from typing import Any, ClassVar
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, DomainEvent, event
from eventsourcing.persistence import Tracking, TrackingRecorder
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from benchmarks.commands import percentiles

WAIT_S = 120.0
SAVES_PER_CALL = 100


class Node(Aggregate):
    @event("Enrolled")
    def __init__(self, credential: str) -> None:
        self.credential = credential


class Fleet(Application[UUID]):
    name = "fleet"
    snapshotting_intervals: ClassVar[Any] = None


class NodeTable(TrackingRecorder):
    def upsert(self, ident: UUID, credential: str, tracking: Tracking) -> None:
        raise NotImplementedError


class PostgresNodeTable(PostgresTrackingRecorder, NodeTable):
    def __init__(self, datastore: Any, **kwargs: Any) -> None:
        super().__init__(datastore, **kwargs)
        table = Identifier(self.datastore.schema), Identifier("nodes")
        self.sql_create_statements.append(
            SQL("CREATE TABLE IF NOT EXISTS {0}.{1} (id uuid PRIMARY KEY, credential text)").format(*table)
        )
        self._upsert = SQL(
            "INSERT INTO {0}.{1} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET credential = EXCLUDED.credential"
        ).format(*table)

    def upsert(self, ident: UUID, credential: str, tracking: Tracking) -> None:
        with self.datastore.transaction(commit=True) as curs:
            self._insert_tracking(curs, tracking)
            curs.execute(self._upsert, (ident, credential), prepare=True)


class NodeProjection(Projection[NodeTable]):
    """`visible` is set after each committed upsert: its waiter pays for no polling (`runner.wait` polls at 0.1 s)."""

    name = "nodes"
    visible = Event()

    def process_event(self, domain_event: DomainEvent[UUID], tracking: Tracking) -> None:
        self.view.upsert(domain_event.originator_id, getattr(domain_event, "credential", ""), tracking)
        self.visible.set()


def environment(dsn: str) -> dict[str, str]:
    options = conninfo_to_dict(dsn)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(options["dbname"]),
        "POSTGRES_HOST": str(options["host"]),
        "POSTGRES_PORT": str(options.get("port") or 5432),
        "POSTGRES_USER": str(options["user"]),
        "POSTGRES_PASSWORD": "",
    }


def runner(env: dict[str, str]) -> Any:
    return ProjectionRunner(
        application_class=Fleet, projection_class=NodeProjection, view_class=PostgresNodeTable, env=env
    )


def throughput(dsn: str, events: int) -> dict[str, Any]:
    env = environment(dsn)
    app = Fleet(env)
    last = 0
    for _ in range(events // SAVES_PER_CALL):
        last = app.save(*[Node("ab" * 32) for _ in range(SAVES_PER_CALL)])[-1].notification.id
    with runner(env) as running:
        started = time.perf_counter()
        running.wait(last, timeout=WAIT_S)
        took_s = time.perf_counter() - started
    app.close()
    return {"events": events, "per_s": events / took_s}


def latency(dsn: str, rate: float, seconds: float) -> dict[str, Any]:
    app_env, values = environment(dsn), []
    with runner(app_env) as running:
        started = time.perf_counter()
        for number in range(int(rate * seconds)):
            delay = started + number / rate - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            begun = time.perf_counter()
            NodeProjection.visible.clear()
            running.app.save(Node("ab" * 32))
            if not NodeProjection.visible.wait(WAIT_S):
                raise TimeoutError("the library did not project the event")
            values.append((time.perf_counter() - begun) * 1000)
    return {"rate": rate, "visible_ms": percentiles(values)}


def main() -> None:
    mode, dsn = sys.argv[1:3]
    if mode == "throughput":
        result = throughput(dsn, int(sys.argv[3]))
    else:
        result = latency(dsn, float(sys.argv[3]), float(sys.argv[4]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
