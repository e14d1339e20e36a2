"""Pictures as SVG, for a page or as files. Colours and fonts come from one style, for light and dark themes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

from loadtests.charts.chart import NOTHING, Bars, Chart, Line, Picture
from loadtests.charts.scales import Scale, linear, logarithmic

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 38
COLOURS = 8
"""Number of classes, c0 to c7, that the page gives colours."""
MAX_MARKED = 40
BAR, BAR_GAP = 16, 22
CHARACTER = 6.2
"""Approximate width of a letter in the page's font."""
TITLE, ROW = 17, 16
"""Height of a line of the title, and of a row of the legend, in a file."""
STYLE = (Path(__file__).parent / "style.css").read_text()
Unit = Callable[[float], str]


def svg(picture: Picture, unit: Unit | None = None) -> str:
    """A `figure` element: title, drawing, legend. `unit` formats the values of the y axis."""
    height, parts = _drawn(picture, unit)
    inner = f'<p class="empty">{NOTHING}</p>'
    if parts:
        head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(_told(picture))}">'
        inner = f"{head}{''.join(parts)}</svg>"
    legend = "".join(f'<li><i class="{kind}"></i>{escape(name)}</li>' for name, kind in _legend(picture))
    key = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f"<figure><figcaption>{escape(picture.title)}</figcaption>{inner}{key}</figure>"


def draw(picture: Picture, folder: Path, unit: Unit | None = None) -> Path:
    """Write `folder/NAME.svg`, with title and legend inside, and return its path."""
    height, parts = _drawn(picture, unit)
    title = wrap(picture.title, int((WIDTH - 2 * RIGHT) / 7))
    above = TITLE * len(title) + 4
    all_parts = [
        f'<text x="{RIGHT}" y="{TITLE * (n + 1)}" class="title">{escape(line)}</text>' for n, line in enumerate(title)
    ]
    inner = "".join(parts) or f'<text x="{RIGHT}" y="{BAR}">{NOTHING}</text>'
    all_parts.append(f'<g transform="translate(0 {above})">{inner}</g>')
    x, y = float(RIGHT), above + height + ROW
    for name, kind in _legend(picture):
        width = 30 + len(name) * CHARACTER
        if x > RIGHT and x + width > WIDTH:
            x, y = float(RIGHT), y + ROW
        all_parts.append(f'<path class="line {kind}" d="M{x:.1f} {y - 4}h16"/>')
        all_parts.append(f'<text x="{x + 21:.1f}" y="{y}">{escape(name)}</text>')
        x += width
    size = f'width="{WIDTH * 3 // 2}" height="{(y + 8) * 3 // 2}" viewBox="0 0 {WIDTH} {y + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(_told(picture))}">'
    card = '<rect class="card" width="100%" height="100%"/>'
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{picture.name}.svg"
    path.write_text(f"{head}<style>{STYLE}</style>{card}{''.join(all_parts)}</svg>\n")
    return path


def _drawn(picture: Picture, unit: Unit | None) -> tuple[int, list[str]]:
    """Height and elements of a picture; no elements if there is nothing to draw."""
    write = unit or (lambda value: f"{value:,.10g}")
    return _chart(picture, write) if isinstance(picture, Chart) else _bars(picture, write)


def _told(picture: Picture) -> str:
    """The picture in words, for those who cannot see it."""
    axes = f"{picture.y} by {picture.x}" if isinstance(picture, Chart) else picture.x
    return f"{picture.title}: {axes}"


def _legend(picture: Picture) -> list[tuple[str, str]]:
    """(name, class) of each line or part; empty if there is only one."""
    if isinstance(picture, Chart):
        found = [(line.name, " dashed" if line.dashed else "") for line in picture.lines]
    else:
        found = [(name, "") for name in picture.parts]
    return [(name, f"c{n % COLOURS}{dashed}") for n, (name, dashed) in enumerate(found)] if len(found) > 1 else []


def _chart(chart: Chart, write: Unit) -> tuple[int, list[str]]:
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in (*line.y, *line.low, *line.high) if y is not None]
    if not xs or not ys:
        return HEIGHT, []
    x_scale, y_scale = _scale_x(chart, xs), _scale_y(chart, ys)

    def x_at(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x_scale.at(x)

    def y_at(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, max(0.0, y_scale.at(y)))

    parts: list[str] = []
    for tick in y_scale.ticks():
        y = y_at(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="y">{escape(write(tick))}</text>')
    for tick, label in _x_ticks(chart, x_scale, x_at):
        parts.append(f'<path class="grid" d="M{x_at(tick):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        x = min(x_at(tick), WIDTH - len(label) * CHARACTER / 2 - 1)  # the last label must not leave the picture
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" class="x">{escape(label)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" class="x label">{escape(f"{chart.x}")}</text>')
    step = min(11.0, (HEIGHT - BOTTOM - TOP - 10) / max(1, len(chart.marks)))
    for n, (name, x) in enumerate(chart.marks.items()):
        parts.append(f'<path class="mark" d="M{x_at(x):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_beside(x_at(x), TOP + 10 + step * n, name))
    for name, y in chart.levels.items():
        parts.append(f'<path class="mark" d="M{LEFT} {y_at(y):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{y_at(y) - 4:.1f}" class="note">{escape(name)}</text>')
    for n, line in enumerate(chart.lines):
        parts += _line(line, n, x_at, y_at)
    return HEIGHT, parts


def _scale_x(chart: Chart, xs: Sequence[float]) -> Scale:
    if chart.nines:
        return Scale(0.0, max(*xs, 0.9), nines=True)
    if chart.log_x:
        return Scale(min(xs), max(max(xs), 2 * min(xs)), log=True)
    low, high = min(*xs, *chart.marks.values(), max(xs)), max(*xs, *chart.marks.values(), min(xs))
    return Scale(low, high) if high > low else Scale(low, low + 1.0)


def _scale_y(chart: Chart, ys: Sequence[float]) -> Scale:
    shown = [*ys, *chart.levels.values()]
    if chart.log_y:
        above = [y for y in shown if y > 0]
        return logarithmic(min(above, default=0.001), max(above, default=1.0))
    return linear(chart.most_y or max(shown))


def _x_ticks(chart: Chart, scale: Scale, x_at: Callable[[float], float]) -> Iterable[tuple[float, str]]:
    """Ticks of the x axis whose labels do not overlap."""
    free_from = -1.0
    few = sorted({x for line in chart.lines for x in line.x}) if chart.log_x else []
    for tick in few if few and len(few) <= MAX_MARKED else scale.ticks(6):
        label = f"{100 * tick:.6g}%" if chart.nines else f"{tick:,.10g}"
        half = len(label) * CHARACTER / 2
        if x_at(tick) - half >= free_from:
            free_from = x_at(tick) + half + 4
            yield tick, label


def _line(line: Line, n: int, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> list[str]:
    colour = f"c{n % COLOURS}"
    parts = []
    if line.low and line.apart:
        ends = zip(line.x, line.low, line.high, strict=True)
        whiskers = "".join(f"M{x_at(x):.1f} {y_at(low):.1f}V{y_at(high):.1f}" for x, low, high in ends)
        parts.append(f'<path class="whiskers {colour}" d="{whiskers}"/>')
    elif line.low:
        there = [f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        back = [f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in zip(line.x, line.low, strict=True)][::-1]
        parts.append(f'<path class="band {colour}" d="M{"L".join([*there, *back])}Z"/>')
    path, pen = [], "M"
    for x, y in zip(line.x, line.y, strict=True) if not line.apart else ():
        if y is None:
            pen = "M"
            continue
        path.append(f"{pen}{x_at(x):.1f} {y_at(y):.1f}")
        pen = "L"
    kind = f"line {colour}{' dashed' if line.dashed else ''}{' bold' if line.bold else ''}"
    if path:
        parts.append(f'<path class="{kind}" d="{"".join(path)}"><title>{escape(line.name)}</title></path>')
    if line.apart or len(line.x) <= MAX_MARKED:
        parts += [
            f'<circle class="dot {colour}" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2.6">'
            f"<title>{escape(line.name)}: {y:.4g} at {x:.4g}</title></circle>"
            for x, y in zip(line.x, line.y, strict=True)
            if y is not None
        ]
    return parts


def _beside(x: float, y: float, text: str) -> str:
    """A note beside `x`, on the side with more room."""
    left = x > WIDTH * 0.6
    anchor = ' style="text-anchor:end"' if left else ""
    return f'<text x="{x - 4 if left else x + 4:.1f}" y="{y}" class="note"{anchor}>{escape(text)}</text>'


def _bars(bars: Bars, write: Unit) -> tuple[int, list[str]]:
    if not bars.labels:
        return 2 * BAR, []
    totals = [sum(values[row] for values in bars.parts.values()) for row in range(len(bars.labels))]
    height = TOP + len(bars.labels) * (BAR + BAR_GAP) + 8
    room = WIDTH - 2 * RIGHT - max(len(write(total)) for total in totals) * CHARACTER - 8
    most = max(totals) or 1.0
    parts: list[str] = []
    for row, label in enumerate(bars.labels):
        y = TOP + row * (BAR + BAR_GAP)
        parts.append(f'<text x="{RIGHT}" y="{y + 9}" class="bar">{escape(label)}</text>')
        x = float(RIGHT)
        for n, (name, values) in enumerate(bars.parts.items()):
            width = room * values[row] / most
            if width > 0:
                told = f"<title>{escape(label)}, {escape(name)}: {escape(write(values[row]))}</title>"
                box = f'x="{x:.1f}" y="{y + 14}" width="{max(1.0, width):.1f}" height="{BAR}"'
                parts.append(f'<rect class="fill c{n % COLOURS}" {box}>{told}</rect>')
            x += width
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 26}" class="bar">{escape(write(totals[row]))}</text>')
    return height, parts
