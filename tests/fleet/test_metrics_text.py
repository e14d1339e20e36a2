"""Load signals are read correctly from the pages of every engine, whatever else is on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.core.pool_spec import EngineKind
from gateway.core.sample import Sample
from gateway.fleet.engine_times import EngineTotals
from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.metrics_text import Scraped, read_page, scrapes

REAL_PAGE = (Path(__file__).parent / "vllm-0.32-metrics.txt").read_text()


def read_whole(engine: EngineKind, page: str) -> Scraped | Failed:
    found = read_page(engine, page.encode())
    if isinstance(found, Failed):
        return found
    (scraped,) = found
    return scraped


def read_sample(engine: EngineKind, page: str) -> Sample | Failed:
    found = read_whole(engine, page)
    return found if isinstance(found, Failed) else found.sample


def vllm(*lines: str) -> Sample | Failed:
    return read_sample(EngineKind.VLLM, "".join(line + "\n" for line in lines))


def test_metrics_page_of_a_real_vllm_is_read() -> None:
    kv_fraction = 0.011719465299395715
    assert read_sample(EngineKind.VLLM, REAL_PAGE) == Sample(
        waiting=8,
        running=16,
        kv_fraction=kv_fraction,
        preemptions=0,
        cache_queries=66,
        cache_hits=0,
        generated_tokens=22806,
    )


def test_cached_tokens_are_summed_over_ranks_and_sources() -> None:
    page = vllm(
        "vllm:num_requests_running 1",
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0',
        'vllm:prefix_cache_queries_total{engine="1",model_name="m"} 50.0',
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0',
        'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 9.0',
    )
    assert page == Sample(running=1, cache_queries=150, cache_hits=64)
    lines = (
        'sglang:num_running_reqs{model_name="m"} 1',
        'sglang:prompt_tokens_total{model_name="m"} 900',
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 400',
        'sglang:cached_tokens_total{model_name="m",cache_source="host"} 30',
    )
    page = read_sample(EngineKind.SGLANG, "".join(line + "\n" for line in lines))
    assert page == Sample(running=1, cache_queries=900, cache_hits=430)


@pytest.mark.parametrize("value", ["-1", "1e400", "+Inf", "12_0", "1e19"])
def test_metrics_page_with_invalid_counters_of_cached_tokens_is_garbage(value: str) -> None:
    page = vllm("vllm:num_requests_running 1", f"vllm:prefix_cache_hits_total {value}")
    assert isinstance(page, Failed)
    assert page.fault is ReadFault.GARBAGE
    assert "vllm:prefix_cache_hits_total" in str(page)


def test_sglang_metrics_page_is_read() -> None:
    labels = '{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
    page = f"sglang:num_queue_reqs{labels} 7.0\nsglang:num_running_reqs{labels} 3.0\nsglang:token_usage{labels} 0.28\n"
    assert read_sample(EngineKind.SGLANG, page) == Sample(waiting=7, running=3, kv_fraction=0.28)


def test_tgi_metrics_page_has_no_kv_use() -> None:
    page = "# TYPE tgi_queue_size gauge\ntgi_queue_size 4\n\n# TYPE x gauge\ntgi_batch_current_size 9\n"
    assert read_sample(EngineKind.TGI, page) == Sample(waiting=4, running=9)


def test_metrics_of_an_engine_of_unknown_kind_are_not_read() -> None:
    assert read_sample(EngineKind.OPENAI, "vllm:num_requests_running 1\n") == Sample()
    assert not scrapes(EngineKind.OPENAI)
    assert all(scrapes(engine) for engine in (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TGI))


def test_requests_are_summed_over_engines_and_kv_is_that_of_the_fullest() -> None:
    page = vllm(
        'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0',
        'vllm:num_requests_waiting{engine="1",model_name="m"} 2.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5',
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75',
    )
    assert page == Sample(waiting=3, kv_fraction=0.75)


def test_sglang_totals_are_not_counted_again_by_priority_or_pipeline_stage() -> None:
    page = "".join(
        f'sglang:num_running_reqs{{model_name="m",pp_rank="{stage}",priority="{priority}"}} {count}\n'
        for stage in (0, 1)
        for priority, count in (("", 5), ("1", 3), ("2", 2))
    )
    assert read_sample(EngineKind.SGLANG, page) == Sample(running=5)


def test_sglang_data_parallel_ranks_are_summed() -> None:
    page = 'sglang:num_running_reqs{dp_rank="0"} 5\nsglang:num_running_reqs{dp_rank="1"} 6\n'
    assert read_sample(EngineKind.SGLANG, page) == Sample(running=11)


def test_old_name_of_kv_usage_is_read_only_if_the_new_one_is_absent() -> None:
    assert vllm("vllm:gpu_cache_usage_perc 0.4") == Sample(kv_fraction=0.4)
    assert vllm("vllm:gpu_cache_usage_perc 0.4", "vllm:kv_cache_usage_perc 0.5") == Sample(kv_fraction=0.5)


@pytest.mark.parametrize(
    ("line", "running"),
    [
        ("vllm:num_requests_running 3", 3),
        ("vllm:num_requests_running\t3.0\t", 3),
        ("vllm:num_requests_running 1.2e+01", 12),
        ("vllm:num_requests_running 3 1700000000000", 3),
        ("vllm:num_requests_running 3 1700000000.123", 3),
        ("vllm:num_requests_running{} 3", 3),
        ('vllm:num_requests_running{engine="0"}3', 3),
        ('vllm:num_requests_running{ engine="0" , model_name="m", } 3', 3),
        (r'vllm:num_requests_running{model_name="a \"} 99 b"} 3', 3),
        (r'vllm:num_requests_running{model_name="ends in \\"} 3', 3),
        (r'vllm:num_requests_running{model_name="two\nlines"} 3', 3),
        ('vllm:num_requests_running{model_name="a} 99"} 3', 3),
        ('vllm:num_requests_running{model_name="vllm:num_requests_running 99"} 3', 3),
        ("vllm:num_requests_running 3\r", 3),
    ],
)
def test_metric_line_is_read_in_every_valid_form(line: str, running: int) -> None:
    assert vllm(line) == Sample(running=running)


def test_the_last_line_of_a_metrics_page_may_lack_its_newline() -> None:
    assert read_sample(EngineKind.VLLM, "vllm:num_requests_running 3") == Sample(running=3)


@pytest.mark.parametrize(
    "other",
    [
        "# HELP vllm:num_requests_running vllm:num_requests_running 99",
        "vllm:num_requests_running_total 99",
        "my_vllm:num_requests_running 99",
        'other{x="vllm:num_requests_running 99"} 1',
    ],
)
def test_metrics_lines_that_only_mention_the_metric_are_ignored(other: str) -> None:
    assert vllm(other, "vllm:num_requests_running 3", other) == Sample(running=3)


def test_nan_in_a_metrics_page_counts_as_unknown() -> None:
    assert vllm("vllm:num_requests_running NaN", "vllm:num_requests_waiting 1") == Sample(waiting=1)
    assert vllm('vllm:num_requests_running{engine="0"} NaN', 'vllm:num_requests_running{engine="1"} 2') == Sample(
        running=2
    )
    assert vllm("vllm:kv_cache_usage_perc nan", "vllm:num_requests_waiting 1") == Sample(waiting=1)


@pytest.mark.parametrize("value", ["", "three", "+Inf", "-Inf", "-1", "1_000", "0x10", "3 soon", "{", '{a="b} 3'])
@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm:kv_cache_usage_perc"])
def test_malformed_metrics_line_is_refused_by_name(name: str, value: str) -> None:
    assert vllm(f"{name} {value}") == Failed(ReadFault.GARBAGE, f"the line of {name} is malformed")


@pytest.mark.parametrize(
    "values", [("1e308", "1e308"), ("1e300",), ("9223372036854775808",), ("9e18", "9e18"), ("0", "1" + "0" * 400)]
)
@pytest.mark.parametrize(
    "name", ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_preemptions_total"]
)
def test_metrics_count_beyond_64_bits_is_garbage_alone_and_in_sum(name: str, values: tuple[str, ...]) -> None:
    lines = [f'{name}{{engine="{engine}"}} {value}' for engine, value in enumerate(values)]
    failed = vllm("vllm:kv_cache_usage_perc 0.5", *lines)
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.GARBAGE
    assert name in failed.detail


def test_metrics_page_with_more_than_1000_series_of_a_metric_is_garbage() -> None:
    series = [f'vllm:num_requests_running{{engine="{engine}"}} 1' for engine in range(1001)]
    assert vllm(*series[:1000]) == Sample(running=1000)
    assert vllm(*series) == Failed(ReadFault.GARBAGE, "vllm:num_requests_running has more than 1000 series")


def test_kv_use_above_1_in_a_metrics_page_is_refused() -> None:
    assert vllm("vllm:kv_cache_usage_perc 42.0") == Failed(ReadFault.GARBAGE, "vllm:kv_cache_usage_perc is above 1")
    assert vllm("vllm:kv_cache_usage_perc 1.0000000002") == Sample(kv_fraction=1.0)


@pytest.mark.parametrize("page", ["", "<html>not metrics</html>", "sglang:num_running_reqs 3\n"])
def test_metrics_page_without_known_metrics_gives_no_sample(page: str) -> None:
    failed = read_sample(EngineKind.VLLM, page)
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.EMPTY


def test_metrics_line_of_many_spaces_is_refused_quickly() -> None:
    """This would take hours with a backtracking pattern."""
    line = "vllm:num_requests_running{" + ('a="b"' + " " * 50) * 2000 + "!"
    assert isinstance(vllm(line), Failed)


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 10**9)),
        min_size=1,
        max_size=5,
        unique_by=lambda pair: pair[0],
    )
)
def test_page_of_prometheus_client_is_read(series: list[tuple[str, int]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "vllm:num_requests_running", ["model_name"], registry=registry)
    for label, value in series:
        gauge.labels(label).set(value)
    page = generate_latest(registry).decode()
    assert read_sample(EngineKind.VLLM, page) == Sample(running=sum(value for _, value in series))


@given(st.text(alphabet='vllm:num_requests_running{}"\\ \n1.eE-+=,', max_size=200))
def test_no_metrics_page_raises_an_exception(tail: str) -> None:
    read_sample(EngineKind.VLLM, "vllm:num_requests_running" + tail)


def test_active_adapters_are_those_of_the_series_with_the_latest_timestamp() -> None:
    """vLLM keeps a series for every combination of adapters that a step ever had."""
    page = """\
vllm:num_requests_running{model_name="m"} 2.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, chat",waiting_lora_adapters="law"} 1.8e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.6e+09
"""
    found = vllm(page)
    assert found == Sample(running=2, max_adapters=4, active_adapters=("sql", "chat", "law"))


def test_invalid_adapter_gauge_does_not_hide_other_metrics() -> None:
    page = 'vllm:num_requests_running 2.0\nvllm:lora_requests_info{max_lora="many"} 1.0\n'
    assert vllm(page) == Sample(running=2, max_adapters=None, active_adapters=())


def test_times_in_the_queue_and_for_the_prompt_are_read_from_both_engines() -> None:
    real = read_whole(EngineKind.VLLM, REAL_PAGE)
    assert isinstance(real, Scraped)
    assert real.times == EngineTotals(0.00039277399991988204, 1.0, 0.07645740299994941, 1.0)
    stage = "sglang:per_stage_req_latency_seconds"
    lines = (
        'sglang:num_running_reqs{model_name="m"} 1',
        'sglang:queue_time_seconds_sum{model_name="m"} 12.5',
        'sglang:queue_time_seconds_count{model_name="m"} 50',
        *(f'{stage}_{part}{{stage="prefill_forward",model_name="m"}} 40' for part in ("sum", "count")),
        *(f'{stage}_{part}{{stage="request_process",model_name="m"}} 7' for part in ("sum", "count")),
    )
    sglang = read_whole(EngineKind.SGLANG, "".join(line + "\n" for line in lines))
    assert isinstance(sglang, Scraped)
    assert sglang.times == EngineTotals(12.5, 50, 40, 40)


@pytest.mark.parametrize("missing", ["request_queue_time", "request_prefill_time"])
def test_engine_that_lacks_a_histogram_tells_no_times(missing: str) -> None:
    found = read_whole(EngineKind.VLLM, REAL_PAGE.replace(missing, "other"))
    assert isinstance(found, Scraped)
    assert found.times is None
