"""The colours stay apart for colour-blind readers, and every picture is held to the same rules."""

import ast
import io
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from minfer.lab import decomposition_view, hopper_view, lane_view, mmq_view, speed_view, style
from minfer.lab.figures import nothing
from minfer.lab.picture import Picture

BLINDNESS = {
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9690]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""Linear RGB as it is seen (Machado, Oliveira, Fernandes 2009, severity 1)."""
XYZ = [[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]]
"""Linear sRGB to XYZ over D65 white."""
TESTS, LAB = Path(__file__).parent, Path(style.__file__).parent


def seen(colour, kind) -> np.ndarray:
    """CIE L*a*b* of a colour as the colour-blind see it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(BLINDNESS[kind] @ linear, 1e-3, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize(
    ("colours", "apart"),
    [
        (style.SEQUENCE, 15),
        (speed_view.FAMILIES.values(), 15),
        (lane_view.KIND_COLOURS.values(), 15),
        (hopper_view.COLOURS.values(), 15),
        (mmq_view.PARTS.values(), 15),
        (decomposition_view.COLOURS.values(), 10),
    ],
    ids=["palette", "variants", "lane player", "ladder", "shared memory", "wall"],
)
def test_colours_stay_apart(colours, apart, kind):
    for one, other in combinations(dict.fromkeys(map(to_rgb, colours)), 2):
        assert np.linalg.norm(seen(one, kind) - seen(other, kind)) > apart, (one, other)


def test_rare_colours_stay_what_they_are():
    """A legend's patch among thousands of tints: the PNG's palette must not give it a neighbour's colour."""
    fig, (ax,) = style.figure(6.5, 3, columns=1)
    ax.imshow(np.linspace(0, 1, 4000).reshape(40, 100), cmap="Blues", aspect="auto")
    ax.plot([50], [20], "s", color=style.RED, markersize=4)
    style.title(ax, "a needle")
    image = Image.open(io.BytesIO(Picture(fig, "A red needle in blue hay, a picture", [{"x": 0}]).png()))
    colours = np.array([colour for _, colour in image.convert("RGB").getcolors()])
    assert np.abs(colours - 255 * np.array(to_rgb(style.RED))).sum(axis=1).min() < 24


def test_what_no_record_holds_is_a_picture_too(sound):
    assert "No record holds a wall" in sound(nothing("a wall")).alt


def drawing_functions() -> set[str]:
    """Names of the lab's functions that return a picture."""
    return {
        node.name
        for path in LAB.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Picture"
    }


def test_every_picture_is_held_to_the_rules():
    """Each is handed to the fixture `sound`: titles, labels, alternative text, and the rows behind it."""
    checked = [
        ast.unparse(node)
        for path in TESTS.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sound"
    ]
    drawn = drawing_functions()
    assert len(drawn) > 40
    assert {name for name in drawn if not any(name in call for call in checked)} == set()
