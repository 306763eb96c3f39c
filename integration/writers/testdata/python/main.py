"""Writes an order with each program of the page into each database of the command line.

The order commits, and one more fails at its commit, because its e-mail address is none.
"""
import sys
from urllib.parse import unquote, urlsplit

import django
import psycopg
from django.conf import settings
from opentelemetry import context, trace
from sqlalchemy import create_engine
from sqlalchemy.orm import Session


def database(url):
    u = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": u.path[1:],
        "USER": unquote(u.username),
        "PASSWORD": unquote(u.password or ""),
        "HOST": u.hostname,
        "PORT": str(u.port),
    }


settings.configure(
    INSTALLED_APPS=["shop"], DATABASES={str(i): database(url) for i, url in enumerate(sys.argv[1:])} | {"default": database(sys.argv[1])}
)
django.setup()

import readme  # noqa: E402
import with_psycopg  # noqa: E402
import with_sqlalchemy  # noqa: E402
from django.db import connections  # noqa: E402
from shop import outbox  # noqa: E402


def place_both(number, name, place):
    """place commits one order, and fails with another one."""
    place({"id": number, "email": name + "@example.com", "total": 12.5})
    try:
        place({"id": number + 100, "email": name, "total": 12.5})
    except Exception as e:
        if "no address" not in str(e):
            raise
    else:
        sys.exit(name + " commits an order that the database refuses")


def run(number, url):
    with psycopg.connect(url, autocommit=True) as conn:
        place_both(1, "psycopg", lambda order: with_psycopg.place_order(conn, order))
        place_both(2, "readme", lambda order: readme.write(conn, readme.Order(**order)))
    engine = create_engine(url.replace("postgres://", "postgresql+psycopg://"))
    with Session(engine) as session:
        place_both(3, "sqlalchemy", lambda order: with_sqlalchemy.place_order(session, order))
    engine.dispose()
    connections["default"].close()
    connections["default"].settings_dict.update(connections[str(number)].settings_dict)
    place_both(4, "django", outbox.place_order)


span = trace.SpanContext(
    0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_remote=False, trace_flags=trace.TraceFlags(1)
)
context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
for i, url in enumerate(sys.argv[1:]):
    run(i, url)
