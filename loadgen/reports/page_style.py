"""How the HTML page looks, and the little script that draws its charts."""

from typing import Final

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "script-src 'unsafe-inline' 'unsafe-eval'"
)
"""What the page may do: run what is in it. Even a browser that wanted to could fetch nothing."""

STYLE: Final = """
:root { color-scheme: light; --ink: #212529; --soft: #6c757d; --line: #dee2e6; --mark: #1c7ed6; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
  background: #f8f9fa; margin: 0; padding: 2rem 1rem; }
main { max-width: 1040px; margin: 0 auto; }
header { margin-bottom: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .6rem; }
header p, .about, .foot { color: var(--soft); margin: .2rem 0; font-size: .92rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 1.1rem 1.3rem; margin-bottom: 1rem; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: .25rem .8rem .25rem 0; vertical-align: top; white-space: nowrap; }
td { text-align: right; border-bottom: 1px solid #f1f3f5; }
th.words, td.words { text-align: left; }
table.facts td { text-align: left; white-space: normal; border: 0; }
table.facts td:first-child { color: var(--soft); padding-right: 1.5rem; white-space: nowrap; }
.good { color: #2b8a3e; font-weight: 600; } .bad { color: #c92a2a; font-weight: 600; }
.dim { color: var(--soft); }
section.notes { border-left: 5px solid #f08c00; }
section.notes ul { margin: 0; padding-left: 1.2rem; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem; }
@media print { body { background: #fff; padding: 0; } section { break-inside: avoid; } }
"""

DRAW: Final = """
for (const box of document.querySelectorAll("[data-chart]")) {
  const spec = JSON.parse(document.getElementById(box.dataset.chart).textContent);
  vegaEmbed(box, spec, {renderer: "svg", actions: {export: true, source: false, compiled: false,
    editor: false}}).catch(error => { box.textContent = "This chart cannot be drawn: " + error; });
}
"""
