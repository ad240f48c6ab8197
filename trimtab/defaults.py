"""Where things are unless the user says otherwise, and how he says it in the environment."""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = 8765
DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_REDIS_PORT: Final = 6379
DEFAULT_REDIS: Final = f"redis://localhost:{DEFAULT_REDIS_PORT}/0"
URL_VARIABLE: Final = "TRIMTAB_URL"
KEY_VARIABLE: Final = "TRIMTAB_KEY"
KEY_FILE_VARIABLE: Final = "TRIMTAB_KEY_FILE"
QUERY_VARIABLE: Final = "TRIMTAB_QUERY"
REDIS_VARIABLE: Final = "TRIMTAB_REDIS"
