import csv

PATH = "data.csv"


def number(text):
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


with open(PATH) as file:
    rows = list(csv.reader(file.read().splitlines()))
head, body = rows[0], rows[1:]
print(
    f"{len(body)} rows, {len(head)} columns, {sum(len(row) != len(head) for row in body)} of another length"
)
for place, name in enumerate(head):
    values = [row[place].strip() for row in body if place < len(row)]
    filled = [value for value in values if value]
    numbers = [number(value) for value in filled]
    line = f"{name}: {len(values) - len(filled)} empty, {len(set(filled))} distinct"
    if filled and all(value is not None for value in numbers):
        print(f"{line}, number from {min(numbers)} to {max(numbers)}, mean {sum(numbers) / len(numbers):.6g}")
    else:
        counts = {}
        for value in filled:
            counts[value] = counts[value] + 1 if value in counts else 1
        top = sorted(counts, key=lambda value: counts[value], reverse=True)[:3]
        print(f"{line}, text, most frequent {top}")
