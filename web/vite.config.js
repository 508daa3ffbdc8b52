// Builds the viewer as one HTML file: its script and its styles stand in the page, and its policy allows only these.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const OUT = resolve(dirname(fileURLToPath(import.meta.url)), "../src/treadle/viewer/bundle.html");
const hashOf = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

const PACKAGES = resolve(dirname(fileURLToPath(import.meta.url)), "node_modules");
/** The packages whose code is in the page. */
const USED = ["react", "react-dom", "scheduler", "diff", "marked"];

/** Return the licence of a package, which has to go with its code. */
function licenceOf(name) {
  const file = readdirSync(`${PACKAGES}/${name}`).find((one) => /^licen[cs]e/i.test(one));
  return `${name}\n\n${readFileSync(`${PACKAGES}/${name}/${file}`, "utf-8").trim().replaceAll("--", "- -")}`;
}

/** Puts the script and the styles into the page, and writes it where Python finds it. */
const onePage = {
  name: "one-page",
  enforce: "post",
  generateBundle(_, bundle) {
    const files = Object.values(bundle);
    const script = files.find((file) => file.type === "chunk").code.replaceAll("</script", "<\\/script");
    const styles = files.filter((file) => file.fileName.endsWith(".css")).map((file) => String(file.source)).join("");
    const policy = [
      "default-src 'none'", `script-src ${hashOf(script)}`, `style-src ${hashOf(styles)}`,
      "img-src data: blob:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
    ].join("; ");
    const page = String(files.find((file) => file.fileName === "index.html").source)
      .replace(/\s*<script type="module"[^>]*><\/script>/, "").replace(/\s*<link rel="stylesheet"[^>]*>/, "")
      .replace("<meta charset=\"utf-8\">", () => `<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" content="${policy}">`)
      .replace("</head>", () => `<style>${styles}</style>\n  </head>`)
      .replace("</body>", () => `<script>${script}</script>\n    <!-- This page has code of these packages:\n\n${USED.map(licenceOf).join("\n\n")}\n-->\n  </body>`);
    mkdirSync(dirname(OUT), { recursive: true });
    writeFileSync(OUT, page);
    for (const name of Object.keys(bundle)) delete bundle[name];
  },
};

export default defineConfig({
  plugins: [react(), onePage],
  build: {
    target: "es2022",
    write: false,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: { output: { format: "iife", codeSplitting: false } },
  },
});
