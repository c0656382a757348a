"""The report as one HTML file that needs no network when it is opened."""

from __future__ import annotations

from html import escape

from fixes import __version__
from fixes.parity.plots import plots
from fixes.parity.report import Report
from fixes.parity.tables import Table, summary, tables
from fixes.parity.words import printable

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2430; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
.wide { overflow-x: auto }
th, td { border-bottom: 1px solid #d9dee5; padding: .3rem .7rem; text-align: left;
  vertical-align: top }
th { border-bottom: 2px solid #1c2430 }
figure { margin: 1.5rem 0 }
figure svg { width: 100%; height: auto }
figcaption, .about { color: #4a5568 }
.verdict { font-size: 1.3rem; padding: .6rem 1rem; border-left: .5rem solid #8d99ae;
  background: #f3f5f8 }
.identical { border-color: #2f855a }
.within-noise { border-color: #b7791f }
.different, .incomplete { border-color: #c53030 }
"""


def page(report: Report) -> str:
    """The whole file. The Content-Security-Policy lets it load nothing."""
    verdict = report.verdict.status.value
    body = [
        f"<h1>Parity, by vllm-fixes {escape(__version__)}</h1>",
        f'<p class="verdict {verdict}">{escape(report.headline())}</p>',
        "<ul>",
        *(f"<li>{_shown(item)}</li>" for item in summary(report)),
        "</ul>",
    ]
    for caption, svg in plots(report):
        body.append(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>")
    for table in tables(report):
        body += _table(table)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Parity: {escape(verdict)}</title><style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def _shown(text: str) -> str:
    return escape(printable(text))


def _table(table: Table) -> list[str]:
    def row(cells: tuple[str, ...], tag: str) -> str:
        marked = (f"<{tag}>{_shown(cell)}</{tag}>" for cell in cells)
        return f"<tr>{''.join(marked)}</tr>"

    about = [f'<p class="about">{_shown(table.about)}</p>'] if table.about else []
    return [
        f"<h2>{escape(table.title)}</h2>",
        *about,
        '<div class="wide"><table><thead>',
        row(table.names, "th"),
        "</thead><tbody>",
        *(row(cells, "td") for cells in table.rows),
        "</tbody></table></div>",
    ]
