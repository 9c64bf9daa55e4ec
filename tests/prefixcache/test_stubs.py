"""The committed stubs and the API page are what the protos generate."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
STUBS = REPOSITORY / "prefixcache" / "v1"


def test_committed_stubs_are_what_the_protos_generate(tmp_path):
    """Run `make protos` when this fails."""
    protos = sorted((REPOSITORY / "proto/prefixcache/v1").glob("*.proto"))
    plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
    options = [f"-I{REPOSITORY / 'proto'}", f"--plugin=protoc-gen-mypy_grpc={plugin}"]
    options += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *map(str, protos)], check=True)
    generated = {path.name: path.read_text() for path in (tmp_path / "prefixcache/v1").iterdir()}
    committed = {path.name: path.read_text() for path in STUBS.glob("*_pb2*")}
    assert len(generated) == 4 * len(protos)
    assert generated == committed


def test_the_api_page_is_what_the_protos_generate():
    """Run `make protos` when this fails."""
    spec = spec_from_file_location("render_api", REPOSITORY / "proto/render_api.py")
    render_api = module_from_spec(spec)
    spec.loader.exec_module(render_api)
    assert render_api.render(render_api.parse_protos()) == (REPOSITORY / "docs/api.md").read_text()
