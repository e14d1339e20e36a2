"""The console in Debian's Chromium, in front of a real gateway: what it shows, and what one can do with it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, ViewportSize, async_playwright, expect

from gateway.app import Gateway
from loadtests.emulator import Emulator
from tests.serving import gateways

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: apt-get install chromium")
TOKEN = "canary-admin-token"
MAX_PAGE_BYTES = 150_000
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools:
  empty: {{discover: {{file: replicas-that-nobody-lists.json}}}}
  main:
    replicas: [{{name: gpu-1, url: "{}"}}, {{name: gpu-2, url: "{}"}}]
tiers:
  paid: {{priority: 0, slo: {{ttft: {{p50: 10s, p99: 20s}}, tpot: {{p99: 10s}}}}}}
  trial: {{priority: 1, slo: {{ttft: {{p99: 20s}}}}}}
defaults: {{tier: paid}}
"""
PAINTED = "() => new Promise(seen => new PerformanceObserver(seen).observe({type: 'paint', buffered: true}))"
"""Waits for the first paint. `wait_for_function` would evaluate its text later, which the page forbids."""
ASK = {"model": "emulated", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
NARROW = {"width": 360, "height": 740}
WIDE: ViewportSize = {"width": 1280, "height": 900}


@dataclass
class Rig:
    """A gateway, and its console in a browser. `wrong`: errors in the browser, and addresses elsewhere that it asked
    for.
    """

    gateway: Gateway
    page: Page
    wrong: list[str] = field(default_factory=list)

    async def ask(self, count: int, **changes: Any) -> str:
        """Send requests, and take a point of history after each. Returns the id of the last."""
        async with httpx.AsyncClient(base_url=self.gateway.url) as client:
            for _ in range(count):
                answer = await client.post("/v1/chat/completions", json=ASK | changes)
        return answer.headers["x-request-id"]

    def pass_time(self, steps: int, step_s: float = 20.0) -> None:
        """Take points of history as if time had passed."""
        now = self.gateway.driver.clock()
        for step in range(steps):
            self.gateway.history.sample(now + step_s * (step + 1))

    async def open(self, place: str = "") -> None:
        await self.page.goto(f"{self.gateway.admin_url}/{place}")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(Emulator(replicas=2))
        start = await stack.enter_async_context(gateways())
        gateway = await start(POLICY.format(*emulator.urls), usage=tmp_path / "usage.db", admin_token=TOKEN)
        driver = await stack.enter_async_context(async_playwright())
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        stack.push_async_callback(browser.close)
        page = await browser.new_page(viewport=WIDE)
        rig = Rig(gateway, page)
        page.on("pageerror", lambda error: rig.wrong.append(str(error)))
        page.on("console", lambda said: rig.wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on(
            "request", lambda r: None if r.url.startswith((gateway.admin_url, "data:")) else rig.wrong.append(r.url)
        )
        yield rig
        assert not rig.wrong


async def test_console_draws_the_hour_of_every_tier_and_replica(rig: Rig) -> None:
    await rig.ask(3)
    rig.pass_time(3)
    await rig.open()
    await expect(rig.page.locator("#ready")).to_have_text("ready")
    await expect(rig.page.get_by_role("heading", name="empty")).to_be_visible()
    chart = rig.page.get_by_role("slider", name="TTFT of paid")
    await expect(chart.locator("path")).not_to_have_count(0)
    await expect(rig.page.get_by_role("slider")).to_have_count(3 + 2 * 3)
    await expect(rig.page.get_by_role("row", name="gpu-2").get_by_role("img", name="KV cache")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [NARROW, WIDE], ids=["phone", "desk"])
async def test_console_fits_the_screen_in_light_and_dark(rig: Rig, scheme: Any, viewport: Any) -> None:
    await rig.ask(2)
    rig.pass_time(3)
    await rig.page.emulate_media(color_scheme=scheme)
    await rig.page.set_viewport_size(viewport)
    for place in ("", "#requests", "#usage", "#policy"):
        await rig.open(place)
        await expect(rig.page.locator("#facts")).not_to_be_empty()
        assert await rig.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
    background = await rig.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 384) is (scheme == "dark")


async def test_arrow_keys_move_the_cursor_of_a_chart_and_say_the_values_there(rig: Rig) -> None:
    await rig.ask(3)
    rig.pass_time(3)
    await rig.open()
    chart = rig.page.get_by_role("slider", name="Goodput against throughput")
    await expect(chart).to_have_attribute("aria-valuenow", re.compile("^[1-9]"))  # the latest point
    await chart.focus()
    await rig.page.keyboard.press("Home")
    await expect(chart).to_have_attribute("aria-valuenow", "0")
    spoken = r"\d\d:\d\d:\d\d: good \d\.\d/s, finished \d\.\d/s, asked \d\.\d/s"
    assert re.fullmatch(spoken, await chart.get_attribute("aria-valuetext") or "")
    await rig.page.keyboard.press("ArrowRight")
    await expect(chart).to_have_attribute("aria-valuenow", "1")
    await expect(chart).to_be_focused()


async def test_every_field_and_button_of_the_console_has_a_name(rig: Rig) -> None:
    await rig.open()
    await expect(rig.page.get_by_role("button", name="drain gpu-1")).to_be_visible()
    unnamed = "[...document.querySelectorAll('input, select')].filter(each => !each.labels.length).length"
    assert await rig.page.evaluate(unnamed) == 0
    assert "" not in [text.strip() for text in await rig.page.locator("button").all_inner_texts()]


async def test_replica_is_drained_from_the_console_by_the_token_and_back(rig: Rig) -> None:
    rig.page.on("dialog", lambda dialog: dialog.accept())
    await rig.open()
    await rig.page.get_by_role("button", name="drain gpu-1").click()
    await expect(rig.page.locator("#told")).to_contain_text("Enter the admin token first")
    await expect(rig.page.locator("#token")).to_be_focused()
    await rig.page.keyboard.type(TOKEN)
    await rig.page.get_by_role("link", name="Now").click()
    await rig.page.get_by_role("button", name="drain gpu-1").click()
    await expect(rig.page.locator("#told")).to_contain_text("gpu-1 gets no new requests")
    await rig.page.get_by_role("button", name="undrain gpu-1").click()
    await expect(rig.page.locator("#told")).to_contain_text("gpu-1 serves again")


async def test_console_says_what_the_gateway_says_to_a_reload(rig: Rig) -> None:
    await rig.open("#policy")
    await expect(rig.page.get_by_role("heading", name="Generation 1, in force")).to_be_visible()
    await rig.page.locator("#token").fill(TOKEN)
    await rig.page.get_by_role("button", name="Reload the policy").click()
    await expect(rig.page.locator("#told")).to_contain_text("there is no policy file")
    rig.wrong.clear()  # the browser logs the 409
    await rig.page.locator("#token").fill("a wrong token")
    await rig.page.get_by_role("button", name="Reload the policy").click()
    await expect(rig.page.locator("#told")).to_contain_text("wrong or missing admin token")
    rig.wrong.clear()


async def test_request_is_found_by_its_id_and_from_the_list_of_requests_that_were_not_good(rig: Rig) -> None:
    good = await rig.ask(1)
    await rig.ask(1, model="nope")
    await rig.open("#requests")
    listed = rig.page.locator("#found")
    await expect(listed.get_by_role("row")).to_have_count(2)
    await expect(listed).to_contain_text("model-not-found")
    await rig.page.get_by_label("Id, from").fill(good)
    await rig.page.keyboard.press("Enter")
    await expect(listed.get_by_role("definition").first).to_contain_text(f"{good}, ok, good")
    assert rig.page.url.endswith(f"#requests/{good}")
    await rig.page.get_by_role("combobox", name="Which").select_option("good")
    await rig.page.get_by_role("button", name="List").click()
    await listed.get_by_role("link", name=good).click()
    await expect(listed.get_by_role("definition").first).to_contain_text(good)


async def test_requests_page_tells_in_which_stage_slow_requests_spend_their_time(rig: Rig) -> None:
    await rig.ask(4)
    await rig.open("#requests")
    await expect(rig.page.locator("#budget").get_by_role("row", name="TTFT p99")).to_contain_text("paid")


async def test_usage_page_sums_by_tenant_with_a_total(rig: Rig) -> None:
    await rig.ask(4)
    await rig.open("#usage")
    await expect(rig.page.locator("#used").get_by_role("row", name="total")).to_contain_text("4")
    await rig.page.get_by_role("combobox", name="By").select_option("model")
    await rig.page.get_by_role("button", name="Sum up").click()
    await expect(rig.page.locator("#used").get_by_role("row", name="emulated")).to_be_visible()


async def test_console_is_painted_before_a_busy_gateway_answers_its_questions(rig: Rig) -> None:
    asked: list[str] = []
    await rig.page.route("**/admin/**", lambda route: asked.append(route.request.url))  # never answered
    await rig.open()
    await rig.page.evaluate(PAINTED)
    await expect(rig.page.get_by_role("link", name="Requests")).to_be_visible()
    assert asked
    await rig.page.unroute_all(behavior="ignoreErrors")


async def test_console_is_small(rig: Rig) -> None:
    async with httpx.AsyncClient() as client:
        page = await client.get(f"{rig.gateway.admin_url}/")
    assert len(page.content) <= MAX_PAGE_BYTES
