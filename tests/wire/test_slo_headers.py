"""The objective that a request asks for in its headers."""

import math

import pytest

from gateway.core.slo import Objective, Slo
from gateway.wire.http.headers import BadHeader, RequestHead, asked_slo, read_head

TIER = Slo(ttft=(Objective(0.5, 0.4), Objective(0.99, 2.0)), e2e=(Objective(0.99, 30.0),))


def head(**headers: str) -> RequestHead:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return read_head(f"POST / HTTP/1.1\r\n{lines}\r\n".encode())


def test_objectives_of_the_tier_hold_without_an_slo_header() -> None:
    assert asked_slo(head(host="x"), TIER) is None


@pytest.mark.parametrize("name", ["x_slo_ttft_ms", "x_llm_d_slo_ttft_ms", "X_SLO_TTFT_MS"])
def test_an_slo_header_tightens_the_bound_of_the_tier(name: str) -> None:
    slo = asked_slo(head(**{name: "800"}), TIER)
    assert slo is not None
    assert (slo.ttft_bound_s, slo.tpot_bound_s, slo.e2e_bound_s) == (0.8, math.inf, 30.0)
    assert slo.ttft == (Objective(0.5, 0.4), Objective(0.99, 0.8))


def test_an_slo_header_never_loosens_the_bound_of_the_tier() -> None:
    assert asked_slo(head(x_slo_ttft_ms="9000"), TIER) == TIER


def test_an_slo_header_sets_a_bound_where_the_tier_has_none() -> None:
    slo = asked_slo(head(x_slo_tpot_ms="62.5"), TIER)
    assert slo is not None
    assert (slo.ttft_bound_s, slo.tpot_bound_s) == (2.0, 0.0625)


def test_tighter_of_two_slo_headers_counts() -> None:
    slo = asked_slo(head(x_slo_ttft_ms="700", x_llm_d_slo_ttft_ms="900"), TIER)
    assert slo is not None
    assert slo.ttft_bound_s == 0.7


@pytest.mark.parametrize(
    "value", ["", "fast", "-1", "0", "0.0", "1e3", "inf", "nan", "800ms", "1 0", "99999999999", "+5"]
)
def test_slo_header_without_a_time_is_refused_by_name(value: str) -> None:
    with pytest.raises(BadHeader, match=r"^x-slo-tpot-ms: is not a number of milliseconds"):
        asked_slo(head(x_slo_tpot_ms=value), TIER)
