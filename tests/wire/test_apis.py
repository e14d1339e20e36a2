"""The table of APIs: complete, and the same as what a policy can switch."""

from __future__ import annotations

import pytest

from gateway.core.policy import Tier
from gateway.core.request import GENERATING, Endpoint
from gateway.policy.sections.tiers import ApisSection
from gateway.wire.apis.table import API_OF, APIS, served


def test_every_endpoint_belongs_to_one_api() -> None:
    assert sorted(endpoint for api in APIS for endpoint in api.endpoints) == sorted(Endpoint)
    assert set(API_OF) == set(Endpoint)


def test_policy_can_switch_each_api_and_nothing_else() -> None:
    assert list(ApisSection.model_fields) == [api.name for api in APIS]


def test_the_schema_names_the_paths_of_each_api() -> None:
    for api in APIS:
        told = (ApisSection.model_fields[api.name].description or "").partition(". ")[0]
        assert told == ", ".join(api.endpoints)


@pytest.mark.parametrize("api", [api.name for api in APIS])
def test_an_api_is_switched_on_and_off_with_all_its_paths(api: str) -> None:
    mine = set(next(row for row in APIS if row.name == api).endpoints)
    default = served(Tier("t"))
    assert default == {endpoint for endpoint in Endpoint if endpoint.startswith("/v1/")}
    assert served(Tier("t", apis=((api, True),))) == default | mine
    assert served(Tier("t", apis=((api, False),))) == default - mine


def test_core_and_api_table_agree_which_endpoints_generate_text() -> None:
    assert {e for e, api in API_OF.items() if api.answers.whole.generates} == GENERATING
    assert {e for e, api in API_OF.items() if api.answers.assembly is not None} == GENERATING
