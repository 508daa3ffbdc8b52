import { createRoot } from "react-dom/client";
import { App } from "./app";
import { update } from "./router";
import { loadShown } from "./shown";
import { openSource } from "./source";
import "./styles.css";

async function start(): Promise<void> {
  const embedded = await openSource();
  const asked = loadShown();
  // The page of a run is the same whatever else there is to show, and does not wait for that.
  if (!location.hash.startsWith("#/run/")) {
    const first = (await asked).start || embedded;
    if (!/^#\/./.test(location.hash)) location.replace(first);
  }
  update();
  createRoot(document.getElementById("root") as HTMLElement).render(<App />);
  await asked;
  update();
}

start().catch((error: Error) => {
  document.body.textContent = `The page cannot be shown: ${error.message}`;
});
