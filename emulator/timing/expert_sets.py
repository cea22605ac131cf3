"""Exact probabilities of the sets of experts that a router picks, from the odds of each expert.

A token picks `k` distinct experts of a layer, and a set is as likely as the product of its experts'
odds (conditional Bernoulli, the least biased one for given expert loads); equal odds give equally
likely sets. Probabilities are ratios of elementary symmetric polynomials of the odds, sums of
positive terms that lose no digits.
"""

import numpy as np

from emulator.arrays import Float64s

_PICK_MOST = 1 - 1e-6  # as near to certain as an expert may be
_SOLVE_ROUNDS = 500
_SOLVED = 1e-9


def set_weights(odds: Float64s, k: int) -> Float64s:
    """Elementary symmetric polynomials of degree 0..k: [experts, ...] -> [k + 1, ...]."""
    totals = np.zeros((k + 1, *odds.shape[1:]))
    totals[0] = 1.0
    for one in odds:
        totals[1:] += one * totals[:-1]
    return totals


def pick_chances(odds: Float64s, k: int) -> Float64s:
    """Probability that a token picks each expert: [..., experts] -> [..., experts], summing to k.

    The odds of an expert times the weight of all sets of k - 1 others (before and after it), over
    that of all sets of k.
    """
    ordered = np.moveaxis(_scaled(odds, k), -1, 0)  # [experts, ...]
    before = _running_weights(ordered, k)
    after = _running_weights(ordered[::-1], k)[::-1]
    # [experts, k, ...]: j of the k - 1 others come before the expert, the rest after
    others = (before[:, :k] * after[:, k - 1 :: -1][:, :k]).sum(axis=1)
    whole = set_weights(ordered, k)[k]
    chances: Float64s = np.moveaxis(ordered * others / whole, 0, -1)
    return chances


def _running_weights(ordered: Float64s, k: int) -> Float64s:
    """`set_weights` of the experts before each one: [experts, ...] -> [experts, k + 1, ...]."""
    running = np.zeros((len(ordered), k + 1, *ordered.shape[1:]))
    totals = np.zeros((k + 1, *ordered.shape[1:]))
    totals[0] = 1.0
    for place, one in enumerate(ordered):
        running[place] = totals
        totals[1:] += one * totals[:-1]
    return running


def chance_all_missed(odds: Float64s, k: int, kept: Float64s) -> Float64s:
    """Chance that none of a token's picks goes to a chip: -> [...] of the broadcast leading axes.

    `odds` [..., experts]; `kept` [..., experts], the share of each expert's pairs that go
    elsewhere: 0 for an expert on this chip alone, 1 for an absent one. Every set is weighed by the
    product of its experts' shares.
    """
    scaled = _scaled(odds, k)
    elsewhere = np.moveaxis(scaled * kept, -1, 0)
    whole = set_weights(np.moveaxis(scaled, -1, 0), k)[k]
    missed: Float64s = set_weights(elsewhere, k)[k] / whole
    return missed


def odds_for(chances: Float64s, k: int) -> Float64s:
    """The odds under which experts are picked with `chances`, [..., experts] summing to k.

    Raises ValueError when a token would pick an expert more than once, or fewer than k experts are
    ever picked. A chance of one becomes all but one in a million.

    Each round moves log-odds by half of the chances' error in log-odds. Errors shrink: a change of
    log-odds x changes them by Cx / (p (1 - p)), C the covariance of the picks, whose rows sum to
    zero with nothing positive off the diagonal, so by a factor between 0 and 2 (Gershgorin).
    """
    if (chances > 1 + 1e-9).any():
        raise ValueError("a token picks an expert at most once")
    if ((chances > 0).sum(axis=-1) < k).any():
        raise ValueError(f"a token picks {k} distinct experts, fewer are ever picked")
    wanted: Float64s = np.minimum(chances, _PICK_MOST)
    wanted = wanted * (k / wanted.sum(axis=-1, keepdims=True))
    if (wanted >= 1).any():  # exactly k experts, each always picked
        always: Float64s = (wanted > 0).astype(np.float64)
        return always
    logit = wanted / (1 - wanted)
    odds: Float64s = logit.copy()
    for _ in range(_SOLVE_ROUNDS):
        now = pick_chances(odds, k)
        if np.abs(now - wanted).max() < _SOLVED:
            return odds
        with np.errstate(invalid="ignore", divide="ignore"):
            odds = np.where(wanted > 0, odds * np.sqrt(logit * (1 - now) / now), 0.0)
    raise ValueError("no odds were found for these loads")


def _scaled(odds: Float64s, k: int) -> Float64s:
    """The same odds scaled so that sets of k weigh about one: only ratios matter."""
    scaled: Float64s = odds * (k / odds.sum(axis=-1, keepdims=True))
    return scaled
