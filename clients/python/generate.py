#!/usr/bin/env python3
"""Generates ``sidekeeper/_proto/v1`` from the repository's ``proto/sidekeeper/v1``.

The result is checked in, so that installing the client needs no compiler. It depends on nothing but the protos and
the pinned generators of ``requirements-dev.txt``; ``generate.py --check`` fails when the two have drifted apart.

protoc derives Python's import paths from the protos' own paths (``sidekeeper.v1``). The package keeps its generated
code private, so this script moves it to ``sidekeeper._proto.v1`` and rewrites the imports; the protos' names, which
is what is on the wire and in the descriptor pool, stay as they are.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto"
TARGET = HERE / "sidekeeper" / "_proto" / "v1"
PACKAGE = "sidekeeper.v1"
PRIVATE_PACKAGE = "sidekeeper._proto.v1"
INIT = f'"""Generated from ``proto/{PACKAGE.replace(".", "/")}`` by ``generate.py``; not to be edited."""\n'


def generate() -> dict[str, str]:
    """Returns the text of each generated file by its name."""
    # The plug-ins of mypy-protobuf are found through PATH; they live beside the interpreter that runs this script.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    protos = sorted((PROTOS / PACKAGE.replace(".", "/")).glob("*.proto"))
    if not protos:
        raise SystemExit(f"no protos under {PROTOS}")
    well_known = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as out:
        arguments = [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={well_known}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet:{out}",
            *map(str, protos),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed")
        files = {"__init__.py": INIT}
        for path in sorted(Path(out, *PACKAGE.split(".")).iterdir()):
            proto = path.name.partition("_pb2")[0] + ".proto"
            if "_pb2_grpc" in path.name and not has_service(PROTOS / PACKAGE.replace(".", "/") / proto):
                continue
            files[path.name] = make_private(path.read_text())
        return files


def has_service(proto: Path) -> bool:
    """Whether a proto defines a service; for the others protoc writes empty stubs."""
    return any(line.startswith("service ") for line in proto.read_text().splitlines())


def make_private(text: str) -> str:
    """Lets generated code import its siblings from the private package, and registers its messages there."""
    text = text.replace(f"from {PACKAGE} import ", f"from {PRIVATE_PACKAGE} import ")
    return re.sub(rf"'{re.escape(PACKAGE)}\.(\w+_pb2)'", rf"'{PRIVATE_PACKAGE}.\1'", text)


def main() -> int:
    """Writes the files, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the files differ")
    check = parser.parse_args().check
    files = generate()
    present = {path.name: path.read_text() for path in TARGET.iterdir() if path.is_file()} if TARGET.is_dir() else {}
    different = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
    if check:
        for name in different:
            print(f"{TARGET / name}: differs from what the protos generate; run `make proto`", file=sys.stderr)
        return 1 if different else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in different:
        if name in files:
            (TARGET / name).write_text(files[name])
        else:
            (TARGET / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
