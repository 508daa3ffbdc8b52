"use strict";
(() => {
  const runs = new Map(JSON.parse(document.getElementById("rows").textContent).map((run) => [run.id, run]));
  const box = document.getElementById("run");
  const select = document.getElementById("pick");

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // A token that the model was sure of is green, one that surprised it is red.
  const colour = (logprob) => {
    const share = Math.min(1, -logprob / 6);
    return `color-mix(in oklab, var(--bad) ${Math.round(100 * share)}%, var(--good))`;
  };

  const writeBranch = (branch) => {
    const head = make("p", "branch", branch.title);
    const tokens = make("div", "tokens");
    branch.tokens.forEach((text, index) => {
      const logprob = branch.logprobs[index];
      const kind = branch.mask[index];
      const span = make("span", kind === "1" ? "sampled" : kind === "2" ? "kept" : "given", text);
      if (logprob !== null) {
        span.style.background = `color-mix(in oklab, ${colour(logprob)} 30%, transparent)`;
        span.title = `${branch.ids[index]}: logprob ${logprob}`;
      } else span.title = String(branch.ids[index]);
      tokens.append(span);
    });
    box.append(head, tokens);
    // The prompt is long: begin where the model does.
    const first = tokens.querySelector(".sampled");
    if (first) tokens.scrollTop = Math.max(0, first.offsetTop - 120);
  };

  const writeMessage = (message) => {
    const item = make("div", "message " + message.role);
    item.append(make("span", "who", message.role));
    if (message.thought) item.append(make("em", "", message.thought));
    item.append(document.createTextNode(message.text));
    box.append(item);
    for (const call of message.calls) {
      const shown = make("div", "call" + (call.error ? " error" : ""));
      shown.append(make("code", "", call.name + " " + call.arguments));
      if (call.result !== null) shown.append(make("pre", "", call.result));
      box.append(shown);
    }
  };

  const show = (id) => {
    box.replaceChildren();
    document.querySelectorAll(".cells button.on").forEach((item) => item.classList.remove("on"));
    document.querySelector(`.cells button[data-run="${CSS.escape(id)}"]`)?.classList.add("on");
    const run = runs.get(id);
    if (!run) {
      box.append(make("p", "soft", `The run ${id} is not in this file: read it with treadle show ${id} --tokens.`));
      return;
    }
    select.value = id;
    box.append(make("p", "facts", run.facts));
    run.branches.forEach(writeBranch);
    run.messages.forEach(writeMessage);
  };

  document.querySelectorAll(".cells button").forEach((item) =>
    item.addEventListener("click", () => {
      show(item.dataset.run);
      document.getElementById("tokens").scrollIntoView({ behavior: "smooth" });
    }));
  if (select) {
    for (const run of runs.values()) {
      const option = make("option", "", run.title);
      option.value = run.id;
      select.append(option);
    }
    select.addEventListener("change", () => show(select.value));
    if (runs.size) show(runs.keys().next().value);
  }
})();
