import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay import Assumption, Certificate, CertificateError

any_float = st.floats(allow_nan=True, allow_infinity=True)


@given(any_float, any_float, st.sampled_from(["<=", ">="]))
def test_slack_is_non_negative_exactly_when_it_holds(value, bound, relation):
    certificate = Certificate("s", value, bound, relation)
    assert certificate.holds == (certificate.slack >= 0)
    if math.isnan(value) or math.isnan(bound):
        assert not certificate.holds


@given(any_float, any_float, st.sampled_from(["<=", ">="]), st.text(min_size=1), st.sampled_from([True, False, None]))
def test_json_round_trip(value, bound, relation, words, satisfied):
    if not words.strip():
        words = "x" + words
    certificate = Certificate(words, value, bound, relation, [Assumption(words, satisfied)])
    text = certificate.to_json()
    again = Certificate.from_json(text)
    assert again == certificate
    assert hash(again) == hash(certificate)
    assert again.holds == certificate.holds
    json.loads(text, parse_constant=pytest.fail)  # strict JSON has no nan and no Infinity


def test_holds_is_evaluated_anew_when_read():
    content = Certificate("gap", 2, 1).to_dict() | {"holds": True}
    assert not Certificate.from_dict(content).holds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "number",
    [1, np.float32(1), np.array(1.0), torch.tensor(1.0), torch.tensor(1.0, requires_grad=True), True, 1.0],
)
def test_scalars_of_every_library_are_numbers(number):
    assert Certificate("s", number, number).value == 1.0


def test_an_integer_too_large_for_a_float_is_infinite():
    assert Certificate("s", 10**400, 1).value == math.inf
    assert Certificate("s", -(10**400), 1).value == -math.inf


@pytest.mark.parametrize(
    "number", ["1", [1.0], np.ones(1), None, 1j, np.complex128(1), torch.tensor(1j), torch.ones(1)]
)
def test_what_is_no_real_number_is_refused(number):
    with pytest.raises(TypeError, match="value must be a real number"):
        Certificate("s", number, 1.0)


def test_bad_relation_statement_and_assumptions():
    with pytest.raises(ValueError, match="relation must be '<=' or '>='"):
        Certificate("s", 1, 2, "<")
    with pytest.raises(TypeError, match="statement must be a non-empty string"):
        Certificate(" ", 1, 2)
    with pytest.raises(TypeError, match="assumptions must contain Assumption objects"):
        Certificate("s", 1, 2, assumptions=("metric",))
    with pytest.raises(TypeError, match="satisfied must be True, False or None"):
        Assumption("metric", 1)


def test_require_refuses_a_failed_promise_and_a_violated_assumption():
    good = Certificate("s", 1, 2, assumptions=(Assumption("checked", np.bool_(True)), Assumption("not checked")))
    assert good.require() is good
    with pytest.raises(CertificateError, match="FAILS") as caught:
        Certificate("s", 3, 2).require()
    assert caught.value.certificate.value == 3
    void = Certificate("s", 1, 2, assumptions=(Assumption("metric", False),))
    assert void.holds
    assert void.violated
    with pytest.raises(CertificateError, match="VIOLATED"):
        void.require()


def test_the_error_survives_pickling_between_processes():
    error = CertificateError(Certificate("s", 3, 2))
    assert pickle.loads(pickle.dumps(error)).certificate == error.certificate


def test_it_is_frozen_and_prints_on_one_line():
    certificate = Certificate("a statement\nof two lines", math.nan, 1, assumptions=(Assumption("a", None),))
    with pytest.raises(AttributeError):
        certificate.value = 0.0
    assert "\n" not in str(certificate)
    assert str(certificate).startswith("FAILS")


def test_equal_certificates_have_one_hash_and_survive_copying():
    zero, minus_zero = Certificate("s", 0.0, 1), Certificate("s", -0.0, 1)
    assert zero == minus_zero
    assert len({zero, minus_zero}) == 1
    nan = Certificate("s", math.nan, 1, assumptions=(Assumption("a", None),))
    for again in (copy.copy(nan), copy.deepcopy(nan), pickle.loads(pickle.dumps(nan)), dataclasses.replace(nan)):
        assert again == nan
        assert hash(again) == hash(nan)
    assert nan != dataclasses.replace(nan, assumptions=())
    assert nan != "s"


@pytest.mark.parametrize(
    "value, bound, text",
    [
        (1 + 1e-12, 1.0, "1.000000000001 <= 1"),
        (np.nextafter(1, 2), 1.0, "1.0000000000000002 <= 1"),
        (1.0, 1.0, "1 <= 1"),
        (math.inf, math.inf, "inf <= inf"),
        (math.nan, math.nan, "nan <= nan"),
        (1 / 3, 1e-10, "0.333333 <= 1e-10"),
    ],
)
def test_numbers_that_differ_are_not_printed_as_equal(value, bound, text):
    assert str(Certificate("s", value, bound)).endswith(f"s: {text}")


def test_content_without_its_keys_is_refused():
    with pytest.raises(ValueError, match="got no statement, value, bound, relation, assumptions"):
        Certificate.from_json("{}")
