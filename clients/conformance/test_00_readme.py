"""The example of each library's README, as it is printed, with the library as users install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from driver import HERE, LEVELS, World, eventually
from support.processes import ROOT

pytestmark = pytest.mark.complete

CLIENTS = ROOT / "clients"

#: How a scenario says its level.
LEVEL = re.compile(r"^pytestmark = pytest\.mark\.(\w+)$", re.MULTILINE)

#: How long installing may take, in seconds: what the libraries need comes from their registries.
INSTALL_TIMEOUT = 240

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("SIDEKEEPER_", "PYTHON"))}


def example(language: str) -> str:
    """The first program in a README."""
    text = (CLIENTS / language / "README.md").read_text()
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"no example in the README of {language}"
    return found[1]


def run(*words: str | Path, folder: Path) -> None:
    subprocess.run(words, cwd=folder, env=ENVIRONMENT, check=True, timeout=INSTALL_TIMEOUT)


def install_python(folder: Path) -> list[str | Path]:
    """Builds the wheel, and installs it where nothing else is."""
    run(sys.executable, "-m", "venv", "venv", folder=folder)
    pip = folder / "venv" / "bin" / "pip"
    run(pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", CLIENTS / "python", folder=folder)
    (wheel,) = (folder / "dist").glob("sidekeeper-*.whl")
    run(pip, "install", "--quiet", wheel, folder=folder)
    (folder / "example.py").write_text(example("python"))
    return [folder / "venv" / "bin" / "python", "-u", "example.py"]


def install_go(folder: Path) -> list[str | Path]:
    """Makes a module that needs the library's, which is taken from here."""
    library = CLIENTS / "go"
    module = re.search(r"^module (\S+)", (library / "go.mod").read_text(), re.MULTILINE)
    assert module
    (folder / "main.go").write_text(example("go"))
    run("go", "mod", "init", "example.com/try", folder=folder)
    run("go", "mod", "edit", f"-replace={module[1]}={library}", folder=folder)
    run("go", "get", f"{module[1]}@v0.0.0", folder=folder)
    run("go", "mod", "tidy", folder=folder)
    run("go", "build", "-o", "example", ".", folder=folder)
    return [folder / "example"]


def test_the_table_of_the_scenarios_has_each_one_with_its_level() -> None:
    table = re.findall(r"^\| (\d+) \| ([^|]+) \| (\w+) \|", (HERE / "README.md").read_text(), re.MULTILINE)
    told = {f"test_{int(no):02}_{name.strip().lower().replace(' ', '_')}.py": level for no, name, level in table}
    levels = {file.name: LEVEL.findall(file.read_text()) for file in HERE.glob("test_*.py")}
    assert {name: [level] for name, level in told.items()} == levels
    assert {level for (level,) in levels.values()} == set(LEVELS)


def declarations(text: str) -> set[str]:
    """The lines of Go code without what follows a declaration, and without its layout."""
    lines = (re.sub(r"\s+", " ", re.sub(r"( \{)?(\s*//.*)?$", "", line)).strip() for line in text.splitlines())
    return {line for line in lines if line not in ("", "}", ")")}


def test_the_signatures_in_the_readme_are_those_of_the_go_library() -> None:
    library = CLIENTS / "go"
    sources = [*library.glob("*.go"), *library.glob("sidekeepertest/*.go"), *library.glob("otel/*.go")]
    code = set[str]().union(*(declarations(path.read_text()) for path in sources))
    program, *blocks = re.findall(r"^```go\n(.*?)^```", (library / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    signatures = declarations("\n".join(block for block in blocks if "func Test" not in block))
    assert program
    assert len(signatures) > 100
    assert sorted(signatures - code) == []


@pytest.fixture
def anybody(world: World) -> World:
    """The example is run once for each language, whatever its flavours."""
    if world.subject.flavour == "threads":
        pytest.skip("the README's example has the one flavour")
    return world


def test_the_example_works_as_printed(anybody: World, tmp_path: Path) -> None:
    language = anybody.subject.language
    command = {"python": install_python, "go": install_go}[language](tmp_path)
    assert len(example(language).splitlines()) <= 40
    sidecar = anybody.sidecar().ready()
    environment = {**ENVIRONMENT, "SIDEKEEPER_ENDPOINT": sidecar.endpoint}
    told = tmp_path / "told"
    with told.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output)
    try:
        eventually("it executes", lambda: {"0 Beijing", "1 Shanghai"} <= set(told.read_text().splitlines()))
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
