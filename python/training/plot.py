"""A picture of a run, as SVG: change rates by layer, rewards and divergence, step by step."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

WIDTH, HEIGHT, GAP = 460, 150, 62  # of a panel, and between panels
LEFT, TOP, BOTTOM = 64, 76, 64
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#bab0ac", "#e45756")
DENSE, WITH_DCR = "#222222", "#d62728"


class _Panel:
    """Axes with lines and marks in them."""

    def __init__(
        self, left: float, top: float, title: str, steps: int, lines: Sequence[Sequence[float]]
    ) -> None:
        values = [value for line in lines for value in line]
        ticks = _ticks(min(values), max(values))
        self.low, self.high = ticks[0], ticks[-1]
        self.left, self.top, self.steps = left, top, steps
        self.parts = [
            f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" class="axes"/>',
            f'<text x="{left}" y="{top - 8}" class="title">{escape(title)}</text>',
        ]
        for value in ticks:
            self._text(left - 6, self.y(value) + 4, _number(value), "end")
        for step in range(0, steps + 1, max(1, steps // 5)):
            self._text(self.x(step), top + HEIGHT + 15, str(step), "middle")

    def x(self, step: float) -> float:
        return self.left + WIDTH * step / self.steps

    def y(self, value: float) -> float:
        return self.top + HEIGHT * (self.high - value) / (self.high - self.low)

    def line(self, values: Sequence[float], color: str, width: float = 1.3) -> None:
        points = " ".join(
            f"{self.x(step + 1):.1f},{self.y(value):.1f}" for step, value in enumerate(values)
        )
        self.parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'
        )

    def rings(self, values: Sequence[float], color: str) -> None:
        for step, value in enumerate(values):
            self.parts.append(
                f'<circle cx="{self.x(step + 1):.1f}" cy="{self.y(value):.1f}" r="2.6" '
                f'fill="none" stroke="{color}"/>'
            )

    def at_foot(self, step: float, mark: str, color: str) -> None:
        x, y = self.x(step), self.top + HEIGHT - 6
        if mark == "cross":
            shape = f'<path d="M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8" stroke="{color}" fill="none"/>'
        elif mark == "dot":
            shape = f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="{color}"/>'
        else:
            shape = f'<path d="M{x:.1f} {y - 5}l5 9h-10z" fill="{color}"/>'
        self.parts.append(shape)

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around the values, three or more, from 0 on if that is near."""
    if low < 0.3 * high:
        low = 0.0
    apart = (high - low) / 4 or 1.0
    power = 10.0 ** floor(log10(apart))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= apart)
    first, last = floor(low / size), ceil(high / size)
    return [size * number for number in range(first, max(last, first + 1) + 1)]


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def draw(columns: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], title: str) -> str:
    """The picture: a column for each kind of arm, with the arms of it as the report has them,
    the dense one first."""
    parts: list[str] = []
    for number, (name, arms) in enumerate(columns):
        left = LEFT + number * (WIDTH + LEFT + 8)
        parts += _column(left, name, arms)
    width = LEFT + len(columns) * (WIDTH + LEFT + 8) - 40
    height = TOP + 3 * (HEIGHT + GAP) + BOTTOM - GAP + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n'
        "<style>text{font:11px sans-serif;fill:#222}.title{font-weight:bold}"
        ".axes{fill:#fff;stroke:#999}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
        f'<text x="{LEFT}" y="24" class="title">{escape(title)}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _column(left: float, name: str, arms: Sequence[Mapping[str, Any]]) -> list[str]:
    dense = arms[0]["steps"]
    steps = len(dense)
    layers = list(dense[0]["changed_by_layer"])
    rates = {
        layer: [100 * step["changed_by_layer"][layer] for step in dense] for layer in layers
    }
    whole = [100 * step["changed"] for step in dense]
    top = _Panel(left, TOP, f"{name}: BF16 values changed, % of a layer's", steps,
                 [*rates.values(), whole])
    for color, values in zip(_cycle(len(rates)), rates.values(), strict=True):
        top.line(values, color)
    top.line(whole, DENSE, 2.2)
    panels = [top]
    for row, (what, words) in enumerate(
        (("reward", "mean reward"), ("kl", "KL per token, rollout and training policy")), 1
    ):
        lines = [[step[what] for step in arm["steps"]] for arm in arms]
        panel = _Panel(left, TOP + row * (HEIGHT + GAP), f"{name}: {words}", steps, lines)
        panel.line(lines[0], DENSE, 1.6)
        for line in lines[1:]:
            panel.rings(line, WITH_DCR)
        panels.append(panel)
    for arm in arms[1:]:
        for event in arm["events"]:
            mark = {"kill": "cross", "return": "dot"}.get(event["what"], "triangle")
            panels[1].at_foot(event["step"] + 0.5, mark, WITH_DCR)
    foot = TOP + 3 * (HEIGHT + GAP) - GAP + 36
    legend = [*zip(_cycle(len(layers)), layers, strict=True), (DENSE, "all, dense")]
    if len(arms) > 1:
        legend.append((WITH_DCR, "DCR (rings); × kill ● return ▲ coordinator killed"))
    return [part for panel in panels for part in panel.parts] + _legend(left, foot, legend)


def _cycle(count: int) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(count)]


def _legend(left: float, top: float, entries: Sequence[tuple[str, str]]) -> list[str]:
    parts, x, y = [], left, top
    for color, text in entries:
        width = 22 + 6.2 * len(text)
        if x + width > left + WIDTH:
            x, y = left, y + 16
        parts.append(f'<rect x="{x:.0f}" y="{y - 8}" width="10" height="8" fill="{color}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y}">{escape(text)}</text>')
        x += width
    return parts
