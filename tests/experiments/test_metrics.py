"""The numbers a run reports, by hand and by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.experiments.metrics import aca, aia, auroc, forgetting, fpr_at_95

MATRIX = [[90.0], [70.0, 80.0], [60.0, 50.0, 100.0]]

scores = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=45)


def test_aca_is_the_mean_of_the_last_row():
    assert aca(MATRIX) == 70.0
    assert aca([[42.5]]) == 42.5


def test_aia_is_the_mean_of_the_rows_means_not_of_all_entries():
    assert aia(MATRIX) == pytest.approx((90 + 75 + 70) / 3)
    assert aia([[42.5]]) == 42.5


def test_forgetting_is_the_mean_drop_of_earlier_tasks_since_they_were_learned():
    assert forgetting(MATRIX) == pytest.approx(((90 - 60) + (80 - 50)) / 2)


def test_forgetting_is_negative_when_earlier_tasks_get_better():
    assert forgetting([[50.0], [60.0, 10.0]]) == -10.0


def test_a_single_task_cannot_be_forgotten():
    assert forgetting([[90.0]]) is None


@given(scores, scores)
@settings(deadline=None, max_examples=60)
def test_auroc_is_the_share_of_pairs_in_which_the_known_input_scores_higher(known, unknown):
    pairs = list(itertools.product(known, unknown))
    wins = sum(1.0 if k > u else 0.5 if k == u else 0.0 for k, u in pairs)
    assert auroc(np.array(known), np.array(unknown)) == pytest.approx(wins / len(pairs))


@given(scores, scores)
@settings(deadline=None, max_examples=60)
def test_fpr_at_95_is_the_smallest_share_of_unknown_inputs_any_threshold_lets_pass(known, unknown):
    best = 1.0
    for threshold in known:
        if 100 * sum(k >= threshold for k in known) >= 95 * len(known):
            best = min(best, sum(u >= threshold for u in unknown) / len(unknown))
    assert fpr_at_95(np.array(known), np.array(unknown)) == pytest.approx(best)


def test_fpr_at_95_counts_95_of_100_as_enough():
    known = np.arange(100.0)  # 95 of them are at least 5
    assert fpr_at_95(known, np.array([4.5, 4.9, 5.5, -1.0])) == 0.25


def test_perfect_and_useless_detectors():
    low, high = np.zeros(7), np.ones(5)
    assert (auroc(high, low), fpr_at_95(high, low)) == (1.0, 0.0)
    assert (auroc(low, high), fpr_at_95(low, high)) == (0.0, 1.0)
    assert (auroc(low, low), fpr_at_95(low, low)) == (0.5, 1.0)
