import { createRoot } from "react-dom/client";
import { App } from "./app";
import { update } from "./router";
import { loadShown } from "./shown";
import { openSource } from "./source";
import "./styles.css";

async function start(): Promise<void> {
  const embedded = await openSource();
  const first = (await loadShown()).start || embedded;
  if (!/^#\/./.test(location.hash)) location.replace(first);
  update();
  createRoot(document.getElementById("root") as HTMLElement).render(<App />);
}

start().catch((error: Error) => {
  document.body.textContent = `The page cannot be shown: ${error.message}`;
});
