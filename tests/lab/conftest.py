"""What every picture of the lab must satisfy."""

import io

import pytest
from PIL import Image


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
        image = Image.open(io.BytesIO(bundle["image/png"]))
        assert image.width > metadata["image/png"]["width"] > 600
        assert bundle["text/plain"] == repr(picture) == f"[{picture.alt}]"
        return picture

    return check
