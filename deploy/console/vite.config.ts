// Builds the page into the package that serves it; `make console` runs this.
import { defineConfig } from "vite";

// A server's console port to develop against: CONSOLE_BACKEND=http://127.0.0.1:PORT npm run dev.
// The port answers its own page alone, so requests carry that page's origin.
const backend = process.env["CONSOLE_BACKEND"] ?? "http://127.0.0.1:50052";
const CONSOLE_PORT = { target: backend, changeOrigin: true, headers: { origin: backend, "sec-fetch-site": "same-origin" } };
const ASKED = ["/stream", "/session", "/ultraserve.v1.ControlService"];

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../../serving/server/console/page",
    emptyOutDir: true,
    target: "es2023",
    // light-dark() and nesting, which these browsers have, are left as they are written.
    cssTarget: ["chrome123", "firefox121", "safari17.5"],
    assetsInlineLimit: 0, // the page's policy allows no data: but pictures
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: Object.fromEntries(ASKED.map((path) => [path, CONSOLE_PORT])) },
});
