"""Tasks about the tables and lists of an office: orders, ledgers, contacts, stock, hours, marks, invoices."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files import file_calls as f
from treadle.tasks.files import materials as m
from treadle.tasks.files.grading import Items, Number, make_case
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.solver import Habit, Solver, Step

# Add up a column over the rows that match a filter, in several CSV files with different layouts.
_AMOUNTS = ("amount", "net", "total", "price", "value")
_ORDER_STATES = ("paid", "open", "refunded", "disputed", "cancelled")
_ORDER_FOLDERS = ("sales", "orders", "exports/sales", "finance/orders", "data/orders")


def generate_csv_sum(draw: Draw) -> GeneratedCase:
    """Draw two to five order lists, and one in an archive that must not be counted."""
    folder = draw.pick(_ORDER_FOLDERS)
    column = draw.pick(_AMOUNTS)
    key = draw.pick(("status", "region"))
    statuses, regions = draw.sample(_ORDER_STATES, 3), draw.sample(m.REGIONS, 3)
    wanted = draw.pick(statuses if key == "status" else regions)
    files: dict[str, str] = {}
    total = 0
    names = [f"{folder}/{draw.between(2021, 2023)}-{month:02d}.csv" for month in range(1, 13)]
    paths = [*draw.sample(names, draw.between(2, 5)), f"archive/{folder}/2019-12.csv"]
    for path in paths:
        rows = []
        year, month = int(path[-11:-7]), int(path[-6:-4])
        for number in range(draw.between(4, 12)):
            row = {
                "order": f"{draw.pick('ABCDEF')}{draw.between(100, 999)}{number}",
                "date": m.date(draw, year, month),
                "customer": draw.pick(m.COMPANIES) + draw.pick(("", ", Inc.", " Ltd")),
                "status": draw.pick(statuses),
                "region": draw.pick(regions),
                column: m.money(draw.between(150, 250_000)),
            }
            rows.append(row)
            if path.startswith(f"{folder}/") and row[key] == wanted:
                total += m.cents(row[column])
        files[path] = m.to_csv(rows, draw.shuffled(list(rows[0])), draw.pick(",,;"))
    m.add_notes(files, draw, draw.between(0, 3))
    values = {"folder": folder, "column": column, "key": key, "value": wanted}
    if draw.chance(0.5):
        return make_case(values, files, Number(m.money(total)))
    report = f"reports/{wanted}-{column}.txt"
    changes: dict[str, str | None] = {report: m.money(total) + "\n"}
    return make_case({**values, "report": report}, files, Number(m.money(total)), changes)


def solve_csv_sum(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read every CSV file in the folder and add up the rows that match."""
    texts = yield from f.read_folder(values["folder"], habit, ".csv")
    total = count = 0
    for text in texts.values():
        delimiter = ";" if ";" in text.partition("\n")[0] else ","
        for row in csv.DictReader(io.StringIO(text), delimiter=delimiter):
            if row[values["key"]] == values["value"]:
                total += m.cents(row[values["column"]])
                count += 1
    prose = f"{count} rows in {len(texts)} files have {values['key']} {values['value']}."
    answer = f.final(habit, m.money(total), prose)
    if "report" in values:
        yield Step(
            [f.write_file(values["report"], m.money(total) + "\n")], f"{prose} Now the report.", answer
        )
    return answer


# Reconcile two ledgers and report the differences.
def generate_ledger_diff(draw: Draw) -> GeneratedCase:
    """Draw two ledgers over one to three months. Some entries differ, and some are in only one ledger."""
    left, right = draw.sample(("bank", "books", "shop", "warehouse", "cards", "till"), 2)
    year = draw.between(2021, 2025)
    months = draw.sample(range(1, 13), draw.between(1, 3))
    entries: dict[str, tuple[int | None, int | None]] = {}
    rows: dict[str, list[dict[str, str]]] = {}
    for month in sorted(months):
        for number in range(draw.between(5, 11)):
            reference = f"{draw.pick('KLMNPR')}{year % 100}{month:02d}{draw.between(10, 99)}{number:02d}"
            amount = draw.between(-90_000, 250_000)
            off = draw.pick((0, 0, 0, 0, -900, 9, 100, 27)) if entries else draw.between(1, 9999)
            one: int | None = amount
            two: int | None = amount + off
            if off == 0 and draw.chance(0.2):
                one, two = draw.pick(((amount, None), (None, amount)))
            entries[reference] = (one, two)
            who = draw.pick(m.COMPANIES)
            for side, value in ((left, one), (right, two)):
                if value is not None:
                    row = {
                        "ref": reference,
                        "date": m.date(draw, year, month),
                        "text": who,
                        "amount": m.money(value),
                    }
                    rows.setdefault(f"ledgers/{side}/{year}-{month:02d}.csv", []).append(row)
    files = {}
    for path, part in rows.items():
        columns = (
            ["date", "ref", "amount", "text"] if f"/{left}/" in path else ["ref", "text", "date", "amount"]
        )
        files[path] = m.to_csv(draw.shuffled(part), columns)
    m.add_notes(files, draw, draw.between(1, 3))
    target = f"reports/{left}-{right}.csv"
    content, difference = _compare_both(left, right, entries)
    values = {"left": left, "right": right, "target": target}
    return make_case(values, files, Number(m.money(difference)), {target: content})


def _compare_both(
    left: str, right: str, entries: Mapping[str, tuple[int | None, int | None]]
) -> tuple[str, int]:
    """Return the report, and the left sum minus the right sum in cents."""
    lines = [f"ref,{left},{right}\n"]
    difference = 0
    for reference, (one, two) in sorted(entries.items()):
        if one != two:
            lines.append(
                f"{reference},{'' if one is None else m.money(one)},{'' if two is None else m.money(two)}\n"
            )
        difference += (one or 0) - (two or 0)
    return "".join(lines), difference


def solve_ledger_diff(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read both ledgers, join them by reference, and write the differences."""
    paths = yield from f.find_paths(f.in_folder("ledgers", ".csv"))
    left, right = values["left"], values["right"]
    sides = {path: path.split("/")[1] for path in paths if path.split("/")[1] in (left, right)}
    texts = yield from f.read_files(list(sides), habit)
    amounts: dict[str, dict[str, int]] = {left: {}, right: {}}
    for path, text in texts.items():
        for row in csv.DictReader(io.StringIO(text)):
            amounts[sides[path]][row["ref"]] = m.cents(row["amount"])
    references = amounts[left].keys() | amounts[right].keys()
    entries = {ref: (amounts[left].get(ref), amounts[right].get(ref)) for ref in references}
    content, difference = _compare_both(left, right, entries)
    count = content.count("\n") - 1
    answer = f.final(habit, m.money(difference), f"{count} of {len(entries)} entries differ.")
    yield Step([f.write_file(values["target"], content)], f"{count} references differ; I list them.", answer)
    return answer


# Merge contact lists and keep the newest entry of each address.
_CONTACT = ("email", "name", "phone", "updated")


def generate_contacts_dedupe(draw: Draw) -> GeneratedCase:
    """Draw three to five lists. The same address occurs with different capitals and spaces."""
    folder = draw.pick(("contacts", "crm/export", "people", "lists"))
    persons = [(name, m.email(name, draw)) for name in m.people(draw, draw.between(7, 16))]
    paths = [f"{folder}/{name}.csv" for name in draw.sample(("fair", "import", "mail", "office", "web"), 5)]
    rows: dict[str, list[dict[str, str]]] = {path: [] for path in paths[: draw.between(3, 5)]}
    days = iter(
        draw.shuffled([f"20{year}-{month:02d}-17" for year in range(20, 25) for month in range(1, 13)])
    )
    kept: dict[str, dict[str, str]] = {}
    phones: Counter[str] = Counter()
    for name, address in persons:
        for _ in range(draw.pick((1, 1, 2, 3))):
            spelt = draw.pick((address, address.upper(), address.title(), f" {address}"))
            phone = f"+{draw.between(30, 99)} {draw.between(100, 999)} {draw.between(1000, 9999)}"
            row = {"email": spelt, "name": name, "phone": phone, "updated": next(days)}
            rows[draw.pick(list(rows))].append(row)
            phones[address] += 1
            if address not in kept or row["updated"] > kept[address]["updated"]:
                kept[address] = {**row, "email": address}
    files = {path: m.to_csv(draw.shuffled(part), draw.shuffled(_CONTACT)) for path, part in rows.items()}
    m.add_notes(files, draw, draw.between(0, 3), folder)
    target = f"{folder}/{draw.pick(('all', 'merged', 'clean'))}-{m.date(draw)[:4]}.csv"
    content = m.to_csv([kept[address] for address in sorted(kept)], _CONTACT)
    person = draw.pick([name for name, address in persons if phones[address] > 1] or [persons[0][0]])
    entry = next(row for row in kept.values() if row["name"] == person)
    expected = Items((entry["phone"],), tuple([row["phone"] for part in rows.values() for row in part]))
    values = {"folder": folder, "target": target, "person": person}
    return make_case(values, files, expected, {target: content})


def solve_contacts_dedupe(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the lists and keep the newest row of each address."""
    is_list = f.in_folder(values["folder"], ".csv")
    paths = yield from f.find_paths(lambda path: is_list(path) and path != values["target"])
    texts = yield from f.read_files(paths, habit)
    kept: dict[str, dict[str, str]] = {}
    count = 0
    for text in texts.values():
        for row in csv.DictReader(io.StringIO(text)):
            address = row["email"].strip().lower()
            count += 1
            if address not in kept or row["updated"] > kept[address]["updated"]:
                kept[address] = {**row, "email": address}
    content = m.to_csv([kept[address] for address in sorted(kept)], _CONTACT)
    phone = next((row["phone"] for row in kept.values() if row["name"] == values["person"]), "unknown")
    answer = f.final(habit, phone, f"{len(kept)} of {count} contacts stay.")
    yield Step([f.write_file(values["target"], content)], "I keep the newest entry of each address.", answer)
    return answer


# Update a stock list with the movements of several days.
def generate_stock_update(draw: Draw) -> GeneratedCase:
    """Draw a stock list and two to six days of movements, some of them cancelled."""
    folder = draw.pick(("moves", "stock/days", "warehouse/moves", "journal"))
    stock_path = draw.pick(("stock.json", "stock/now.json", "warehouse/stock.json"))
    names = draw.sample(m.PRODUCTS, draw.between(5, 10))
    stock = {name: {"count": draw.between(40, 200), "minimum": draw.between(10, 60)} for name in names}
    files = {stock_path: m.to_json(stock)}
    counts = {name: entry["count"] for name, entry in stock.items()}
    day = draw.between(1, 20)
    for offset in range(draw.between(2, 6)):
        lines = ["time,product,change,note\n"]
        for _ in range(draw.between(3, 9)):
            name = draw.pick(names)
            change = draw.pick((draw.between(-40, -1), draw.between(1, 30)))
            note = "cancelled" if draw.chance(0.2) else draw.pick(("", "", "rush", "returned"))
            lines.append(f"{draw.between(6, 18):02d}:{draw.below(60):02d},{name},{change:+d},{note}\n")
            if note != "cancelled":
                counts[name] += change
        files[f"{folder}/2024-06-{day + offset:02d}.csv"] = "".join(lines)
    low = [name for name in names if counts[name] < stock[name]["minimum"]]
    if not low:
        low = [draw.pick(names)]
        stock[low[0]]["minimum"] = counts[low[0]] + draw.between(1, 9)
        files[stock_path] = m.to_json(stock)
    m.add_notes(files, draw, draw.between(0, 2))
    result = {name: {"count": counts[name], "minimum": stock[name]["minimum"]} for name in names}
    values = {"stock": stock_path, "folder": folder}
    return make_case(values, files, Items(tuple(low), tuple(names)), {stock_path: m.to_json(result)})


def solve_stock_update(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the list and the days, apply the movements that were not cancelled, and write the list."""
    texts = yield from f.read_folder(values["folder"], habit, ".csv")
    (text,) = yield Step([f.read_file(values["stock"])], "And the list that these apply to.")
    stock = json.loads(text)
    for path in sorted(texts):
        for line in texts[path].splitlines()[1:]:
            _, name, change, note = line.split(",")
            if note != "cancelled":
                stock[name]["count"] += int(change)
    low = [name for name, entry in stock.items() if entry["count"] < entry["minimum"]]
    answer = f.final(habit, ", ".join(low), f"{len(low)} of {len(stock)} products are below their minimum.")
    yield Step([f.write_file(values["stock"], m.to_json(stock))], "Now the new counts.", answer)
    return answer


# Add up hours from weekly time sheets and compute the pay.
_SHIFT = re.compile(r"(\w+ \w+), (\w+): (\d\d):(\d\d)-(\d\d):(\d\d)(?:, break (\d+) min)?")


def generate_timesheet(draw: Draw) -> GeneratedCase:
    """Draw two to five weeks of three to six people, and a file with the hourly rates."""
    folder = draw.pick(("timesheets", "hours", "hr/weeks", "shifts"))
    rates_path = draw.pick(("rates.json", "hr/rates.json", "pay/rates.json"))
    staff = m.people(draw, draw.between(3, 6))
    rates = {name: draw.between(24, 90) * 60 for name in staff}
    minutes = dict.fromkeys(staff, 0)
    files = {rates_path: m.to_json({name: m.money(rate) for name, rate in rates.items()})}
    week = draw.between(1, 45)
    for offset in range(draw.between(2, 5)):
        lines = []
        for name in draw.shuffled(staff)[: draw.between(2, len(staff))]:
            for day in draw.sample(("Mon", "Tue", "Wed", "Thu", "Fri"), draw.between(1, 3)):
                start = draw.between(6 * 4, 10 * 4) * 15
                end = start + draw.between(12, 36) * 15
                pause = draw.pick((0, 0, 15, 30, 45))
                text = f"{name}, {day}: {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"
                lines.append(text + (f", break {pause} min" if pause else "") + "\n")
                minutes[name] += end - start - pause
        files[f"{folder}/week-{week + offset:02d}.txt"] = "".join(lines)
    m.add_notes(files, draw, draw.between(0, 2))
    worked = {name: count for name, count in minutes.items() if count}
    target = f"pay/{folder.rpartition('/')[2]}-{week:02d}.json"
    pay = {name: m.money(count * rates[name] // 60) for name, count in worked.items()}
    total = sum([count * rates[name] // 60 for name, count in worked.items()])
    values = {"folder": folder, "rates": rates_path, "target": target}
    return make_case(values, files, Number(m.money(total)), {target: m.to_json(pay)})


def solve_timesheet(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the weeks and the rates, add up the minutes, and write the pay."""
    texts = yield from f.read_folder(values["folder"], habit, ".txt")
    (text,) = yield Step([f.read_file(values["rates"])], "Now what an hour is worth.")
    rates = {name: m.cents(rate) for name, rate in json.loads(text).items()}
    minutes: dict[str, int] = {}
    for sheet in texts.values():
        for name, _, *numbers in _SHIFT.findall(sheet):
            from_hour, from_minute, to_hour, to_minute, pause = [int(number or 0) for number in numbers]
            worked = (to_hour - from_hour) * 60 + to_minute - from_minute - pause
            minutes[name] = minutes.get(name, 0) + worked
    pay = {name: count * rates[name] // 60 for name, count in minutes.items()}
    answer = f.final(habit, m.money(sum(pay.values())), f"{len(pay)} people worked in {len(texts)} weeks.")
    content = m.to_json({name: m.money(amount) for name, amount in pay.items()})
    yield Step([f.write_file(values["target"], content)], "I have the pay of everybody.", answer)
    return answer


# Rank students by their weighted marks.
def generate_mark_ranking(draw: Draw) -> GeneratedCase:
    """Draw four to ten students. A missing mark counts as zero."""
    folder = draw.pick(("students", "marks", "course/students", "results"))
    weights_path = draw.pick(("weights.json", "course/weights.json", "rules/weights.json"))
    subjects = [topic.lower() for topic in draw.sample(m.TOPICS, 4)]
    weights = {subject: draw.between(1, 5) for subject in subjects}
    scores: dict[str, int] = {}
    files = {weights_path: m.to_json(weights)}
    for name in m.people(draw, draw.between(4, 10)):
        marks = {subject: draw.between(20, 100) for subject in draw.shuffled(subjects)}
        if draw.chance(0.25):
            marks.pop(draw.pick(subjects))
        while (score := _score(marks, weights)) in scores.values():
            subject = next(iter(marks))
            marks[subject] += 1
        scores[name] = score
        files[f"{folder}/{name.split(' ')[1].lower()}.json"] = m.to_json({"name": name, "marks": marks})
    m.add_notes(files, draw, draw.between(0, 2))
    ranked = sorted(scores, key=lambda name: -scores[name])
    target = f"{draw.pick(('ranking', 'results-list', 'honours'))}.csv"
    values = {"folder": folder, "weights": weights_path, "target": target}
    return make_case(values, files, Items((ranked[0],), tuple(scores)), {target: _write_ranking(scores)})


def _score(marks: Mapping[str, int], weights: Mapping[str, int]) -> int:
    return sum([mark * weights[subject] for subject, mark in marks.items()])


def _write_ranking(scores: Mapping[str, int]) -> str:
    ranked = sorted(scores, key=lambda name: -scores[name])
    return "name,points\n" + "".join([f"{name},{scores[name]}\n" for name in ranked])


def solve_mark_ranking(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the weights and the marks, compute the scores, and sort."""
    (text,) = yield Step([f.read_file(values["weights"])], "The weights decide, so I read them first.")
    weights = json.loads(text)
    paths = yield from f.find_paths(f.in_folder(values["folder"], ".json"))
    texts = yield from f.read_files([path for path in paths if path != values["weights"]], habit)
    scores = {}
    for part in texts.values():
        student = json.loads(part)
        scores[student["name"]] = _score(student["marks"], weights)
    best = max(scores, key=lambda name: scores[name])
    answer = f.final(habit, best, f"Among {len(scores)} students the highest sum is {scores[best]}.")
    yield Step(
        [f.write_file(values["target"], _write_ranking(scores))], f"{best} leads; now the ranking.", answer
    )
    return answer


# Compute an order's total from a price list and discount rules, and write the invoice.
_ITEM = re.compile(r"(\d+) x (\w+)")


def generate_invoice_total(draw: Draw) -> GeneratedCase:
    """Draw a price list, discounts for large sums, and several orders. Some customers have their own discount."""
    prices = {product: draw.between(120, 19_900) for product in draw.sample(m.PRODUCTS, draw.between(6, 12))}
    steps = [
        (draw.between(50, 300) * 100, draw.between(2, 5)),
        (draw.between(301, 900) * 100, draw.between(6, 12)),
    ]
    customers = draw.sample(m.COMPANIES, draw.between(3, 5))
    special = {name: draw.between(1, 4) for name in draw.sample(customers, 2)}
    shipping = draw.between(390, 1490)
    files = {
        "prices.json": m.to_json({product: m.money(price) for product, price in prices.items()}),
        "terms/discounts.txt": "".join([f"from {m.money(limit)}: {percent} %\n" for limit, percent in steps]),
        "terms/customers.json": m.to_json(special),
        "terms/shipping.txt": f"Each order: {m.money(shipping)}\n",
    }
    number = draw.between(1000, 8000)
    orders: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    for offset, customer in enumerate(customers):
        items = [(draw.between(1, 12), name) for name in draw.sample(list(prices), draw.between(2, 6))]
        orders[str(number + offset)] = (customer, items)
        head = f"Order {number + offset}\nCustomer: {customer}\nDate: {m.date(draw)}\n\n"
        files[f"orders/{number + offset}.txt"] = head + "".join(
            [f"{count} x {name}\n" for count, name in items]
        )
    wanted = draw.pick(list(orders))
    customer, items = orders[wanted]
    text, total = _invoice(items, prices, steps, special.get(customer, 0), shipping)
    m.add_notes(files, draw, draw.between(0, 2))
    values = {"order": wanted, "target": f"invoices/{wanted}.txt"}
    return make_case(values, files, Number(m.money(total)), {values["target"]: text})


def _invoice(
    items: list[tuple[int, str]],
    prices: Mapping[str, int],
    steps: list[tuple[int, int]],
    own_percent: int,
    shipping: int,
) -> tuple[str, int]:
    lines = [f"{name} {count} {m.money(count * prices[name])}\n" for count, name in items]
    goods = sum([count * prices[name] for count, name in items])
    percent = own_percent + max([part for limit, part in steps if goods >= limit], default=0)
    discount = (goods * percent + 50) // 100
    total = goods - discount + shipping
    lines += [
        f"discount {m.money(discount)}\n",
        f"shipping {m.money(shipping)}\n",
        f"total {m.money(total)}\n",
    ]
    return "".join(lines), total


def solve_invoice_total(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the order, then the files that its price depends on."""
    order = f"orders/{values['order']}.txt"
    needed = (order, "prices.json", "terms/customers.json", "terms/discounts.txt", "terms/shipping.txt")
    paths = yield from f.find_paths(lambda path: path in needed)
    texts = yield from f.read_files(paths, habit)
    items = [(int(count), name) for count, name in _ITEM.findall(texts[order])]
    prices = {name: m.cents(price) for name, price in json.loads(texts["prices.json"]).items()}
    found = re.findall(r"from (\S+): (\d+) %", texts["terms/discounts.txt"])
    steps = [(m.cents(limit), int(percent)) for limit, percent in found]
    customer = texts[order].partition("Customer: ")[2].partition("\n")[0].strip()
    own_percent = int(json.loads(texts["terms/customers.json"]).get(customer, 0))
    shipping = m.cents(texts["terms/shipping.txt"].rpartition(":")[2])
    text, total = _invoice(items, prices, steps, own_percent, shipping)
    answer = f.final(habit, m.money(total), f"{customer} pays for {len(items)} items.")
    yield Step(
        [f.write_file(values["target"], text)], f"The total is {m.money(total)}; now the invoice.", answer
    )
    return answer


# Find the purchase requests that exceed a limit, and delete them.
def generate_limit_rule(draw: Draw) -> GeneratedCase:
    """Draw five to twelve requests. One or two are above their department's limit."""
    folder = draw.pick(("requests", "purchases/open", "inbox/requests", "approvals"))
    limits = {name: draw.between(20, 400) * 1000 for name in draw.sample(m.DEPARTMENTS, 4)}
    rules = draw.pick(("rules/limits.json", "policy/limits.json", "limits.json"))
    files = {rules: m.to_json({name: m.money(limit) for name, limit in limits.items()})}
    changes: dict[str, str | None] = {}
    count = draw.between(5, 12)
    for index, person in enumerate(m.people(draw, count)):
        department = draw.pick(list(limits))
        limit = limits[department]
        is_over = index < draw.between(1, 2)
        total = limit + draw.between(1, 20_000) if is_over else draw.between(limit // 3, limit)
        path = f"{folder}/{draw.between(100, 999)}-{person.split(' ')[1].lower()}.txt"
        files[path] = _write_request(draw, person, department, total)
        if is_over:
            changes[path] = None
    expected = Items(tuple(sorted(changes)), tuple([path for path in files if path.startswith(f"{folder}/")]))
    m.add_notes(files, draw, draw.between(0, 2))
    return make_case({"folder": folder, "rules": rules}, files, expected, changes)


def _write_request(draw: Draw, person: str, department: str, total: int) -> str:
    first = draw.between(total // 4, total // 2)
    second = draw.between(1, total - first - 1)
    parts = [first, second, total - first - second]
    products = draw.sample(m.PRODUCTS, 3)
    items = "".join([f"  {name}: {m.money(part)}\n" for name, part in zip(products, parts, strict=True)])
    heads = [f"Name: {person}\n", f"Department: {department}\n", f"Date: {m.date(draw)}\n"]
    return "".join(draw.shuffled(heads)) + "Items:\n" + items


def solve_limit_rule(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the limits and the requests, add up each request, and delete those above the limit."""
    (rules,) = yield Step([f.read_file(values["rules"])], "The limits first.")
    limits = {name: m.cents(limit) for name, limit in json.loads(rules).items()}
    texts = yield from f.read_folder(values["folder"], habit, ".txt")
    broken = []
    for path, text in texts.items():
        found = re.search(r"^Department: (\w+)", text, re.MULTILINE)
        total = sum([m.cents(amount) for amount in re.findall(r"^  \w+: (\S+)$", text, re.MULTILINE)])
        if found and total > limits[found[1]]:
            broken.append(path)
    answer = f.final(habit, ", ".join(broken), f"{len(broken)} of {len(texts)} requests are above the limit.")
    calls = [f.delete_file(path) for path in broken]
    yield from f.make_all(calls, habit, f"{', '.join(broken)}: above the limit of the department.", answer)
    return answer
