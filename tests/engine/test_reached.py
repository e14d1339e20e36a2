"""If the engine cannot be reached, all its tests end with one message."""

from __future__ import annotations

import httpx
import pytest

from .engine import reached


@pytest.mark.parametrize("answer", [None, httpx.Response(200, text="hello"), httpx.Response(404, json={"error": "?"})])
async def test_run_ends_when_no_engine_answers(answer: httpx.Response | None) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        return answer

    async with httpx.AsyncClient(base_url="http://127.0.0.1:8000", transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(pytest.exit.Exception, match=r"no engine answers at http://127.0.0.1:8000") as ended:
            await reached(client)
    assert ended.value.returncode == 2
