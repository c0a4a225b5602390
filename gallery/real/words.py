"""Find and read twenty words drawn on a page, with the three models of rapidocr (PP-OCRv4).

The first model gives the probability of text at each pixel of a page. The second model says whether
a word is upside down, as some words are here. The third model gives, for each 8 pixels of a word's
width, the probabilities of 6,623 characters, a space, and no character.

Source: Li et al., "PP-OCRv3: More Attempts for the Improvement of Ultra Lightweight OCR System",
arXiv:2206.03001; Graves et al., "Connectionist Temporal Classification", ICML 2006.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from common import Real, options, package_file

WORDS = (
    "needle compile tensor kernel schedule graph matrix vector gradient Fourier "
    "Lisbon 27.11.2026 Hello! pi=3.14 ONNX float32 harbour 42nd Pythagoras jumps"
).split()
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSerif-Bold")
COLUMNS, CELL = 4, (184, 96)  # words in a row of the page, and pixels of a word's cell
UPSIDE_DOWN = range(3, 20, 5)
HEIGHT, WIDTHS = 48, (192, 320)  # size of words for the second and third model


def draw() -> tuple[Image.Image, list[tuple[int, int]]]:
    """Return a page with the words, and the positions (x, y) of their centres."""
    rows = -(-len(WORDS) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * CELL[0], rows * CELL[1]), (250, 247, 240))
    places = []
    for i, word in enumerate(WORDS):
        size, color = 22 + i % 3 * 3, ((20, 20, 30), (120, 20, 20), (10, 60, 120))[i % 3]
        file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{FONTS[i % 5]}.ttf")
        font = ImageFont.truetype(str(file), size)
        cell = Image.new("RGB", CELL, page.getpixel((0, 0)))
        middle = (CELL[0] // 2, CELL[1] // 2)
        ImageDraw.Draw(cell).text(middle, word, font=font, fill=color, anchor="mm")
        corner = (i % COLUMNS * CELL[0], i // COLUMNS * CELL[1])
        page.paste(cell.rotate(180) if i in UPSIDE_DOWN else cell, corner)
        places.append((corner[0] + middle[0], corner[1] + middle[1]))
    return page, places


def scaled(image: Image.Image) -> np.ndarray:
    """Return (3, height, width) float32 from -1 to 1, channels in the order blue, green, red."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1]
    return (pixels / 127.5 - 1).transpose(2, 0, 1)


def fitted(image: Image.Image, width: int) -> np.ndarray:
    """Return (1, 3, 48, width): a word at a model's input height, with zeros to its right."""
    wide = min(width, -(-HEIGHT * image.width // image.height))
    made = np.zeros((1, 3, HEIGHT, width), np.float32)
    made[0, :, :, :wide] = scaled(image.resize((wide, HEIGHT), Image.Resampling.BILINEAR))
    return made


def boxes(text: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return a box (left, top, right, bottom) around each area where `text` is likely.

    `text` (height, width) holds the probability at each pixel.
    The model marks the inner part of a word; each box grows by the missing margin (`unclip_ratio`
    of the package).
    """
    labels, _ = ndimage.label(ndimage.binary_dilation(text > 0.3, np.ones((2, 2))))
    found = []
    for number, (y, x) in enumerate(ndimage.find_objects(labels), 1):
        height, width = y.stop - y.start, x.stop - x.start
        if min(height, width) < 4 or text[y, x][labels[y, x] == number].mean() < 0.5:
            continue
        grow = round(1.6 * height * width / (2 * (height + width)))
        found.append((x.start - grow, y.start - grow, x.stop + grow, y.stop + grow))
    return found


def read(scores: np.ndarray, characters: list[str]) -> str:
    """Return the text that scores (steps, characters) spell, without repeats and separators."""
    best = scores.argmax(1)
    kept = best[(best != 0) & (best != np.roll(best, 1))]
    return "".join(characters[i] for i in kept)


def main() -> None:
    arguments = options()
    page, places = draw()
    names = ("ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_rec_infer")
    files = [package_file("rapidocr_onnxruntime", "models", f"{name}.onnx") for name in names]
    shapes = [(1, 3, page.height, page.width)] + [(1, 3, HEIGHT, width) for width in WIDTHS]
    find, turn, recognise = (
        Real(name, "rapidocr-onnxruntime", file, {"x": np.zeros(shape, np.float32)})
        for name, file, shape in zip(
            ("words_find", "words_turn", "words_read"), files, shapes, strict=True
        )
    )
    listed = {p.key: p.value for p in onnx.load(files[2]).metadata_props}["character"]
    characters = ["", *listed.splitlines(), " "]
    (text,) = find(x=scaled(page)[None])
    texts, drawing, turned = {}, ImageDraw.Draw(marked := page.copy()), set()
    for box in boxes(text[0, 0]):
        word = page.crop(box)
        centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        nearest = int(np.argmin([np.hypot(centre[0] - x, centre[1] - y) for x, y in places]))
        (ways,) = turn(x=fitted(word, WIDTHS[0]))
        if ways[0, 1] > 0.9:
            word = word.rotate(180)
            turned.add(nearest)
        (scores,) = recognise(x=fitted(word, WIDTHS[1]))
        texts[nearest] = texts.get(nearest, "") + read(scores[0], characters)
        drawing.rectangle(box, outline=(200, 40, 40), width=2)
        drawing.text((box[0], box[1] - 12), texts[nearest], fill=(200, 40, 40))
    marked.save(arguments.out / "words.png")
    wrong = {word: texts.get(i, "") for i, word in enumerate(WORDS) if texts.get(i) != word}
    answers = (
        (find, f"{len(texts)} of {len(WORDS)} words found", len(texts) == len(WORDS)),
        (turn, f"{len(turned)} words upside down", turned == set(UPSIDE_DOWN)),
        (
            recognise,
            f"{len(WORDS) - len(wrong)} of {len(WORDS)} words read {wrong or ''}",
            not wrong,
        ),
    )
    for model, answer, right in answers:
        model.report(arguments.out, not arguments.no_times, answer.strip(), right)


if __name__ == "__main__":
    main()
