"""The manifests as `kubectl apply -k` would send them, against the schemas of Kubernetes itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .deployment import KUBERNETES

VERSIONS = ("1.33", "1.35", "1.37")

pytestmark = [
    pytest.mark.soak,  # the schemas are 22 MB, and come from the package index
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, which renders the manifests"),
]


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = tmp_path_factory.mktemp("validator")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "kubernetes-validate>=1.37,<2"], check=True)
    return environment / "bin" / "kubernetes-validate"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml")))
def test_manifests_match_the_kubernetes_schemas(validator: Path, tmp_path: Path, name: str) -> None:
    rendered = tmp_path / "rendered.yaml"
    with rendered.open("wb") as file:
        subprocess.run(["kubectl", "kustomize", KUBERNETES / name], stdout=file, check=True)
    resources = rendered.read_text().count("\nkind: ") + rendered.read_text().startswith("kind: ")
    assert resources >= 3
    for version in VERSIONS:
        found = subprocess.run(
            [validator, "--strict", "-k", version, rendered],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert (found.returncode, found.stdout.count("passed for resource")) == (0, resources), found.stdout
    broken = tmp_path / "broken.yaml"
    broken.write_text(rendered.read_text().replace("\nspec:\n", "\nspec:\n  nosuchfield: 1\n", 1))
    assert subprocess.run([validator, "--strict", broken], check=False, capture_output=True).returncode != 0
