import json
from dataclasses import asdict, dataclass


@dataclass
class Order:
    id: int
    email: str
    total: float

    def as_dict(self):
        return asdict(self)


def write(conn, order):
    def place(order):
        conn.execute("INSERT INTO orders VALUES (%s, %s, %s)", (order.id, order.email, order.total))

# README
