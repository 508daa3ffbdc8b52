"use strict";
(() => {
  const rows = JSON.parse(document.getElementById("rows").textContent);
  const list = document.getElementById("list");
  const shown = document.getElementById("shown");
  const more = document.getElementById("more");
  const search = document.getElementById("search");
  const fields = ["status", "kind", "tool", "filter", "topic"];
  const select = Object.fromEntries(fields.map((name) => [name, document.getElementById("by-" + name)]));
  const PAGE = 25;
  let limit = PAGE;

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const textOf = (row) =>
    [row.id, row.run, row.topic.join(" "), row.kind, ...row.messages.map((m) =>
      [m.text, m.thought, ...(m.calls || []).map((c) => c.name + " " + c.arguments + " " + (c.result || ""))].join(" "))]
      .join(" ").toLowerCase();
  rows.forEach((row) => { row.all = textOf(row); });

  const fill = (name, values) => {
    for (const value of [...new Set(values)].filter(Boolean).sort()) {
      const option = make("option", "", value.length > 60 ? value.slice(0, 59) + "…" : value);
      option.value = value;
      select[name].append(option);
    }
  };
  fill("kind", rows.map((row) => row.kind));
  fill("tool", rows.flatMap((row) => row.tools));
  fill("filter", rows.flatMap((row) => row.verdicts.filter((v) => !v.passed).map((v) => v.filter)));
  fill("topic", rows.map((row) => row.topic.join(" › ")));

  const matches = (row) => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const topic = row.topic.join(" › ");
    return (!select.status.value || row.status === select.status.value)
      && (!select.kind.value || row.kind === select.kind.value)
      && (!select.tool.value || row.tools.includes(select.tool.value))
      && (!select.filter.value || row.verdicts.some((v) => !v.passed && v.filter === select.filter.value))
      && (!select.topic.value || topic === select.topic.value || topic.startsWith(select.topic.value + " › "))
      && words.every((word) => row.all.includes(word));
  };

  const writeMessage = (body, message) => {
    if (message.text || message.thought) {
      const box = make("div", "message " + message.role);
      box.append(make("span", "who", message.role));
      if (message.thought) box.append(make("em", "", message.thought));
      box.append(document.createTextNode(message.text));
      body.append(box);
    }
    for (const call of message.calls || []) {
      const box = make("div", "call" + (call.error ? " error" : ""));
      const head = make("code", "", call.name + " " + call.arguments);
      if (call.simulated) head.append(make("span", "tag", "  simulated result"));
      if (call.error) head.append(make("span", "tag", "  error"));
      box.append(head);
      if (call.result !== undefined) box.append(make("pre", "", call.result || "(empty)"));
      body.append(box);
    }
  };

  const writeBody = (row) => {
    const body = make("div", "body");
    body.append(make("p", "facts", row.facts.join(" · ")));
    row.messages.forEach((message) => writeMessage(body, message));
    if (row.cut) body.append(make("p", "facts", row.cut));
    const verdicts = make("ul", "verdicts");
    for (const verdict of row.verdicts) {
      const text = (verdict.passed ? "✓ " : "✗ ") + verdict.filter + (verdict.reason ? ": " + verdict.reason : "");
      verdicts.append(make("li", verdict.passed ? "good" : "bad", text));
    }
    body.append(verdicts);
    return body;
  };

  const writeRow = (row) => {
    const box = make("details", "row");
    const head = make("summary");
    const failed = row.verdicts.find((verdict) => !verdict.passed);
    head.append(make("span", "id", row.id), make("span", "asked", row.asked));
    if (row.kind) head.append(make("span", "chip", row.kind.replaceAll("_", " ")));
    head.append(row.status === "rejected"
      ? make("span", "chip bad", failed ? failed.filter : "rejected")
      : make("span", row.verified ? "chip good" : "chip",
          row.verified ? "verified" : row.tools.length ? "not verified" : "no calls"));
    box.append(head);
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(writeBody(row));
    });
    return box;
  };

  const show = () => {
    const found = rows.filter(matches);
    list.replaceChildren(...found.slice(0, limit).map(writeRow));
    shown.textContent = found.length === rows.length
      ? `${rows.length.toLocaleString("en")} shown here`
      : `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} match`;
    more.hidden = found.length <= limit;
  };
  const restart = () => { limit = PAGE; show(); };

  search.addEventListener("input", restart);
  fields.forEach((name) => select[name].addEventListener("change", restart));
  document.getElementById("clear").addEventListener("click", () => {
    search.value = "";
    fields.forEach((name) => { select[name].value = ""; });
    restart();
  });
  more.addEventListener("click", () => { limit += PAGE; show(); });
  document.querySelectorAll("[data-topic]").forEach((leaf) => leaf.addEventListener("click", () => {
    const path = leaf.dataset.topic;
    if (![...select.topic.options].some((option) => option.value === path)) {
      const option = make("option", "", path);
      option.value = path;
      select.topic.append(option);
    }
    select.topic.value = path;
    restart();
    document.getElementById("browse").scrollIntoView({ behavior: "smooth" });
  }));
  show();
})();
