"""Images: the lock, one definition for two runtimes, and what a registry says."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aerie.config import ROOT, load
from aerie.errors import ConfigError, DataError
from aerie.images.binds import caches, outside
from aerie.images.commands import check, refresh
from aerie.images.definition import apptainer, read_definition
from aerie.images.lockfile import LOCK, digests, read_images, recipe, stale
from aerie.images.registry import registry_digest
from aerie.pins import read_pins

DIGEST = "sha256:" + "ab" * 32
MOVED = "sha256:" + "cd" * 32
DEFINITIONS = sorted((ROOT / "containers").glob("*.Dockerfile"))
# An image with a tag and no digest: what may be another image tomorrow.
TAGGED = re.compile(
    r"(?:docker\.io/|lmsysorg/|nvcr\.io/|ghcr\.io/|quay\.io/)[\w./-]+:[\w.-]+(?!.*@sha256)"
)


class Registry(BaseHTTPRequestHandler):
    """A registry that wants a token, and knows one image by tag and by digest."""

    digests: ClassVar = {"v1": DIGEST, DIGEST: DIGEST}

    def do_GET(self) -> None:
        self._reply(200, {}, json.dumps({"token": "for reading"}).encode())

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer for reading":
            realm = f"http://{self.headers['Host']}/token"
            self._reply(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="r"'})
            return
        name, _, reference = self.path.removeprefix("/v2/").partition("/manifests/")
        found = self.digests.get(reference) if name == "some/image" else None
        self._reply(200 if found else 404, {"Docker-Content-Digest": found} if found else {})

    def _reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with one definition, its requirements and a lock whose recipe is right."""
    (tmp_path / "containers").mkdir()
    (tmp_path / "requirements.txt").write_text("numpy==2.4.6\n", encoding="utf-8")
    (tmp_path / "containers/cpu.Dockerfile").write_text(
        "ARG BASE\nFROM ${BASE}\n", encoding="utf-8"
    )
    write_lock(tmp_path, digest=DIGEST)
    return tmp_path


def write_lock(root: Path, image: str = "127.0.0.1:1/some/image:v1", **base: str) -> None:
    entry = {"image": image, "python": "3.12", "verified": "read somewhere", **base}
    cpu = {
        "definition": "containers/cpu.Dockerfile",
        "base": "python",
        "requirements": "requirements.txt",
        "recipe": "sha256:00",
    }
    content = {"bases": {"python": entry}, "images": {"cpu": cpu}}
    (root / LOCK).write_text(yaml.safe_dump(content), encoding="utf-8")
    if "digest" in base and base["digest"] == DIGEST:
        cpu["recipe"] = recipe(root, read_images(root)["cpu"])
        (root / LOCK).write_text(yaml.safe_dump(content), encoding="utf-8")


def test_the_lock_is_what_the_definitions_are() -> None:
    check()
    images = read_images()
    assert set(images) == {"cpu", "train", "serve"}
    assert {ROOT / image.definition for image in images.values()} == set(DEFINITIONS)
    assert len({image.title for image in images.values()}) == 3


def test_no_image_is_named_by_a_tag_alone() -> None:
    """Also outside the lock: a tag without a digest may be another image tomorrow."""
    folders = ("containers", "rules", "profiles", "scripts", ".ci", "tests/cluster")
    files = [ROOT / "Makefile", ROOT / "Snakefile"]
    files += [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    found = [
        f"{path}: {line}"
        for path in files
        if path != ROOT / LOCK and "images" not in path.relative_to(ROOT).parts
        if path.suffix in {"", ".Dockerfile", ".smk", ".yaml", ".sh", ".def", ".txt"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if TAGGED.search(line)
    ]
    assert not found
    assert TAGGED.search("FROM docker.io/lmsysorg/sglang:v0.5.21")
    assert not TAGGED.search(f"FROM docker.io/lmsysorg/sglang:v0.5.21@{DIGEST}")


def test_the_serving_image_has_our_versions() -> None:
    ours, served = (
        read_pins(ROOT / "requirements/run.txt"),
        read_pins(ROOT / "containers/serve.txt"),
    )
    assert served.items() <= ours.items()
    # These are SGLang's there: two versions of torch in one process would be none.
    assert not {"torch", "transformers", "tokenizers", "numpy", "pydantic"} & set(served)


@pytest.mark.parametrize("digest", ["", "v1", "sha256:12", "sha256:" + "AB" * 32])
def test_a_base_without_a_digest_is_an_error(checkout: Path, digest: str) -> None:
    write_lock(checkout, digest=digest)
    with pytest.raises(ConfigError, match="base python has no digest"):
        read_images(checkout)


def test_a_base_without_a_tag_is_an_error(checkout: Path) -> None:
    write_lock(checkout, image="127.0.0.1:1/some/image", digest=DIGEST.replace("ab", "ef"))
    with pytest.raises(ConfigError, match="has no tag"):
        read_images(checkout)


def test_comments_leave_the_recipe_and_all_else_changes_it(checkout: Path) -> None:
    def is_stale() -> bool:
        return bool(list(stale(checkout, read_images(checkout))))

    assert not is_stale()
    requirements, definition = checkout / "requirements.txt", checkout / "containers/cpu.Dockerfile"
    requirements.write_text("# why\nnumpy==2.4.6  # counts\n", encoding="utf-8")
    definition.write_text("# what\nARG BASE\n\nFROM ${BASE}\n", encoding="utf-8")
    assert not is_stale()
    requirements.write_text("numpy==2.4.7\n", encoding="utf-8")
    assert is_stale()
    requirements.write_text("numpy==2.4.6\n", encoding="utf-8")
    definition.write_text("ARG BASE\nFROM ${BASE}\nENV A=b\n", encoding="utf-8")
    assert is_stale()


def test_refreshing_asks_the_registry(checkout: Path, registry: str) -> None:
    write_lock(checkout, image=f"{registry}/some/image:v1", digest=MOVED)
    before = read_images(checkout)["cpu"]
    notes = refresh(checkout, "2026-11-29")
    after = read_images(checkout)["cpu"]
    assert after.base.digest == DIGEST
    assert after.base.verified.startswith("2026-11-29: the registry gave")
    assert after.recipe != before.recipe and after.title != before.title
    assert any(MOVED in note and DIGEST in note for note in notes)
    assert refresh(checkout, "2026-11-29") == []


def test_refreshing_without_a_registry_keeps_the_digest(checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("numpy==2.4.7\n", encoding="utf-8")
    notes = refresh(checkout, "2026-11-29")
    image = read_images(checkout)["cpu"]
    assert image.base.digest == DIGEST and image.base.verified == "read somewhere"
    assert not list(stale(checkout, {"cpu": image}))
    assert any("not checked against its registry" in note for note in notes)


def test_the_registry_is_asked_by_tag_and_digest(registry: str) -> None:
    assert registry_digest(f"{registry}/some/image:v1") == DIGEST
    assert registry_digest(f"{registry}/some/image@{DIGEST}") == DIGEST
    with pytest.raises(DataError, match="does not say what some/image:v2 is"):
        registry_digest(f"{registry}/some/image:v2")


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_definitions_are_for_both_runtimes(path: Path, tmp_path: Path) -> None:
    text = apptainer(read_definition(path), DIGEST, tmp_path)
    copied = re.findall(rf"{re.escape(str(tmp_path))}/(\S+)", text)
    assert copied == ["requirements.txt", "wheels"]
    assert "export PATH=/venv/bin:$PATH" in text
    assert "${BASE}" not in text


def test_stages_become_stages(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "ARG BASE\nFROM ${BASE} AS build\nCOPY a b /c/\nRUN one \\\n  && two\n"
        "FROM ${BASE}\nCOPY --from=build /c /d\nENV A=b\nRUN three\n",
        encoding="utf-8",
    )
    (tmp_path / "root").mkdir()
    base = str(tmp_path / "root")
    assert apptainer(read_definition(path), base, Path("/context")).split("\n\n") == [
        f"Bootstrap: localimage\nFrom: {base}\nStage: build",
        "%files\n    /context/a /c/\n    /context/b /c/",
        "%post\n    set -eu\n    one && two",
        f"Bootstrap: localimage\nFrom: {base}\nStage: stage1",
        "%files from build\n    /c /d",
        "%post\n    set -eu\n    export A=b\n    three",
        "%environment\n    export A=b\n",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "FROM docker.io/library/debian:12", "ADD a /b", "RUN true\nCOPY a /b",
        "COPY --chown=1 a /b", "COPY a", "COPY --from=build /a /b", "ENV A b", "USER me",
        'RUN ["a"]', "RUN --mount=x y",
    ],
)  # fmt: skip
def test_what_one_runtime_cannot_do_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"ARG BASE\nFROM ${{BASE}}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line \d+, is not for both runtimes"):
        read_definition(path)


@given(words=st.lists(st.text("abcdefgh./-$", min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_command_arrives_whole(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    command = "echo " + " ".join(words)
    path = tmp_path_factory.mktemp("definition") / "Dockerfile"
    path.write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN {command}\n", encoding="utf-8")
    lines = apptainer(read_definition(path), DIGEST, Path("/context")).splitlines()
    assert lines[-1].strip() == command


def test_a_container_sees_what_lies_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("checkout", "data", "hub"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    content = yaml.safe_load((ROOT / "demo/config.yaml").read_text(encoding="utf-8"))
    content["work"] = str(tmp_path / "work")
    content["datasets"]["magicoder"]["path"] = str(tmp_path / "data")
    content["datasets"]["sharegpt"]["path"] = str(tmp_path / "not there")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = outside(load(path), tmp_path / "checkout")
    assert found == [str(tmp_path / name) for name in ("data", "hub", "work")]
    assert caches(load(path), tmp_path)["XDG_CACHE_HOME"] == str(tmp_path / "work/cache")


def test_a_build_s_lock_names_images_and_bases() -> None:
    images = read_images()
    found = digests(images)
    assert all(found[name] == image.recipe for name, image in images.items())
    assert all(found[image.base.image] == image.base.digest for image in images.values())
