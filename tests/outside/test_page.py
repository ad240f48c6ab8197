"""The page in a real browser, against the real server, manager and Redis."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from api.deltas import delta
from api.embedded import EmbeddedServer
from api.keys import Scope
from tests.outside.browser import FAR, SCHEMES, Tab, tab
from tests.outside.running import RunningQuery, make_key, skewed, wait_for
from trimtab import redis_keys
from trimtab.embedded.redis_server import EmbeddedRedis

pytestmark = [pytest.mark.slow, pytest.mark.redis]

VIEWS: Final = ("front", "heat", "proposals", "plans", "partitions/5", "history", "events", "settings")
HOSTILE: Final = "<img src=x onerror=window.hurt=1><script>window.hurt=1</script>\u202egnp\x1b[31m"
SHOWN: Final = "<img src=x onerror=window.hurt=1><script>window.hurt=1</script>⟨U+202E⟩gnp⟨U+001B⟩[31m"


Json = dict[str, Any]
UPDATE_MS: Final = 100
HOSTILE_NAME: Final = "<img src=x onerror=window.hurt=1>\u202egnp"
SHOWN_NAME: Final = "<img src=x onerror=window.hurt=1>⟨U+202E⟩gnp"


class Stage:
    """A skewed query that runs, and a server with its manager."""

    def __init__(self, redis_url: str, api: EmbeddedServer, query: RunningQuery) -> None:
        self.redis_url = redis_url
        self.api = api
        self.query = query
        self._keys: dict[Scope, str] = {}

    @property
    def url(self) -> str:
        return self.api.url

    def key(self, scope: Scope) -> str:
        if scope not in self._keys:
            self._keys[scope] = make_key(self.redis_url, scope, f"test-{scope}")
        return self._keys[scope]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key('operate')}"}, timeout=30)


@contextmanager
def staged(partitions: int = 64, workers: int = 4, every_s: float = 0.25, executor_name: str = "{}") -> Iterator[Stage]:
    with (
        EmbeddedRedis() as server,
        EmbeddedServer(server.url) as api,
        RunningQuery(
            skewed(server.url, partitions=partitions, workers=workers, executor_name=executor_name), every_s
        ) as query,
    ):
        stage = Stage(server.url, api, query)
        with stage.client() as client:
            wait_for(lambda: _ratio(client) > 1.2, "the skew is measured")
        yield stage


def _ratio(client: httpx.Client) -> float:
    answer = client.get("/v1/queries/orders/front")
    return 0.0 if answer.status_code != 200 else float(answer.json()["imbalance"]["ratio"] or 0.0)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as running:
        yield running


def execute(page: Page, reason: str) -> None:
    """From the overview to a rebalance that is requested, by keyboard alone."""
    page.get_by_role("link", name="Propose a rebalance").focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("Reason")
    field.focus()
    page.keyboard.type(reason)
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/orders")


def test_from_a_click_to_committed(browser: Browser) -> None:
    with staged() as stage, tab(browser, stage.url, stage.key("operate")) as opened:
        page = opened.page
        page.get_by_role("link", name="orders").click()
        opened.until_drawn()
        expect(page.locator(".worker")).to_have_count(4)
        expect(page.locator(".worker.hot")).not_to_have_count(0)
        page.get_by_role("link", name="Propose a rebalance").click()
        expect(page.get_by_role("heading", name="Move")).not_to_have_count(0)
        address = page.url
        assert "/proposals/p-" in address
        page.get_by_label("Reason").fill("a test levels the load")
        page.get_by_role("button", name="Execute this proposal").click()
        page.wait_for_url("**/#/orders")
        page.wait_for_selector(".move")
        expect(page.locator(".move .chip").first).to_have_text("committed", timeout=60_000)
        expect(page.locator(".steps li.done")).not_to_have_count(0)
        # The audit is clean, once it has looked at the batches after the close.
        expect(page.locator(".move").first.locator(".good-text")).to_have_count(1, timeout=60_000)
        wait_for(lambda: float(page.locator(".imbalance .tile-value").inner_text()) < 1.2, "the load is level")
        # A colleague opens the same proposal, and sees that its time is over.
        page.goto(address)
        expect(page.locator(".notice.warn").first).to_contain_text("stale")


def test_a_reload_in_mid_move(browser: Browser) -> None:
    with staged() as stage, tab(browser, stage.url, stage.key("operate")) as opened:
        page = opened.page
        opened.go("/orders")
        opened.until_drawn()
        execute(page, "by keyboard alone")
        page.wait_for_selector(".steps li.current, .steps li.done")
        with stage.query.held():
            before = page.locator(".move").first.get_attribute("data-migration")
            page.reload()
            page.wait_for_selector(f'.move[data-migration="{before}"]')
            expect(page.locator(".pill")).to_have_text("live")
        expect(page.locator(f'.move[data-migration="{before}"] .chip')).to_have_text("committed", timeout=60_000)


@contextmanager
def serving(redis_url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "commands.cli", "serve", "--port", "0", "--redis", redis_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        yield process, next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.kill()
        process.communicate()


def test_a_leaders_death_in_mid_move(browser: Browser) -> None:
    """The page hangs on the standby. The leader dies between two steps; the standby leads on, and the page shows it."""
    with EmbeddedRedis() as server, RunningQuery(skewed(server.url)) as query, serving(server.url) as (leader, first):
        with redis.Redis.from_url(server.url) as store:
            wait_for(lambda: bool(store.exists(redis_keys.lease("orders"))), "somebody leads")
        with serving(server.url) as (_, second), tab(browser, second, make_key(server.url, "operate")) as opened:
            page = opened.page
            opened.go("/orders")
            opened.until_drawn()
            page.wait_for_selector(".worker.hot")
            execute(page, "the leader dies meanwhile")
            page.wait_for_selector(".steps li.current")
            with query.held():
                leader.kill()
                leader.wait()
                name = page.locator(".move").first.get_attribute("data-migration")
            expect(page.locator(f'.move[data-migration="{name}"] .chip')).to_have_text("committed", timeout=90_000)
            assert query.plane.verdict() == (0, 0)
    assert first != second


def test_a_read_key_is_offered_no_button(stage: Stage, browser: Browser) -> None:
    with stage.client() as client:
        made = client.post("/v1/queries/orders/proposals", json={}).json()["id"]
    with tab(browser, stage.url, stage.key("read")) as opened:
        page = opened.page
        for view in VIEWS:
            if view == "proposals":
                continue
            opened.go(f"/orders/{view}")
            opened.until_drawn()
            page.wait_for_timeout(300)
            offered = page.locator("main button:visible, main input:visible, main a.button:visible").all()
            assert [each.inner_text() for each in offered if each.inner_text() != "What if …"] == [], view
        # It may ask what would be moved, which moves nothing.
        for view in ("proposals", f"proposals/{made}"):
            opened.go(f"/orders/{view}")
            opened.until_drawn()
            expect(page.get_by_role("heading", name="Move")).not_to_have_count(0)
            assert [each.inner_text() for each in page.locator("main button:visible").all()] == ["Copy address"]
            expect(page.get_by_label("Reason")).to_have_count(0)
        expect(page.get_by_label("Budget")).to_have_attribute("aria-valuetext", "the balancer’s own")
        page.get_by_label("Budget").press("ArrowLeft")
        expect(page.get_by_label("Budget")).to_have_attribute("aria-valuetext", "no limit")
        page.get_by_label("Budget").press("Home")
        page.wait_for_url(lambda url: made not in url)
        expect(page.get_by_role("heading", name="Move")).not_to_have_count(0)


def test_hostile_text_is_text(browser: Browser) -> None:
    """A reason, an executor's name, an event, an alarm and a query's name, written straight into Redis."""
    with staged(executor_name=HOSTILE + "{}") as stage:
        plane = stage.query.plane
        plane.store.alarm("orders", HOSTILE, HOSTILE)
        event = {"at_ms": 1_767_225_600_000, "kind": HOSTILE, "text": HOSTILE, "data": {}}
        plane.store.client.xadd(redis_keys.events("orders"), {"event": json.dumps(event)})
        skewed(stage.redis_url, query=HOSTILE_NAME).step()
        with stage.client() as client:
            made = client.post("/v1/queries/orders/proposals", json={"reason": HOSTILE}).json()["id"]
            client.post("/v1/queries/orders/rebalances", json={"proposal": made, "reason": HOSTILE})
        with tab(browser, stage.url, stage.key("operate"), problems_expected=True) as opened:
            _look_for_hostile_text(opened)


def _look_for_hostile_text(opened: Tab) -> None:
    page = opened.page
    expect(page.locator(".queries")).to_contain_text(SHOWN_NAME)
    opened.go("/orders")
    opened.until_drawn()
    for place in (".move", ".worker", ".alarms"):
        expect(page.locator(place).first).to_contain_text(SHOWN)
    opened.go("/orders/events")
    expect(page.locator(".events")).to_contain_text(SHOWN)
    opened.go(f"/{quote(HOSTILE, safe='')}")
    expect(page.locator(".query-name")).to_have_text(SHOWN)
    assert page.title() == f"Overview · {SHOWN}"
    assert page.evaluate("window.hurt") is None
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_serious(stage: Stage, browser: Browser, axe: str, scheme: Any) -> None:
    found: dict[str, list[str]] = {}
    with tab(browser, stage.url, stage.key("operate"), scheme=scheme) as opened:
        found["queries"] = opened.serious(axe)
        for view in VIEWS:
            opened.go("/orders" if view == "front" else f"/orders/{view}")
            opened.until_drawn()
            opened.page.wait_for_timeout(1200)
            found[view] = opened.serious(axe)
        opened.page.get_by_role("button", name="Forget key").click()
        found["key"] = opened.serious(axe)
    assert {view: each for view, each in found.items() if each} == {}


@pytest.mark.pictures
@pytest.mark.parametrize(("partitions", "workers", "every_s"), [(64, 4, 0.25), (4096, 8, 1.0)])
def test_an_update_takes_a_tenth_of_a_second_at_most(
    browser: Browser, picture: Any, partitions: int, workers: int, every_s: float
) -> None:
    """From the bytes of the live stream to the painted frame, with a history of 360 columns."""
    with staged(partitions, workers, every_s) as stage, tab(browser, stage.url, stage.key("read")) as opened:
        page = opened.page
        page.route("**/history?minutes=*", lambda route: route.fulfill(json=_long_history(partitions, workers)))
        spent: dict[str, float] = {}
        for view in ("front", "heat", "partitions"):
            opened.go("/orders" if view == "front" else f"/orders/{view}")
            opened.until_drawn()
            if view == "heat":
                page.wait_for_selector(".heat[data-drawn]")
            spent[view] = _best_median_ms(page)
            if view == "heat":
                page.get_by_label("Rows").select_option("load")
                spent["heat by load"] = _best_median_ms(page)
                if partitions == 4096:
                    picture(page, "heat-4096")
        print(f"{partitions} groups: {spent}")
        assert max(spent.values()) <= UPDATE_MS, spent


def _best_median_ms(page: Page) -> float:
    """Of nine updates in a row. Other programs have the machine, too: where they slow it down, it tries again."""
    best = float("inf")
    for _ in range(6):
        best = min(best, statistics.median(_update_ms(page) for _ in range(9)))
        if best <= UPDATE_MS:
            break
    return best


def _update_ms(page: Page) -> float:
    """What the next update costs, by the page's own clock: reading, parsing, drawing and painting."""
    shown = "document.getElementById('main').dataset"
    seen = page.evaluate(f"{shown}.painted")
    # Not wait_for_function: it would evaluate text in the page, which the policy forbids.
    wait_for(lambda: page.evaluate(f"{shown}.painted") != seen, "an update")
    return float(page.evaluate(f"{shown}.spent"))


def _long_history(partitions: int, workers: int) -> dict[str, Any]:
    """An hour as the server would tell it, had the test waited for so long."""
    now_ms = int(time.time() * 1000)
    before = [group % workers for group in range(partitions)]
    after = [(group // workers) % workers if group % 10 == 0 else owner for group, owner in enumerate(before)]
    mean = 10_000 / partitions
    columns = [
        {
            "at_ms": now_ms - (360 - number) * 10_000,
            "ratio": 1.5 if number < 200 else 1.05,
            "batch_ms": 800.0,
            "rows_per_s": 20_000.0,
            "loads": [round(mean * (1 + (group * 37 + number) % 11 / 4), 2) for group in range(partitions)],
            "owners": before if number == 0 else after if number == 200 else None,
        }
        for number in range(360)
    ]
    return {"query": "orders", "columns": columns, "moves": [], "step_s": 10, "load_unit": "1/10000 of the total"}


def test_a_heat_map_can_be_read_by_keyboard(stage: Stage, browser: Browser) -> None:
    with tab(browser, stage.url, stage.key("read")) as opened:
        page = opened.page
        opened.go("/orders/heat")
        opened.until_drawn()
        page.wait_for_selector(".heat[data-drawn]")
        page.get_by_label("Load of 64 partition groups by time").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#spoken")).to_contain_text("of the load")
        page.keyboard.press("Enter")
        page.wait_for_url("**/#/orders/partitions/*")
        expect(page.get_by_role("heading", name="Why it is here")).to_be_visible()


def test_it_says_when_it_is_not_live(browser: Browser) -> None:
    with (
        EmbeddedRedis() as server,
        RunningQuery(skewed(server.url)),
        serving(server.url) as (process, url),
        tab(browser, url, make_key(server.url, "read"), problems_expected=True) as opened,
    ):
        opened.go("/orders")
        opened.until_drawn()
        expect(opened.page.locator(".pill")).to_have_text("live")
        process.kill()
        expect(opened.page.locator(".not-live")).to_contain_text("Not live.")
        expect(opened.page.locator(".not-live")).to_contain_text("What you see is from")


def test_a_reload_while_redis_is_away_keeps_the_key(stage: Stage, browser: Browser) -> None:
    with tab(browser, stage.url, stage.key("read")) as opened:
        page = opened.page
        away = {"detail": "Redis does not answer.", "remedy": "Try again."}
        page.route("**/v1/me", lambda route: route.fulfill(status=503, json=away))
        opened.go("/orders")
        page.reload()
        expect(page.get_by_text("The page tries again by itself.")).to_be_visible()
        page.unroute("**/v1/me")
        opened.until_drawn()
        expect(page.locator(".worker")).to_have_count(4)


def test_a_wrong_key_and_a_used_ticket(stage: Stage, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{stage.url}/#ticket=never-made")
    expect(page.get_by_role("alert")).to_contain_text("This ticket is unknown, used or expired.")
    assert "ticket" not in page.url
    page.get_by_label("Key", exact=True).fill("trimtab_000000000000_" + "x" * 43)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown or revoked")
    assert page.evaluate("sessionStorage.length") == 0 and page.evaluate("localStorage.length") == 0
    context.close()


def test_its_pure_parts(stage: Stage, browser: Browser) -> None:
    """Functions without a document: what a unit test would test, had the project a JavaScript runtime."""
    with tab(browser, stage.url, stage.key("read")) as opened:
        _check_text(opened)
        _check_deltas(opened)
        _check_charts(opened)
        _check_plans(opened)
        _check_heat(opened)


def _call(opened: Tab, module: str, expression: str) -> Any:
    return opened.page.evaluate(f"import('/page/{module}').then((m) => {expression})")


def _check_text(opened: Tab) -> None:
    assert _call(opened, "text.js", "m.clean('a\\u202eb\\u001b')") == "a⟨U+202E⟩b⟨U+001B⟩"
    assert _call(opened, "text.js", "m.clean('плюс 漢字 🙂')") == "плюс 漢字 🙂"
    assert _call(opened, "text.js", "m.ranges([9, 1, 2, 3])") == "1–3, 9"
    assert _call(opened, "text.js", "m.parseNumbers('0, 4-6', 64)") == [0, 4, 5, 6]
    assert _call(opened, "text.js", "[m.bytes(3145728), m.ms(812), m.seconds(130), m.count(null)]") == [
        "3.15\u00a0MB",
        "812\u00a0ms",
        "2\u00a0min",
        "–",
    ]


def _check_deltas(opened: Tab) -> None:
    front = "{seq: 1, at_ms: 1, owners: [0, 0], loads: [1, 2], batches: [], events: [], why: 1}"
    delta = "{seq: 2, at_ms: 5, set: {why: 2}, owners: [[1, 3]]}"
    answer = _call(opened, "delta.js", f"m.applied({front}, {delta})")
    assert (answer["owners"], answer["why"], answer["seq"]) == ([0, 3], 2, 2)
    assert _call(opened, "delta.js", f"m.applied({front}, {{seq: 4}})") is None
    steps = json.dumps(list(_random_steps(Random(7), 400)))
    made = _call(opened, "delta.js", f"{steps}.map(([before, change]) => m.applied(before, change))")
    for (_, _, after), document in zip(_random_steps(Random(7), 400), made, strict=True):
        assert document == after
    late_clock = "[{id: '2-0', at_ms: 1}, {id: '1-0', at_ms: 9}, {id: '1-10', at_ms: 0}]"
    assert _call(opened, "delta.js", f"m.newest({late_clock}).map((e) => e.id)") == ["1-0", "1-10", "2-0"]
    feeding = "((p) => [p.feed('event: de'), p.feed('lta\\ndata: {}\\n\\n: x\\n\\n')])(new m.EventParser())"
    parsed = _call(opened, "delta.js", feeding)
    assert parsed == [[], [{"event": "delta", "data": "{}", "id": ""}]]


def _random_steps(random: Random, count: int) -> Iterator[tuple[Json, Json, Json]]:
    """(document, delta, the document after it): the page must come to the same as the server's own `applied`."""

    def numbers() -> list[int]:
        return [random.randrange(4) for _ in range(random.randrange(6))]

    def document() -> Json:
        grown = {name: [[each] for each in numbers()] for name in ("batches", "events", "marks")}
        return {
            "at_ms": random.randrange(9),
            "why": random.choice("ab"),
            "owners": numbers(),
            "loads": numbers(),
        } | grown

    for seq in range(count):
        before, after = document(), document()
        for name in ("owners", "loads"):
            if random.random() < 0.5:
                after[name] = [random.randrange(4) if random.random() < 0.3 else each for each in before[name]]
        for name in ("batches", "events", "marks"):
            if random.random() < 0.7:
                after[name] = [*before[name], *after[name]][random.randrange(4) :]
            if random.random() < 0.2:
                before[name] = [[-1]] * random.randrange(400) + before[name]
        change = delta(before, after) or {"at_ms": after["at_ms"]}
        yield before | {"seq": seq}, change | {"seq": seq + 1}, after | {"seq": seq + 1}


def _check_charts(opened: Tab) -> None:
    moves = "[['mslb', 5, 9], ['ptlb', 1, 2], ['mslb', 1, 6], ['mslb', 8, null]]"
    marks = f"{moves}.map(([kind, from_ms, to_ms]) => ({{kind, from_ms, to_ms, title: ''}}))"
    merged = _call(opened, "charts.js", f"m.stretches({marks}).map((s) => [s.kind, s.from_ms, s.to_ms])")
    assert merged == [["ptlb", 1, 2], ["mslb", 1, None]]
    mark = "{id: 'm', from_ms: %d, to_ms: %d, from: 0, to: 1, groups: 3, strategy: 'mslb', outcome: 'committed'}"
    running = "{id: 'r', created_ms: 70, outcome: null, from: 0, to: 1, groups: [1, 2], strategy: 'ptlb'}"
    front = f"{{batches: [[50], [90]], marks: [{mark % (10, 20)}, {mark % (40, 60)}], moves: [{running}]}}"
    assert _call(opened, "view-front.js", f"m.marksOf({front})") == [
        {"from_ms": 40, "to_ms": 60, "kind": "mslb", "title": "MSLB 0 → 1, 3 groups: committed"},
        {"from_ms": 70, "to_ms": None, "kind": "ptlb", "title": "PTLB 0 → 1, 2 groups: running"},
    ]


def _check_plans(opened: Tab) -> None:
    tree = _call(opened, "view-plans.js", "m.parsePlan('((A B) C)')")
    assert tree["leaves"] == ["A", "B", "C"] and tree["parts"][0]["leaves"] == ["A", "B"]
    assert _call(opened, "view-plans.js", "m.parsePlan('((A B)')") is None


def _check_heat(opened: Tab) -> None:
    columns = "[{at_ms: 1, loads: [9, 1, 5], owners: [0, 0, 1]}, {at_ms: 2, loads: [9, 1, 5], owners: [1, 0, 1]}]"
    made = f"(() => {{ const h = new m.HeatModel(3); h.take({{columns: {columns}}}); return "
    assert _call(opened, "heatmodel.js", made + "h.changes(); })()") == [
        {"column": 1, "from": 0, "to": 1, "groups": [0]}
    ]
    assert _call(opened, "heatmodel.js", made + "h.layouts('owner').map((l) => [...l.groupOf]); })()") == [
        [0, 1, 2],
        [1, 0, 2],
    ]
    assert _call(opened, "heatmodel.js", made + "[...h.layouts('load')[0].groupOf]; })()") == [0, 2, 1]


def test_plain_http_from_another_machine(stage: Stage, browser: Browser) -> None:
    """What browsers keep for https and localhost is not there: everything works without it."""
    with tab(browser, stage.url.replace("127.0.0.1", FAR), stage.key("operate")) as opened:
        page = opened.page
        assert page.evaluate("isSecureContext") is False
        opened.go("/orders/proposals?policy=drain&worker=3")
        expect(page.get_by_role("heading", name="Move")).not_to_have_count(0)
        page.get_by_label("Reason").fill("from another machine")
        page.get_by_role("button", name="Execute this proposal").click()
        page.wait_for_url("**/#/orders")
        page.get_by_role("button", name="Cancel r-").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the move").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
