"""The source itself: no shell, no eval, no pickle outside the one file that may (promise 19)."""

from __future__ import annotations

import re

from tests.conftest import ROOT

FORBIDDEN = {
    r"shell\s*=\s*True": "a shell",
    r"(?<![\w.])eval\(": "eval",
    r"(?<![\w.])exec\(": "exec",
    r"pickle\.(load|loads|Unpickler)\b": "pickle",
    r"torch\.load\(": "torch.load",
    r"(?<![\w.])os\.system\(": "os.system",
    r"allow_pickle\s*=\s*True": "numpy's pickle",
}
ALLOWED = {"cnf_cli/formats/legacy.py": {"pickle", "torch.load"}}


def test_source_has_no_dangerous_calls() -> None:
    """Only formats/legacy.py may unpickle, and nothing runs text as code or through a shell."""
    found = []
    files = sorted((ROOT / "cnf_cli").rglob("*.py"))
    assert len(files) > 20
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for pattern, what in FORBIDDEN.items():
            if re.search(pattern, path.read_text()) and what not in ALLOWED.get(name, set()):
                found.append(f"{name}: {what}")
    assert found == []


def test_torch_load_is_weights_only() -> None:
    """Every torch.load says weights_only=True."""
    text = (ROOT / "cnf_cli/formats/legacy.py").read_text()
    for call in re.finditer(r"torch\.load\(", text):
        assert "weights_only=True" in text[call.start() : call.start() + 200]
