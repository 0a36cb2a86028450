"""Headless Chromium over a pair of pipes: the DevTools protocol with the standard library alone.

`--remote-debugging-pipe` makes Chromium read commands from descriptor 3 and write answers to 4, as
JSON messages that end with a NUL byte. No driver, no socket and no Python package is needed.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60.0


class Browser:
    """A browser with one tab. `events` collects everything that the tab reported since `open`."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    def __enter__(self) -> "Browser":
        assert BINARY, "chromium is not installed"
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # Out of the way of 3 and 4, which the child must see.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_child, from_child)]
        os.close(to_child)
        os.close(from_child)
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, end, fd) for end, fd in zip(ends, (3, 4), strict=True)]
        self._pid = os.posix_spawn(
            BINARY,
            [BINARY, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            os.environ,
            file_actions=actions,
            setpgroup=0,
        )
        for fd in (*ends, null):
            os.close(fd)
        self._buffer, self._next, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, page: Path, width: int, height: int, dark: bool) -> None:
        """Load `page` in a window of that size and theme, and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 600 else 1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._message()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release Tab or Enter."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        event: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        """Save the page, or what the window shows of it, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def print_to(self, path: Path) -> Path:
        """Save the page as it prints, on A4."""
        answer = self.call(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True
        )
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, and resources that failed or were not local."""
        found = []
        for event in self.events:
            method, parameters = event["method"], event["params"]
            if method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
                found.append(f"{method}: {parameters}")
            elif method == "Runtime.consoleAPICalled" and parameters["type"] != "log":
                found.append(f"console: {parameters['args']}")
            elif method == "Log.entryAdded" and parameters["entry"]["level"] != "verbose":
                found.append(f"log: {parameters['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(f"requested {url}")
        return found

    def _message(self) -> dict[str, Any]:
        """The next message; events are kept as well as returned."""
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"Chromium said nothing for {_PATIENCE_S:.0f} s"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message
