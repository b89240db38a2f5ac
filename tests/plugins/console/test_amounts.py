"""Amounts of money as people write them, read by the page's own source in Node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import npm

ROOT = Path(__file__).parents[3]
READ = {
    "5": 5, "5.50": 5.5, "5,50": 5.5, "5,5": 5.5, "$5": 5, "$ 5,50": 5.5, "5 $": 5, "USD 5": 5, "us$5": 5, ".5": 0.5,
    "1,000.50": 1000.5, "1.000,50": 1000.5, "1\N{NO-BREAK SPACE}000": 1000, "1'000": 1000, "1,234,567": 1234567,
    "0,005": 0.005,
}  # fmt: skip
REFUSED = {
    "not an amount": ("€5", "five", "-5", "1e5", "5 or 6", "$", "٣"),
    "two ways": ("1,000", "1.000", "5,", "1,2,3", "1,00.5", "5..5"),
    "more than 0": ("0", "0.00"),
}
PROGRAM = """
const outcome = (text) => { try { return dollarAmount(text); } catch (error) { return error.message; } };
console.log(JSON.stringify(JSON.parse(process.argv[1]).map(outcome)));
"""


def test_an_amount_is_read_as_it_is_meant_or_refused_with_what_to_write() -> None:
    modules = npm.BUILD / "web"
    try:
        npm.install(ROOT / "web" / "package.json", modules)
    except npm.Unavailable as error:
        pytest.skip(f"the page's sources cannot be built here: {error}")
    node = shutil.which("node")
    assert node is not None
    source = (ROOT / "web" / "src" / "numbers.ts").read_bytes()
    esbuild = [str(modules / "node_modules" / ".bin" / "esbuild"), "--loader=ts", "--format=cjs"]
    built = subprocess.run(esbuild, input=source, capture_output=True, check=True).stdout.decode()
    refused = [(text, why) for why, texts in REFUSED.items() for text in texts]
    texts = [*READ, *(text for text, _ in refused)]
    ran = subprocess.run([node, "-e", built + PROGRAM, json.dumps(texts)], capture_output=True, check=True)
    outcomes = json.loads(ran.stdout)
    assert dict(zip(READ, outcomes, strict=False)) == READ
    for (text, why), outcome in zip(refused, outcomes[len(READ) :], strict=True):
        assert why in str(outcome), text
        assert "Write it like" in outcome
