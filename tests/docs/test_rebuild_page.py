"""The page that rebuilds a model, in a headless Chromium: equal digests, nothing cut, nothing said to the console."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest

from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.conformance import write_conformance
from paper_repro.commands.page import record, script
from tests.docs import browser
from tests.docs.browser import PAGE, Browser, rebuilt

FOLDER = PAGE.parent
MODEL_SECONDS = 20
"""What a replay of the recorded run may take on a quiet machine."""
pytestmark = pytest.mark.skipif(browser.FOUND is None, reason="no Chromium is installed")

Opener = Callable[..., Browser]


@pytest.fixture
def opened() -> Iterator[Opener]:
    pages: list[Browser] = []

    def opened(address: str = PAGE.as_uri(), **size: object) -> Browser:
        page = Browser(**size)  # type: ignore[arg-type]
        pages.append(page)
        page.open(address)
        return page

    yield opened
    for page in pages:
        page.__exit__()


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
def test_the_recorded_run_is_rebuilt_to_the_digest_of_its_log(opened: Opener, width: int, dark: bool) -> None:
    page = opened(width=width, dark=dark)
    assert cut(page) == []
    rebuilt(page, 6 * MODEL_SECONDS)
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        last = log.entry(len(log) - 1).digest
    assert text(page, "found") == text(page, "recorded") == last
    assert text(page, "verdict").startswith("The same model, to the last bit")
    table = json.loads((FOLDER / "mnist.json").read_text())["table"]
    assert f"{100 * table[-1][1]:.1f} %" in text(page, "curve")
    page.value("sample(3)")
    assert cut(page) == []
    assert page.said == []


def test_numbers_of_the_page_are_those_of_the_file(opened: Opener) -> None:
    page = opened()
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        d, rounds = log.header["d"], len(log)
    for number in (d, (FOLDER / "mnist.dcl").stat().st_size, rounds):
        assert f"{number:,}" in text(page, "lede")


def test_the_rebuilt_model_reads_digits_that_are_drawn(opened: Opener) -> None:
    page = opened()
    rebuilt(page, 6 * MODEL_SECONDS)
    read = [page.value(f"sample({digit}), document.querySelector('#answer b').textContent") for digit in range(10)]
    assert sum(int(each) == digit for digit, each in enumerate(read)) >= 8, read
    page.value("document.getElementById('clear').click(), document.getElementById('paper').scrollIntoView()")
    box = page.value("JSON.parse(JSON.stringify(document.getElementById('paper').getBoundingClientRect()))")
    x, y = box["x"] + box["width"] / 2, box["y"]
    page.draw([(x, y + share * box["height"]) for share in (0.15, 0.3, 0.45, 0.6, 0.75, 0.85)])
    assert page.value("document.querySelector('#answer b').textContent") == "1"


def test_the_model_in_the_page_gives_the_outputs_of_the_module(opened: Opener) -> None:
    import torch

    from decomfl_lab.layout import Layout
    from decomfl_lab.models.registry import build_model

    model = build_model("cnn-mnist", seed=5, in_shape=(1, 28, 28), classes=10)
    x, pixels = Layout.of(model).flatten(model), torch.rand(28, 28, generator=torch.Generator().manual_seed(0))
    wanted = model((pixels - 0.1307).div(0.3081)[None, None]).softmax(1).detach().reshape(-1)
    page = opened()
    given = f"new Float32Array({pixels.reshape(-1).tolist()}), new Float32Array({x.tolist()})"
    found = torch.tensor(page.value(f"read({given})"))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_file_that_is_chosen_takes_the_place_of_the_recorded_one(opened: Opener, tmp_path: Path) -> None:
    write_conformance(tmp_path / "vectors")
    page = opened()
    page.choose("#files", tmp_path / "vectors" / "run.dcl")
    page.wait("document.getElementById('name').textContent === 'run.dcl'", 10)
    assert "no accuracy curve" in text(page, "curve-caption")
    rebuilt(page)
    assert text(page, "found") == json.loads((tmp_path / "vectors" / "run.json").read_text())["digest"]
    assert "logistic" in text(page, "only")
    pd.DataFrame({"round": [0, 8], "test_accuracy": [0.1, 0.25]}).to_csv(tmp_path / "metrics.csv", index=False)
    page.choose("#files", tmp_path / "metrics.csv")
    page.wait("document.getElementById('curve').textContent.includes('25.0 %')", 10)
    assert page.said == []


def test_a_damaged_file_is_refused_with_its_round_and_the_page_stays(opened: Opener, tmp_path: Path) -> None:
    content = bytearray((FOLDER / "mnist.dcl").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "run.dcl").write_bytes(content)
    page = opened()
    page.choose("#files", tmp_path / "run.dcl")
    page.wait("!document.getElementById('trouble').hidden", 10)
    assert "was changed or moved" in text(page, "trouble")
    assert text(page, "name") == "mnist.dcl"
    assert page.said == []


def test_another_model_is_told_from_the_one_of_the_log(opened: Opener, tmp_path: Path) -> None:
    write_conformance(tmp_path / "vectors")
    with RunLog.open(tmp_path / "vectors" / "run.dcl") as log:
        log.rewrite(tmp_path / "vectors" / "run.dcl", {**log.header, "x0": "0" * 32})
    page = opened()
    page.choose("#files", tmp_path / "vectors" / "run.dcl")
    page.wait("document.getElementById('name').textContent === 'run.dcl'", 10)
    rebuilt(page)
    assert text(page, "verdict") == "Another model: the digests differ after 0 rounds."


def test_the_page_works_with_the_keyboard_alone(opened: Opener) -> None:
    page = opened()
    seen = []
    for _ in range(16):
        page.press("Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(page.value("document.activeElement.id || document.activeElement.textContent"))
    assert seen[1:4] == ["start", "files", "clear"]
    assert seen[4:14] == [str(digit) for digit in range(10)]


def test_the_page_works_when_it_is_served_too(opened: Opener) -> None:
    handler = partial(type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}), directory=FOLDER)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = opened(f"http://127.0.0.1:{server.server_port}/index.html")
        page.value("document.getElementById('start').click()")
        page.wait("document.getElementById('progress').value > 0", 60)
        assert page.said == []
        server.shutdown()


def test_the_script_of_the_page_has_the_log_and_the_table_beside_it(tmp_path: Path) -> None:
    about = json.loads((FOLDER / "mnist.json").read_text())
    assert (FOLDER / "mnist.js").read_text() == script((FOLDER / "mnist.dcl").read_bytes(), about)


def test_the_recorded_run_is_one_of_the_paper_s_network_and_sizes() -> None:
    with RunLog.open(FOLDER / "mnist.dcl", write=False) as log:
        config, d, rounds = log.header["config"], log.header["d"], len(log)
    assert (config["model"], d, rounds, config["perturbations"], config["local_steps"]) == (
        "cnn-mnist", 28_938, 300, 20, 1
    )  # fmt: skip


def test_a_run_is_recorded_for_the_page(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "page"
    run.mkdir()
    folder.mkdir()
    shutil.copy(FOLDER / "mnist.dcl", run / "run.dcl")
    pd.DataFrame({"round": [10], "test_accuracy": [0.5]}).to_csv(run / "metrics.csv", index=False)
    (run / "provenance.json").write_text('{"code": "1"}')
    record(run, folder)
    assert json.loads((folder / "mnist.json").read_text())["table"] == [[10, 0.5]]
