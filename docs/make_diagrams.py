"""Draw the diagrams as SVG that stands in the page and has its colours, light or dark.

A diagram is a list of boxes and arrows on a grid of pixels; `site.css` has the look.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

OUT = Path(__file__).parent / "diagrams"

Point = tuple[float, float]


class Diagram:
    """Boxes, arrows and words.

    Args:
        width: Width of the drawing.
        height: Height of the drawing.
        caption: Sentence below it, also read aloud in its place.
    """

    def __init__(self, width: int, height: int, caption: str) -> None:
        self.size, self.caption, self.parts = (width, height), caption, list[str]()
        self.boxes: dict[str, tuple[float, float, float, float]] = {}

    def box(
        self,
        name: str,
        at: Point,
        text: str,
        note: str = "",
        *,
        wide: float = 130,
        hot: bool = False,
    ) -> None:
        """Draw a box around its centre, with one line in it or two."""
        high = 46 if note else 32
        x, y = at
        self.boxes[name] = (x, y, wide, high)
        kind = "hot" if hot else "box"
        self.parts.append(
            f'<rect class="{kind}" x="{x - wide / 2:g}" y="{y - high / 2:g}" width="{wide:g}" height="{high}" rx="6"/>'
        )
        self.text((x, y + (-3 if note else 5)), text, "hot-text" if hot else "")
        if note:
            self.text((x, y + 14), note, "hot-text code" if hot else "small code")

    def text(self, at: Point, words: str, kind: str = "small") -> None:
        """Write words around a point."""
        self.parts.append(
            f'<text class="{kind}" x="{at[0]:g}" y="{at[1]:g}">{escape(words)}</text>'
        )

    def arrow(
        self,
        start: str,
        end: str,
        words: str = "",
        *,
        shift: float = 0,
        dashed: bool = False,
    ) -> None:
        """Draw a straight arrow from the edge of a box to that of another; `shift` moves it aside."""
        (x0, y0, w0, h0), (x1, y1, w1, h1) = self.boxes[start], self.boxes[end]
        if abs(x1 - x0) * (h0 + h1) > abs(y1 - y0) * (w0 + w1):  # from side to side
            step = 1 if x1 > x0 else -1
            points = (
                (x0 + step * w0 / 2, y0 + shift),
                (x1 - step * (w1 / 2 + 3), y1 + shift),
            )
        else:
            step = 1 if y1 > y0 else -1
            points = (
                (x0 + shift, y0 + step * h0 / 2),
                (x1 + shift, y1 - step * (h1 / 2 + 3)),
            )
        self.path(points, dashed=dashed)
        if words:
            middle = (
                (points[0][0] + points[1][0]) / 2,
                (points[0][1] + points[1][1]) / 2,
            )
            flat = points[0][1] == points[1][1]
            self.text((middle[0], middle[1] - 6) if flat else (middle[0] + 6, middle[1] + 4), words,
                      "small" if flat else "small left")  # fmt: skip

    def path(self, points: tuple[Point, ...], *, dashed: bool = False) -> None:
        """Draw an arrow along points."""
        line = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline class="arrow{" dashed" if dashed else ""}" points="{line}"/>'
        )

    def html(self) -> str:
        """The figure."""
        width, height = self.size
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        body = "\n".join(self.parts)
        return (
            f'<figure class="diagram">\n<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'aria-label="{escape(self.caption)}">\n<defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>\n{body}\n'
            f"</svg>\n<figcaption>{escape(self.caption)}</figcaption>\n</figure>\n"
        )


def star() -> Diagram:
    """The packages."""
    drawing = Diagram(
        760,
        300,
        "Every package depends on rl-core alone; only rl-trainers depends on several.",
    )
    upper = ["rl-envs", "rl-modules", "rl-collectors", "rl-replay", "rl-objectives"]
    drawing.box(
        "rl-core", (380, 160), "rl-core", "keys, specs, hooks", wide=160, hot=True
    )
    for number, name in enumerate(upper):
        drawing.box(name, (80 + 150 * number, 90), name, wide=120)
        x = 80 + 150 * number
        drawing.path(((x, 106), (380 + (number - 2) * 30, 134)))
    for name, x, y in [
        ("rl-llm", 90, 150),
        ("rl-testing", 90, 195),
        ("your plugin", 90, 240),
    ]:
        drawing.box(name, (x, y), name, wide=120)
        drawing.path(((x + 60, y), (297, 160 + (y - 160) / 8)))
    for name, x, y in [
        ("rl-native", 670, 150),
        ("rl-prio-cuda", 670, 195),
        ("rl-recurrent-triton", 670, 240),
    ]:
        drawing.box(name, (x, y), name, wide=150)
        drawing.path(((x - 75, y), (463, 160 + (y - 160) / 8)))
    drawing.box("rl-trainers", (380, 262), "rl-trainers", "rl train, rl eval", wide=160)
    drawing.arrow("rl-trainers", "rl-core")
    drawing.box("all", (380, 26), "used by rl-trainers", wide=700)
    drawing.path(
        ((460, 262), (575, 262), (575, 290), (752, 290), (752, 26), (733, 26)),
        dashed=True,
    )
    for number in range(5):
        drawing.path(((80 + 150 * number, 42), (80 + 150 * number, 71)), dashed=True)
    return drawing


def frame() -> Diagram:
    """From environment to loss."""
    drawing = Diagram(
        820,
        310,
        "The way of one frame from the environment to the loss, and the keys that each part writes.",
    )
    drawing.box("env", (110, 60), "environment", "observation, done", wide=160)
    drawing.box("policy", (110, 170), "policy", "action, action_log_prob", wide=190)
    drawing.box("step", (370, 60), "environment", "next: reward, done", wide=170)
    drawing.box(
        "collector", (370, 170), "collector", "batch [*B, T]", wide=150, hot=True
    )
    drawing.box("estimator", (600, 60), "estimator", "advantage", wide=140)
    drawing.box("buffer", (600, 170), "replay buffer", "rows [N], index", wide=150)
    drawing.box("loss", (600, 275), "loss", "loss_*, diagnostics", wide=160, hot=True)
    drawing.box("optimizer", (355, 275), "optimizer, targets", wide=150)
    drawing.arrow("env", "policy", "root")
    drawing.path(((205, 170), (245, 170), (245, 60), (282, 60)))
    drawing.text((252, 120), "step", "small left")
    drawing.arrow("step", "collector", "frame")
    drawing.path(((445, 160), (490, 160), (490, 60), (527, 60)))
    drawing.text((460, 110), "on-policy", "small")
    drawing.path(((445, 178), (522, 178)))
    drawing.text((483, 196), "off-policy")
    drawing.path(((670, 60), (770, 60), (770, 275), (683, 275)))
    drawing.arrow("buffer", "loss", "samples [n]")
    drawing.arrow("loss", "optimizer", "gradients")
    drawing.path(((280, 275), (110, 275), (110, 196)))
    drawing.text((200, 268), "weights")
    drawing.path(((370, 37), (370, 16), (110, 16), (110, 34)))
    drawing.text((240, 12), "step_mdp: next becomes root")
    return drawing


def workers() -> Diagram:
    """Workers and weights."""
    drawing = Diagram(
        820,
        270,
        "Workers write frames into shared memory; the trainer publishes weights, which they read before a batch.",
    )
    drawing.box("trainer", (130, 130), "trainer", "loss, optimizer", wide=150, hot=True)
    drawing.box("weights", (380, 60), "shared weights", "version n", wide=150)
    drawing.box("batches", (380, 200), "shared batches", "[*B, T]", wide=150)
    drawing.path(((130, 107), (130, 60), (302, 60)))
    drawing.text((215, 52), "update_policy_weights_()")
    drawing.path(((302, 200), (130, 200), (130, 156)))
    drawing.text((215, 218), "batch, policy_version")
    for number, y in enumerate((40, 130, 220)):
        drawing.box(
            f"w{number}", (690, y), f"worker {number}", "envs and a policy", wide=150
        )
        drawing.path(
            ((455, 55 + 5 * number), (530, 55 + 5 * number), (570, y - 8), (612, y - 8))
        )
        drawing.path(
            (
                (615, y + 8),
                (570, y + 8),
                (530, 195 + 5 * number),
                (458, 195 + 5 * number),
            )
        )
    return drawing


def recurrent() -> Diagram:
    """The life of a recurrent state."""
    drawing = Diagram(
        820,
        260,
        "A hidden state starts at zero, is carried by the collector, and stored with its step, where training starts.",
    )
    for number, name in enumerate(("t", "t + 1", "t + 2")):
        x = 150 + 230 * number
        drawing.box(
            f"p{number}",
            (x, 70),
            f"policy, step {name}",
            "hidden, is_init",
            wide=146,
            hot=number == 0,
        )
        drawing.box(
            f"r{number}", (x, 170), f"row {name}", "hidden, next.hidden", wide=146
        )
        drawing.arrow(f"p{number}", f"r{number}", "stored")
        if number:
            drawing.arrow(f"p{number - 1}", f"p{number}", "step_mdp")
    drawing.path(((30, 70), (74, 70)))
    drawing.text((50, 60), "zeros")
    drawing.text(
        (610, 30), "is_init: an episode began, so zeros in place of what was carried"
    )
    drawing.box(
        "train",
        (380, 236),
        "training: a sequence starts from the hidden of its first row",
        wide=460,
    )
    for number in range(3):
        drawing.path(
            ((150 + 230 * number, 193), (260 + 120 * number, 217)), dashed=True
        )
    return drawing


def discovery() -> Diagram:
    """How a plugin is found."""
    drawing = Diagram(
        820,
        220,
        "A plugin is found by its entry point; its components are data until one is used.",
    )
    steps = [
        ("entry", "entry point", "group rl.plugins"),
        ("module", "light module", "imports no torch"),
        ("hooks", "registry", "rl_components()"),
        ("names", "names", "rl plugins, --env"),
        ("object", "component", "load(kind, name)"),
    ]
    for number, (name, text, note) in enumerate(steps):
        drawing.box(
            name, (85 + 162 * number, 60), text, note, wide=138, hot=name == "hooks"
        )
        if number:
            drawing.arrow(steps[number - 1][0], name)
    drawing.box("broken", (247, 160), "import fails", "reported, left out", wide=150)
    drawing.arrow("module", "broken", dashed=True)
    drawing.box("doctor", (450, 160), "rl doctor", "what, why, remedy", wide=150)
    drawing.arrow("broken", "doctor")
    drawing.box("torch", (733, 160), "its package", "imported on first use", wide=165)
    drawing.arrow("object", "torch")
    return drawing


def main() -> None:
    """Write all of them."""
    OUT.mkdir(exist_ok=True)
    for draw in (star, frame, workers, recurrent, discovery):
        (OUT / f"{draw.__name__}.html").write_text(draw().html(), encoding="utf-8")


if __name__ == "__main__":
    main()
