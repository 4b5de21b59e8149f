import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from assay.certificate import Assumption, Certificate, CertificateError
from assay.result import Result, to_jsonable


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Answer(Result):
    x: np.ndarray
    label: str = "a"


GOOD = Certificate("gap", 0.0, 1.0)
BAD = Certificate("gap", 2.0, 1.0)


def test_certified_needs_a_certificate_and_all_of_them():
    assert not Answer(x=np.ones(2)).certified
    assert Answer(x=np.ones(2), certificates=[GOOD]).certified
    assert not Answer(x=np.ones(2), certificates=[GOOD, BAD]).certified
    void = Certificate("gap", 0, 1, assumptions=(Assumption("metric", False),))
    assert not Answer(x=np.ones(2), certificates=[void]).certified


def test_require_returns_the_result_or_raises_for_the_first_failure():
    answer = Answer(x=np.ones(2), certificates=[GOOD])
    assert answer.require() is answer
    with pytest.raises(CertificateError) as caught:
        Answer(x=np.ones(2), certificates=[GOOD, BAD]).require()
    assert caught.value.certificate is BAD


def test_history_columns_have_one_length():
    answer = Answer(x=np.ones(2), history={"iteration": [1, 2], "gap": [0.1, 0.01]})
    assert isinstance(answer.history["gap"], np.ndarray)
    with pytest.raises(ValueError, match="equal length"):
        Answer(x=np.ones(2), history={"iteration": [1, 2], "gap": [0.1]})
    with pytest.raises(ValueError, match="'gap': 'a single number'"):
        Answer(x=np.ones(2), history={"gap": 0.1})


def test_repr_fits_on_a_few_lines_and_dict_is_strict_json():
    answer = Answer(x=np.arange(1000.0), certificates=[GOOD, BAD], history={"iteration": np.arange(5)})
    text = repr(answer)
    assert len(text.splitlines()) == 6
    assert "array of shape (1000,)" in text
    assert "1 of 2 hold" in text
    assert "<DataFrame of shape (9, 9)>" in repr(Answer(x=pd.DataFrame(np.ones((9, 9)))))
    content = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert content["x"][:2] == [0.0, 1.0]
    assert content["certificates"][1]["holds"] is False
    assert content["history"] == {"iteration": [0, 1, 2, 3, 4]}


def test_everything_a_result_may_hold_becomes_json():
    content = {
        "nan": float("nan"),
        "tensor": torch.tensor([1.0, float("inf")], requires_grad=True).detach(),
        "bool": np.bool_(True),
        "sparse": sp.csr_array(np.array([[0, 2.0], [0, 0]])),
        "records": np.array([(1, 0.5)], dtype=[("k", int), ("v", float)]),
        "set": {3},
        "nested": [(1, None)],
        "type": int,
        5: GOOD,
    }
    plain = json.loads(json.dumps(to_jsonable(content), allow_nan=False))
    assert plain["nan"] == "nan"
    assert plain["tensor"] == [1.0, "inf"]
    assert plain["bool"] is True
    assert plain["sparse"] == {"shape": [2, 2], "row": [0], "column": [1], "value": [2.0]}
    assert plain["records"] == {"k": [1], "v": [0.5]}
    assert plain["5"]["statement"] == "gap"
