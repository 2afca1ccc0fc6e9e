"""What every picture of the lab must satisfy."""

import io

import pytest
from PIL import Image


def numeric(text: str) -> bool:
    """Whether a tick's label is a number."""
    return text.replace(",", "").replace(".", "").strip("−%").isdigit()


@pytest.fixture
def sound():
    """Check a picture: labelled axes, a sentence instead of it, data behind it, a PNG that opens."""

    def check(picture):
        assert picture.rows and all(isinstance(row, dict) for row in picture.rows)
        assert len(picture.alt) > 20 and "\n" not in picture.alt
        for axes in picture.figure.axes:
            assert axes.get_title(loc="left")
            if axes.get_xticks().size or axes.lines or axes.patches:
                assert axes.get_xlabel()
        bundle, metadata = picture._repr_mimebundle_()
        for axes in picture.figure.axes:
            if any(numeric(tick.get_text()) for tick in axes.get_yticklabels()):
                assert axes.get_ylabel() or axes.get_subplotspec().colspan.start > 0, axes.get_title("left")
        image = Image.open(io.BytesIO(bundle["image/png"]))
        assert image.width > metadata["image/png"]["width"] > 600
        assert bundle["text/plain"] == repr(picture) == f"[{picture.alt}]"
        return picture

    return check
