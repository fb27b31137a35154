"""Asks an archive: `ask.py duckdb|clickhouse` reads a JSON list of queries and writes a JSON list of answers.

Each answer is a list of rows. Numbers come as numbers, all else as text.
"""

import datetime
import decimal
import json
import sys


def plain(value):
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    # ClickHouse writes a whole number without a point.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return value


def duckdb(queries):
    import duckdb as engine

    connection = engine.connect()
    for query in queries:
        # A query may be several statements; the last one has the answer.
        rows = connection.execute(query).fetchall()
        yield [[plain(value) for value in row] for row in rows]


def clickhouse(queries):
    from chdb import session

    asked = session.Session()
    for query in queries:
        text = str(asked.query(query.strip().rstrip(";"), "JSONCompact"))
        document = json.loads(text) if text.strip() else {"data": [], "meta": []}
        wide = {
            place
            for place, column in enumerate(document["meta"])
            if column["type"].replace("Nullable(", "").startswith(("Int64", "UInt64", "Int128"))
        }
        yield [
            [int(v) if place in wide and v is not None else v for place, v in enumerate(row)]
            for row in document["data"]
        ]


if __name__ == "__main__":
    engines = {"duckdb": duckdb, "clickhouse": clickhouse}
    answers = list(engines[sys.argv[1]](json.load(sys.stdin)))
    json.dump(answers, sys.stdout)
