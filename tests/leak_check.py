"""A check for schemathesis: no answer holds what is nobody's business.

Loaded by its command line; `VARIABLE` names the texts, with bars between them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

VARIABLE = "ASTRAI_TEST_SECRETS"
PLACES = ("Traceback", 'File "', "site-packages", str(Path(__file__).parent.parent))

if secrets := os.environ.get(VARIABLE):
    import schemathesis

    @schemathesis.check
    def leaks_nothing(ctx: Any, response: Any, case: Any) -> None:
        text = response.content.decode("utf-8", "replace")
        found = [secret for secret in secrets.split("|") if secret in text]
        assert not found, f"the answer holds {found}"
