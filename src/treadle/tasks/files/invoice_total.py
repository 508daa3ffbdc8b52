"""Tasks: compute an order's total from a price list and discount rules, and write the invoice."""

import json
import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, read_files, write_file
from treadle.tasks.files.grading import Case, Number
from treadle.tasks.files.materials import COMPANIES, PRODUCTS, add_notes, cents, date, money, to_json
from treadle.tasks.solver import Habit, Solver, Step

_ITEM = re.compile(r"(\d+) x (\w+)")


def generate(draw: Draw) -> Case:
    """Draw a price list, discounts for large sums, and several orders. Some customers have their own discount."""
    prices = {product: draw.between(120, 19_900) for product in draw.sample(PRODUCTS, draw.between(6, 12))}
    steps = [
        (draw.between(50, 300) * 100, draw.between(2, 5)),
        (draw.between(301, 900) * 100, draw.between(6, 12)),
    ]
    customers = draw.sample(COMPANIES, draw.between(3, 5))
    special = {name: draw.between(1, 4) for name in draw.sample(customers, 2)}
    shipping = draw.between(390, 1490)
    files = {
        "prices.json": to_json({product: money(price) for product, price in prices.items()}),
        "terms/discounts.txt": "".join([f"from {money(limit)}: {percent} %\n" for limit, percent in steps]),
        "terms/customers.json": to_json(special),
        "terms/shipping.txt": f"Each order: {money(shipping)}\n",
    }
    number = draw.between(1000, 8000)
    orders: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    for offset, customer in enumerate(customers):
        items = [(draw.between(1, 12), name) for name in draw.sample(list(prices), draw.between(2, 6))]
        orders[str(number + offset)] = (customer, items)
        head = f"Order {number + offset}\nCustomer: {customer}\nDate: {date(draw)}\n\n"
        files[f"orders/{number + offset}.txt"] = head + "".join(
            [f"{count} x {name}\n" for count, name in items]
        )
    wanted = draw.pick(list(orders))
    customer, items = orders[wanted]
    text, total = _invoice(items, prices, steps, special.get(customer, 0), shipping)
    add_notes(files, draw, draw.between(0, 2))
    values = {"order": wanted, "target": f"invoices/{wanted}.txt"}
    return Case(values, files, Number(money(total)), {values["target"]: text})


def _invoice(
    items: list[tuple[int, str]],
    prices: Mapping[str, int],
    steps: list[tuple[int, int]],
    own_percent: int,
    shipping: int,
) -> tuple[str, int]:
    lines = [f"{name} {count} {money(count * prices[name])}\n" for count, name in items]
    goods = sum([count * prices[name] for count, name in items])
    percent = own_percent + max([part for limit, part in steps if goods >= limit], default=0)
    discount = (goods * percent + 50) // 100
    total = goods - discount + shipping
    lines += [f"discount {money(discount)}\n", f"shipping {money(shipping)}\n", f"total {money(total)}\n"]
    return "".join(lines), total


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the order, then the files that its price depends on."""
    order = f"orders/{values['order']}.txt"
    needed = (order, "prices.json", "terms/customers.json", "terms/discounts.txt", "terms/shipping.txt")
    paths = yield from find_paths(lambda path: path in needed)
    texts = yield from read_files(paths, habit)
    items = [(int(count), name) for count, name in _ITEM.findall(texts[order])]
    prices = {name: cents(price) for name, price in json.loads(texts["prices.json"]).items()}
    found = re.findall(r"from (\S+): (\d+) %", texts["terms/discounts.txt"])
    steps = [(cents(limit), int(percent)) for limit, percent in found]
    customer = texts[order].partition("Customer: ")[2].partition("\n")[0].strip()
    own_percent = int(json.loads(texts["terms/customers.json"]).get(customer, 0))
    shipping = cents(texts["terms/shipping.txt"].rpartition(":")[2])
    text, total = _invoice(items, prices, steps, own_percent, shipping)
    answer = final(habit, money(total), f"{customer} pays for {len(items)} items.")
    yield Step([write_file(values["target"], text)], f"The total is {money(total)}; now the invoice.", answer)
    return answer
