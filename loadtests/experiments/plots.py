"""Charts as PNG, drawn alike: labelled axes, intervals as bars, a legend beside the lines."""

from __future__ import annotations

from pathlib import Path

from loadtests.experiments.findings import Chart

MARKERS = "osD^vPX*<>hd"


def draw(chart: Chart, folder: Path) -> Path:
    """Write `folder/NAME.png` and say where. Needs matplotlib, else ImportError."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.0, 5.0), dpi=110)
    for n, line in enumerate(chart.lines):
        errors = None
        if line.low:
            below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
            above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
            errors = [below, above]
        style = "--" if line.dashed else "-"
        marker, colour = MARKERS[n % len(MARKERS)], "black" if line.bold else f"C{n % 10}"
        axes.errorbar(
            line.x, line.y, yerr=errors, label=line.name, linestyle=style, marker=marker, color=colour,
            markersize=4.5, linewidth=2.6 if line.bold else 1.4, capsize=2.5,
        )  # fmt: skip
    for n, (name, x) in enumerate(chart.marks.items()):
        axes.axvline(x, color="0.5", linestyle=":", linewidth=1.2)
        axes.annotate(
            f"{name}: {x:.3g}",
            (x, 0.03 + 0.06 * n),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            xytext=(4, 0),
            textcoords="offset points",
        )
    if chart.log_x:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for line in chart.lines for x in line.x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
        axes.minorticks_off()
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0.0, chart.most_y)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.set_title(chart.title, fontsize=11)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{chart.name}.png"
    # No date inside: the same findings are the same file.
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return path
