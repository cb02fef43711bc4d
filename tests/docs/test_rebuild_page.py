"""The page that rebuilds a model, in a headless Chromium: equal digests, nothing cut, nothing said to the console."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.protocol.log import RunLog
from tests.cases import rows_of
from tests.docs import browser
from tests.docs.blocks import ROOT
from tests.docs.browser import PAGE, Browser, rebuilt
from tests.docs.test_readers import heavy

FOLDER = PAGE.parent
MODEL_SECONDS = 20
"""What a replay of the recorded run may take on a quiet machine."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if browser.FOUND is None:
        pytest.skip("no Chromium is installed")
    with Browser() as found:
        yield found


@pytest.fixture
def page(chromium: Browser) -> Browser:
    chromium.open(PAGE.as_uri())
    shows(chromium, "name", "mnist.dcl")
    return chromium


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded run's first rounds."""
    path = tmp_path_factory.mktemp("short") / "short.dcl"
    shutil.copy(FOLDER / "mnist.dcl", path)
    RunLog.open(path, end=20).close()
    return path


def shows(page: Browser, name: str, wanted: str, seconds: float = 20) -> None:
    """Wait until the text of an element is this, or begins so."""
    page.wait(f"document.getElementById({name!r}).textContent.startsWith({wanted!r})", seconds)


def choose(page: Browser, log: Path) -> None:
    page.choose("#files", log)
    shows(page, "name", log.name)


def slide(page: Browser, place: int) -> None:
    """Move the slider, as a drag does, and draw the page."""
    page.value(f"$('slider').value = {place}, $('slider').dispatchEvent(new Event('input')), paint()")


def text(page: Browser, name: str) -> str:
    return str(page.value(f"document.getElementById({name!r}).textContent"))


def cut(page: Browser) -> list[str]:
    """Elements that reach beyond the page, or whose text does not fit into them."""
    found = page.value("""[...document.querySelectorAll('body *')].filter((each) => {
        const box = each.getBoundingClientRect();
        const clipped = each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0 && !each.closest('svg');
        return box.width && (box.left < 0 || box.right > innerWidth + 0.5 || clipped);
    }).map((each) => each.outerHTML.slice(0, 80))""")
    return list(found)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_is_cut_and_nothing_is_said_before_and_after_a_replay(
    chromium: Browser, short: Path, width: int, dark: bool
) -> None:
    chromium.open(PAGE.as_uri(), width=width, dark=dark)
    assert cut(chromium) == []
    choose(chromium, short)
    rebuilt(chromium)
    assert text(chromium, "verdict") == (
        "The model after 20 of 20 rounds is rebuilt, bit for bit: x_0 and 2 digests of the log agree, the last after "
        "round 20; the log ends before the 300 rounds that the run was to have."
    )
    chromium.value("sample(3)")
    assert cut(chromium) == []
    assert chromium.said == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1280, 390])
def test_the_recorded_run_is_rebuilt_to_the_digest_of_its_log_and_reads_digits(chromium: Browser, width: int) -> None:
    chromium.open(PAGE.as_uri(), width=width)
    rebuilt(chromium, 6 * MODEL_SECONDS)
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        last = log.entry(len(log) - 1).digest
    assert text(chromium, "found") == text(chromium, "recorded") == last
    assert text(chromium, "verdict") == (
        "The model after 300 of 300 rounds is rebuilt, bit for bit: x_0 and 30 digests of the log agree, the last "
        "after round 300."
    )
    table = json.loads((FOLDER / "mnist.json").read_text())["table"]
    assert f"{100 * table[-1][1]:.1f} %" in text(chromium, "curve")
    answer = "document.querySelector('#answer b').textContent"
    read = [chromium.value(f"sample({digit}), paint(), {answer}") for digit in range(10)]
    assert sum(int(each) == digit for digit, each in enumerate(read)) >= 8, read
    chromium.value("document.getElementById('clear').click()")
    draw_a_line(chromium)
    assert chromium.value(f"paint(), {answer}") == "1"
    chromium.value("sample(3)")
    for place, least, most in ((0, 0, 25), (300, 90, 100)):  # percent: at first all is noise
        slide(chromium, place)
        assert least <= int(chromium.value("$('bars').children[3].textContent").split()[1]) <= most
    assert (cut(chromium), chromium.said) == ([], [])


def draw_a_line(page: Browser) -> None:
    """A vertical one, left of the middle."""
    page.value("document.getElementById('paper').scrollIntoView()")
    box = page.value("JSON.parse(JSON.stringify(document.getElementById('paper').getBoundingClientRect()))")
    x = box["x"] + 0.3 * box["width"]
    page.draw([(x, box["y"] + share * box["height"]) for share in (0.15, 0.3, 0.45, 0.6, 0.75, 0.85)])


def test_numbers_of_the_page_are_those_of_the_file(page: Browser) -> None:
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        d, rounds = log.header["d"], len(log)
    for number in (d, (FOLDER / "mnist.dcl").stat().st_size, rounds):
        assert f"{number:,}" in text(page, "lede")


def test_a_drawing_is_centred_by_mass_and_20_pixels_high(page: Browser) -> None:
    page.value("document.getElementById('clear').click()")
    draw_a_line(page)
    pixels = np.array(page.value("Array.from(image())")).reshape(28, 28)
    rows = np.nonzero(pixels > 0.1)[0]
    assert (rows.min(), rows.max()) == (4, 23)
    assert abs((pixels * np.arange(28)).sum() / pixels.sum() - 13.5) <= 0.5
    assert abs((pixels.T * np.arange(28)).sum() / pixels.sum() - 13.5) <= 0.5


def test_the_model_in_the_page_gives_the_outputs_of_the_module(page: Browser) -> None:
    import torch

    from decomfl_lab.layout import Layout
    from decomfl_lab.models.registry import build_model

    model = build_model("cnn-mnist", seed=5, in_shape=(1, 28, 28), classes=10)
    x, pixels = Layout.of(model).flatten(model), torch.rand(28, 28, generator=torch.Generator().manual_seed(0))
    wanted = model((pixels - 0.1307).div(0.3081)[None, None]).softmax(1).detach().reshape(-1)
    given = f"new Float32Array({pixels.reshape(-1).tolist()}), new Float32Array({x.tolist()})"
    found = torch.tensor(page.value(f"read({given})"))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_file_that_is_chosen_takes_the_place_of_the_recorded_one(
    page: Browser, vectors: Path, tmp_path: Path
) -> None:
    choose(page, vectors / "run.dcl")
    assert "no accuracy curve" in text(page, "curve-caption")
    rebuilt(page)
    assert text(page, "found") == json.loads((vectors / "run.json").read_text())["digest"]
    assert page.value("document.getElementById('draw').hidden")
    assert cut(page) == []
    pd.DataFrame({"round": [0, 8], "test_accuracy": [0.1, 0.25]}).to_csv(tmp_path / "metrics.csv", index=False)
    page.choose("#files", tmp_path / "metrics.csv")
    page.wait("document.getElementById('curve').textContent.includes('25.0 %')", 10)
    assert page.said == []


def test_a_log_that_cannot_be_followed_is_refused_when_it_is_opened(
    page: Browser, vectors: Path, tmp_path: Path
) -> None:
    with RunLog.open(vectors / "run.dcl", write=False) as log:
        RunLog.create(tmp_path / "given.dcl", {**log.header, "start": {"by": "given"}}).close()
    content = (FOLDER / "mnist.dcl").read_bytes()
    (tmp_path / "damaged.dcl").write_bytes(content[:-999] + b"\0" + content[-998:])
    for log, told in {
        vectors / "run-hiso.dcl": 'This reader does not know the method "hiso".',
        vectors / "run-grid.dcl": "This reader does not know models in 16 bits or on a grid.",
        tmp_path / "damaged.dcl": "The entry of round 294 was changed or moved.",
        ROOT / "tests" / "old" / "low-rank.dcl": (
            "Rank in the log must be 1, as only version 0.1 of decomfl-lab has low-rank directions, got 2."
        ),
        tmp_path / "given.dcl": (
            "x_0 is not in the log: only models built into decomfl can be rebuilt here, others by decomfl replay."
        ),
    }.items():
        page.choose("#files", log)
        said = f"{log.name}: {told} Still showing mnist.dcl."
        shows(page, "trouble", said)
    assert text(page, "recorded") == "–"


def test_the_page_works_with_the_keyboard_alone(page: Browser) -> None:
    seen = []
    for _ in range(16):
        page.press("Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(page.value("document.activeElement.id || document.activeElement.textContent"))
    assert seen[1:4] == ["start", "slider", "clear"]
    assert seen[4:14] == [str(digit) for digit in range(10)]
    assert seen[14] == "files"


def test_the_slider_shows_a_round_its_digest_and_what_its_model_reads(page: Browser, short: Path) -> None:
    choose(page, short)  # which is rebuilt without a word
    shows(page, "verdict", "The model after 20 of 20 rounds is rebuilt", 60)
    assert "A run of decomfl: cnn-mnist, mnist, d = 28,938 parameters. 20 rounds, 2 of 10" in text(page, "about")
    page.value("state.found.set(10, '0'), 0")  # the fault
    for place, check, answer in rows_of(__file__)["slider"]:
        slide(page, place)
        shown = [text(page, name)[: len(answer) if name == "answer" else None] for name in ("round", "check", "answer")]
        assert shown == [f"{place} of 20 rounds", check, answer]
    page.value("$('slider').focus()")
    page.press("ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    shows(page, "round", "19 of 20")
    page.value("""const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["hello"], "photo.png"));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true })), 0""")
    shows(page, "trouble", "photo.png: This is no log of a run: it begins in another way. A log is the file run.dcl")


def test_the_slider_begins_the_rebuild_and_stays_where_it_is_put_and_cancel_ends_it(page: Browser) -> None:
    slide(page, 300)
    page.wait("state.shown > 3", 60)
    slide(page, 2)
    page.value("document.getElementById('cancel').click()")
    shows(page, "hint", "cancelled: the rounds before can be looked at")
    assert text(page, "round") == "2 of 300 rounds"


def test_no_log_stops_the_page_and_what_takes_long_is_cancelled(page: Browser, vectors: Path, tmp_path: Path) -> None:
    for what, why, content in heavy((vectors / "run.dcl").read_bytes()):
        (log := tmp_path / f"{what}.dcl").write_bytes(content)
        page.choose("#files", log)
        if why == "busy":
            shows(page, "time", "rebuilding")
            page.value("document.getElementById('cancel').click()")
            assert page.value("document.getElementById('work').hidden && state.job === null")
        else:
            said = "does NOT agree: x_0" if why.endswith("false") else why
            page.wait(f"($('trouble').textContent + $('verdict').textContent).includes({said!r})", 20)
    assert page.said == []


def test_the_page_works_when_it_is_served_too(chromium: Browser) -> None:
    handler = partial(type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}), directory=FOLDER)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        chromium.open(f"http://127.0.0.1:{server.server_port}/index.html")
        shows(chromium, "name", "mnist.dcl")
        chromium.value("document.getElementById('start').click()")
        chromium.wait("document.getElementById('progress').value > 0", 60)
        assert chromium.said == []
        server.shutdown()


def test_the_script_of_the_page_has_the_log_and_the_table_beside_it() -> None:
    about, log = json.loads((FOLDER / "mnist.json").read_text()), (FOLDER / "mnist.dcl").read_bytes()
    given = json.dumps({**about, "log": base64.b64encode(log).decode()})
    assert (FOLDER / "mnist.js").read_text() == f"globalThis.recorded = {given};\n"


def test_the_recorded_run_is_one_of_the_paper_s_network_and_sizes_as_the_readme_tells_them() -> None:
    size = (FOLDER / "mnist.dcl").stat().st_size
    told = f"network of 28,938\nparameters, 116 kB, in your browser from a log of {size / 1000:.0f} kB"
    assert told in (ROOT / "README.md").read_text()
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        config, d, rounds = log.header["config"], log.header["d"], len(log)
    assert (config["model"], d, rounds, config["perturbations"], config["local_steps"]) == (
        "cnn-mnist", 28_938, 300, 20, 1
    )  # fmt: skip


def test_the_page_is_reached_from_the_index_and_from_its_own_guide() -> None:
    links = re.findall(r'(?:href|src)="(?!https:|data:)([^"]+)"', PAGE.read_text())
    assert [link for link in links if not (FOLDER / link).exists()] == []  # in a clone; `make docs` leads them to pages
    for page in ("index.md", "how-to/rebuild.md"):
        targets = re.findall(r'<a href="([^"]+)"', (ROOT / "docs" / page).read_text())
        found = [(ROOT / "docs" / page).parent.joinpath(target).resolve() for target in targets]
        assert found[0] == PAGE
        assert all(path.exists() for path in found)
