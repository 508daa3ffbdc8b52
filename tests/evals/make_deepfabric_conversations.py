"""Write `deepfabric_conversations.jsonl` anew: what DeepFabric says about fixed predictions with `multi_turn`.

`ANONYMIZED_TELEMETRY=False python make_deepfabric_conversations.py`, with a Python that has deepfabric 4.13.
"""

import json
import random
from pathlib import Path

from deepfabric.evaluation import evaluator as theirs
from deepfabric.evaluation.inference import InferenceConfig, ModelResponse

FILE = Path(__file__).with_name("deepfabric_conversations.jsonl")
TOOLS = {
    "find": ({"query": "string", "limit": "integer"}, ["query"]),
    "read": ({"path": "string"}, ["path"]),
    "write": ({"path": "string", "text": "string"}, ["path", "text"]),
    "now": ({}, []),
}
DEFINITIONS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": "x"} for key, kind in keys.items()},
                "required": required,
            },
        },
    }
    for name, (keys, required) in TOOLS.items()
]
FIND, A, B = ["find", {"query": "x"}], ["read", {"path": "a"}], ["read", {"path": "b"}]
CHANGE = ["write", {"path": "a", "text": "new"}]
ROW = [[[*FIND, "a b"]], [[*A, "text of a"], [*B, "text of b"]], "done here"]
ONE = [[[*A, "old"]], "old"]
MORE = ["read", {"path": "a", "mode": "r"}]
TWO = [[[*FIND, "1"], ["find", {"query": "x", "limit": 2}, "2"]], "done"]
AGAIN = [[[*A, "old"]], [[*CHANGE, "ok"]], [[*A, "new"]], "it is new"]
CASES = [
    # why, the row, the predictions, our figures by value (tools, arguments, execution, calls in order), max_turns
    ("the same calls", ROW, [[FIND], [A, B], "done here"], [1, 1, 1, 1]),
    ("one after the other", ROW, [[FIND], [A], [B], "done here"], [1, 1, 1, 1]),
    ("in another order", ROW, [[B], [FIND], [A], "done here"], [1, 1, 1, 0]),
    ("all names, one call too few", ROW, [[FIND], [A], "done"], [0, 2 / 3, 0, 0]),
    ("other values", ROW, [[["find", {"query": "y"}]], [["read", {"path": "c"}]] * 2, "?"], [1, 0, 0, 0]),
    ("no call", ROW, ["I cannot."], [0, 0, 0, 0]),
    ("no call and no text", ROW, [""], [0, 0, 0, 0]),
    ("a tool that is not expected", ROW, [[["now", {}]], [FIND], [A, B], "done"], [0, 1, 0, 0]),
    (
        "an argument more",
        ONE,
        [[FIND], [MORE], "?"],
        [0, 0, 0, 0],
    ),
    ("an argument missing", ONE, [[["read", {}]], [A], "old"], [0, 1, 0, 0]),
    ("a tool that does not exist", ONE, [[["open", {"path": "a"}]], [A], "old"], [0, 1, 0, 0]),
    ("the limit", ROW, [[FIND], [A], [B], "done here"], [0, 2 / 3, 0, 0], 2),
    ("a call in the wrap-up", ROW, [[["now", {}]], [["now", {}]], [FIND]], [0, 1 / 3, 0, 0], 2),
    ("the first call's arguments", TWO, [[FIND], [FIND], "done"], [1, 1 / 2, 0, 0]),
    ("the same call twice", AGAIN, [[A], [CHANGE], [A], "it is new"], [1, 1, 1, 1]),
    ("the changed value at once", AGAIN, [[CHANGE], [A], "it is new"], [0, 2 / 3, 0, 0]),
    ("nothing is expected", ["hello"], ["hello"], [1, None, None, 1]),
    ("nothing is expected, a call", ["hello"], [[FIND], "hello"], [0, None, None, 0]),
    ("a later message", [*ONE, "USER again", [[*B, "bee"]], "bee"], [[A], "old", [B], "bee"], [1, 1, 1, 1]),
    ("a call without arguments", [[["now", {}, "noon"]], "noon"], [[["now", {}]], "noon"], [1, 1, 1, 1]),
]


def make_row(number, recorded):
    """Return a row as DeepFabric writes it."""
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": f"question {number}"}]
    executions = []
    for step, said in enumerate(recorded):
        if isinstance(said, str):
            role = "user" if said.startswith("USER ") else "assistant"
            messages.append({"role": role, "content": said.removeprefix("USER ")})
            continue
        calls = [
            {
                "id": f"c{number:04}{step:02}{place:02}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for place, (name, given, _) in enumerate(said)
        ]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        for call, (name, given, result) in zip(calls, said, strict=True):
            messages.append({"role": "tool", "content": result, "tool_call_id": call["id"]})
            executions.append(
                {"function_name": name, "arguments": json.dumps(given), "reasoning": "r", "result": result}
            )
    return {"messages": messages, "tools": DEFINITIONS, "tool_context": {"executions": executions}}


def draw(chance):
    """Return a random row, and predictions that follow it more or less."""
    values = {"string": ["a", "b", "x"], "integer": [1, 2]}

    def draw_call():
        name = chance.choice(list(TOOLS))
        keys, required = TOOLS[name]
        return [
            name,
            {
                key: chance.choice(values[kind])
                for key, kind in keys.items()
                if key in required or chance.random() < 0.4
            },
        ]

    steps = [[draw_call() for _ in range(chance.randint(1, 2))] for _ in range(chance.randint(0, 3))]
    recorded, results = [], {}
    for step in steps:
        made = [[*call, results.setdefault(json.dumps(call), f"result {len(results)}")] for call in step]
        recorded.append(made)
    said = []
    for step in steps:
        kept = [draw_call() if chance.random() < 0.3 else call for call in step if chance.random() < 0.8]
        said += [kept] if kept else []
    if chance.random() < 0.3:
        said.append([draw_call()])
    return [*recorded, "the end"], [*said, "the end"], chance.choice([1, 2, 10, 10])


class Backend:
    """A model that says what is fixed."""

    def __init__(self):
        self.said = []
        self.messages = []

    def generate(self, messages, tools):
        """Return the next answer."""
        self.messages = messages
        answer = self.said.pop(0)
        if isinstance(answer, str):
            return ModelResponse(content=answer, raw_output=answer)
        calls = [{"name": name, "arguments": given} for name, given in answer]
        return ModelResponse(content="", raw_output="", tool_call=calls[0], tool_calls=calls)


def judge(row, predictions, max_turns):
    """Return DeepFabric's figures, and the results that it has given."""
    backend = Backend()
    theirs.create_inference_backend = lambda config: backend
    config = theirs.EvaluatorConfig(
        inference_config=InferenceConfig(model="m"), multi_turn=True, max_turns=max_turns
    )
    made = theirs.Evaluator(config)
    backend.said = list(predictions)
    found = made.evaluate_sample(row, 0)
    assert found.error is None, found.error
    figures = [found.tool_selection_correct, found.parameters_correct, found.execution_valid]
    results = [message["content"] for message in backend.messages if message["role"] == "tool"]
    return [*map(int, figures), round(found.response_score, 6)], results


def main():
    """Write the file."""
    chance = random.Random(7)
    cases = [(*case[:4], case[4] if len(case) > 4 else 10) for case in CASES]
    cases += [(f"drawn {place}", *draw(chance)) for place in range(30)]
    lines = []
    for number, (why, recorded, predictions, *more) in enumerate(cases):
        *value, max_turns = more
        row = make_row(number, recorded)
        figures, results = judge(row, predictions, max_turns)
        lines.append(
            {"why": why, "row": row["messages"], "predicted": predictions, "max_turns": max_turns}
            | {"deepfabric": figures, "results": results}
            | ({"value": value[0]} if value else {})
        )
    head = {"tools": DEFINITIONS, "made_by": "Evaluator.evaluate_sample of DeepFabric 4.13.0, multi_turn"}
    FILE.write_text("".join([json.dumps(line) + "\n" for line in (head, *lines)]))


if __name__ == "__main__":
    main()
