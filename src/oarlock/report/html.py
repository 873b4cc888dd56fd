"""The pieces of HTML that every page is made of, and how they look."""


def row(*panels: str) -> str:
    """Return panels side by side, where the screen is wide enough."""
    return f'<div class="row">{"".join(panels)}</div>' if any(panels) else ""


def panel(title: str, how_to_read: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2><p class="how">{how_to_read}</p>{content}</section>'


CSS = """
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --paper: #ffffff; --ink: #14202b; --quiet: #566573; --rule: #d5dce3;
  --known: #0072b2; --new: #c4560a; --heat: #062d57;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1216; --paper: #161b21; --ink: #e6ecf2; --quiet: #9aa8b5; --rule: #2f3944;
    --known: #56b4e9; --new: #f0a04b; --heat: #7fb3ea;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 68rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; -webkit-text-size-adjust: 100%;
}
h1 { font-size: 2rem; line-height: 1.2; margin: .2rem 0 1rem; letter-spacing: -.02em; }
h2 { font-size: 1.1rem; line-height: 1.3; margin: 0; }
p { margin: 0; }
.eyebrow, .how, dt, th, .card p { color: var(--quiet); }
.eyebrow { font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; }
.how { font-size: .9rem; margin: .25rem 0 1rem; max-width: 44rem; }

.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0 0 1.25rem; }
.facts dt { font-size: .8rem; }
.facts dd { margin: 0; font-weight: 600; }
.tasks { margin: .5rem 0 0; padding-left: 2rem; columns: 22rem; font-size: .9rem; }
summary { cursor: pointer; color: var(--quiet); font-size: .9rem; }

.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.cards, .row { gap: 1rem; margin-top: 1rem; align-items: stretch; }
.card, .panel { background: var(--paper); border: 1px solid var(--rule); border-radius: 10px; min-width: 0; }
.card { padding: .9rem 1.1rem 1rem; }
.card h2 { font-size: .9rem; font-weight: 600; }
.card strong { display: block; font-size: 1.9rem; line-height: 1.25; letter-spacing: -.02em; }
.card p { font-size: .85rem; line-height: 1.4; }
.panel { padding: 1.1rem 1.2rem 1.3rem; break-inside: avoid; }

svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; }
.chart { max-width: 32rem; margin: 0 auto; }
.scroll { overflow-x: auto; }
.scroll table { overflow-wrap: normal; }
.scroll td { white-space: nowrap; }
.heat { margin: 0 auto; fill: var(--heat); font-size: 12px; }
.heat text { fill: var(--ink); font-variant-numeric: tabular-nums; }
.heat .axis { fill: var(--quiet); }
.heat .on { fill: var(--paper); }
.heat .ground { fill: none; stroke: var(--rule); }
.heat .rule { stroke: var(--quiet); stroke-width: .6; stroke-opacity: .6; }
.scale { display: flex; gap: .5rem; align-items: center; justify-content: center; margin-top: .6rem;
  font-size: .8rem; color: var(--quiet); }
.scale i { width: 8rem; height: .6rem; border: 1px solid var(--rule);
  background: linear-gradient(90deg, transparent, var(--heat)); }
.scale .root { background: var(--heat); border-color: transparent;
  mask-image: linear-gradient(90deg, #0000, #0003 4%, #0006 16%, #0009 36%, #000c 64%, #000); }

.examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.6rem, 1fr)); gap: .9rem;
  margin: 0; padding: 0; list-style: none; }
.examples.photos { grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); }
.examples li { font-size: .82rem; line-height: 1.3; }
.examples img { display: block; width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: 8px;
  margin-bottom: .35rem; border: 2px solid var(--known); }
.examples .wrong img { border: 4px dashed var(--new); }
.examples b::before { content: "✓ "; color: var(--known); }
.examples .wrong b::before { content: "✗ "; color: var(--new); }
.examples small { display: block; font-size: inherit; color: var(--quiet); }

table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; font-weight: 400; padding: .3rem 1rem .3rem 0; border-top: 1px solid var(--rule);
  vertical-align: top; }
thead th { border-top: 0; }
td { font-variant-numeric: tabular-nums; }
.chart + table { margin-top: 1rem; }
@media (max-width: 30rem) { .panel { padding: 1rem; } }
"""

COMPARISON_CSS = """
:root {
  --line-1: #0072b2; --line-2: #c4560a; --line-3: #117733; --line-4: #aa3377; --line-5: #8a6d00; --line-6: #332288;
}
@media (prefers-color-scheme: dark) {
  :root {
    --line-1: #56b4e9; --line-2: #f0a04b; --line-3: #5fd39a; --line-4: #ee99cc; --line-5: #e6d95c; --line-6: #b3a6ff;
  }
}
.wide { max-width: 56rem; min-width: 34rem; }
.numbers { font-size: .85rem; }
.numbers td, .numbers th { padding-right: .6rem; }
.numbers td { white-space: nowrap; }
.numbers .note { white-space: normal; overflow-wrap: normal; min-width: 7rem; }
.numbers thead th { vertical-align: bottom; overflow-wrap: normal; }
.numbers tbody th { color: var(--ink); font-weight: 600; min-width: 5.5rem; }
.warning { border-left: 4px solid var(--new); padding: .2rem 0 .2rem .8rem; margin: 0 0 .6rem; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
{body}
</body>
</html>
"""
