"""A headless Chromium, driven by the DevTools protocol over its pipe: NUL-terminated JSON both ways, no library needed.

python -m tests.docs.browser docs/rebuild.png      takes the picture of the page that rebuilds a model
"""

import base64
import hashlib
import io
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from PIL import Image
from PIL.PngImagePlugin import PngInfo

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser, if there is one."""
PAGE = Path(__file__).parents[2] / "docs" / "_static" / "rebuild" / "index.html"


class Browser:
    """One page of a headless Chromium.

    Attributes:
        said: What the page wrote to the console, and errors that nothing caught.
    """

    def __init__(self) -> None:
        assert FOUND is not None
        self.said: list[str] = []
        self._numbers, self._left = itertools.count(1), b""
        self._folder = tempfile.TemporaryDirectory()
        (read, self._to), (self._from, write) = os.pipe(), os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{read} 4>&{write} 2>/dev/null'
        self._process = subprocess.Popen(["bash", "-c", command, FOUND, self._folder.name], pass_fds=(read, write))
        os.close(read)
        os.close(write)
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder.name, ignore_errors=True)
        self._folder.cleanup()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        os.write(
            self._to, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while True:
            found = self._next(60)
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])

    def _next(self, seconds: float) -> dict[str, Any]:
        """The next message; events that are complaints are kept."""
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], seconds)
            assert ready, f"the browser said nothing for {seconds} seconds"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._left += piece
        text, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(message["params"]))
        return message

    def open(self, address: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Load a page anew, in a window of this size, and wait until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'", 30)
        self.said.clear()
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'", 30)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON has it."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float) -> float:
        """Seconds until the expression is true; an AssertionError after so many."""
        began = time.monotonic()
        while not self.value(expression):
            assert time.monotonic() - began < seconds, f"not in {seconds} seconds: {expression}"
            time.sleep(0.05)
        return time.monotonic() - began

    def press(self, key: str, **more: Any) -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, **more)

    def draw(self, points: list[tuple[float, float]]) -> None:
        """Press the mouse at the first of these places, and let it go at the last."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1)

    def choose(self, selector: str, *files: Path) -> None:
        """Give an input these files."""
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the page."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        return base64.b64decode(taken)


def rebuilt(browser: Browser, seconds: float = 120) -> float:
    """Press the page's button, and wait for the model; the seconds that it took."""
    browser.wait("state.log !== null", seconds)
    browser.value("document.getElementById('start').click()")
    done = "document.getElementById('verdict').className !== '' && !document.getElementById('start').disabled"
    return browser.wait(done, seconds)


def take_picture(path: Path) -> None:
    """The page after a replay, with a digit that its model has read; the file says of which log."""
    with Browser() as page:
        page.open(PAGE.as_uri())
        rebuilt(page)
        page.value("sample(3)")
        page.value("new Promise(requestAnimationFrame)")
        with Image.open(io.BytesIO(page.picture())) as image:
            about = PngInfo()
            for key, value in picture_of().items():
                about.add_text(key, value)
            image.convert("RGB").quantize(128).save(path, pnginfo=about, optimize=True)


def picture_of() -> dict[str, str]:
    """What the picture says of itself: its name, and the digest of the log that it shows."""
    log = hashlib.sha256((PAGE.parent / "mnist.dcl").read_bytes()).hexdigest()
    return {"Title": "rebuild", "Source": f"docs/_static/rebuild/mnist.dcl, sha256 {log[:16]}"}


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]))
