"""Writes golden.json: statistics of random data as numpy, scipy and statsmodels compute them.

Run it in this folder, after a change of it:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install numpy scipy statsmodels
    /tmp/golden/bin/python golden.py

The data come from a fixed seed, so that a second run writes the same file (numpy 2.4, scipy 1.17,
statsmodels 0.15). `tests/statistics.rs` computes the same through SQL.
"""

import json
import math
from pathlib import Path

import numpy as np
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

rng = np.random.default_rng(20260822)


def sweep(tasks, repeats, binary, missing):
    """Scores of a sweep, one list per task, and None for those that are missing."""
    difficulty = rng.beta(1.2, 0.8, size=tasks)
    scores = []
    for p in difficulty:
        if binary:
            row = (rng.random(repeats) < p).astype(float)
        else:
            row = np.clip(p + 0.2 * rng.standard_normal(repeats), 0.0, 1.0)
        lost = rng.random(repeats) < missing
        scores.append([None if gone else float(x) for x, gone in zip(row, lost)])
    return scores


def clustered(scores):
    """An intercept alone, by ordinary least squares, with standard errors clustered by task."""
    y = [x for row in scores for x in row if x is not None]
    groups = [i for i, row in enumerate(scores) for x in row if x is not None]
    fit = sm.OLS(y, np.ones(len(y))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    naive = sm.OLS(y, np.ones(len(y))).fit()
    low, high = fit.conf_int(0.05)[0]
    return {
        "scores": scores,
        "mean": fit.params[0],
        "std_err": fit.bse[0],
        "naive_std_err": naive.bse[0],
        "low": low,
        "high": high,
    }


def summaries(scores):
    columns = zip(*scores)
    out = []
    for column in columns:
        x = np.array([v for v in column if v is not None])
        out.append(
            {
                "count": len(x),
                "sum": math.fsum(x),
                "mean": float(np.mean(x)),
                "std": float(np.std(x, ddof=1)) if len(x) > 1 else None,
            }
        )
    return out


def wilson():
    cases = [(0, 10), (10, 10), (1, 3), (17, 40), (999, 1000), (3, 100000), (50000, 100000)]
    out = []
    for successes, trials in cases:
        for confidence in (0.8, 0.95, 0.999):
            low, high = proportion_confint(successes, trials, 1 - confidence, method="wilson")
            out.append([successes, trials, confidence, float(low), float(high)])
    return out


def mcnemars():
    cases = [(0, 1), (1, 1), (3, 9), (12, 5), (40, 61), (250, 250), (1000, 1100), (9800, 10200), (2, 60)]
    out = []
    for b, c in cases:
        table = [[100, b], [c, 50]]
        exact = mcnemar(table, exact=True)
        asymptotic = mcnemar(table, exact=False, correction=False)
        out.append([b, c, float(exact.pvalue), float(asymptotic.statistic), float(asymptotic.pvalue)])
    return out


def permutations():
    def mean_difference(x, y, axis):
        return np.mean(x - y, axis=axis)

    out = []
    for n, shift, kind in [(5, 0.3, "normal"), (9, 0.5, "quarters"), (12, 0.2, "normal"), (13, 0.4, "quarters"), (8, 0.0, "ties")]:
        if kind == "normal":
            x, y = rng.standard_normal(n) + shift, rng.standard_normal(n)
        elif kind == "quarters":
            x, y = rng.integers(0, 5, n) / 4, rng.integers(0, 4, n) / 4
        else:
            x, y = np.array([0.1, 0.7, 0.3, 0.5, 0.2, 0.9, 0.4, 0.6]), np.array([0.3, 0.5, 0.3, 0.7, 0.1, 0.8, 0.6, 0.5])
        test = stats.permutation_test(
            (x, y), mean_difference, permutation_type="samples", vectorized=True, n_resamples=np.inf
        )
        out.append({"x": x.tolist(), "y": y.tolist(), "p": float(test.pvalue), "exact": True})
    for n, shift in [(60, 0.25), (200, 0.1), (40, 0.7)]:
        x, y = rng.standard_normal(n) + shift, rng.standard_normal(n)
        test = stats.permutation_test(
            (x, y), mean_difference, permutation_type="samples", vectorized=True, n_resamples=200_000, rng=rng
        )
        out.append({"x": x.tolist(), "y": y.tolist(), "p": float(test.pvalue), "exact": False})
    return out


def holm():
    out = []
    for n in (1, 2, 5, 20):
        p = np.minimum(1.0, rng.random(n) ** 3)
        p[-1] = p[0]
        out.append({"p": p.tolist(), "adjusted": multipletests(p, method="holm")[1].tolist()})
    return out


def distributions():
    p = [1e-300, 1e-100, 1e-20, 1e-9, 0.001, 0.025, 0.05, 0.2, 0.4999, 0.5, 0.5001, 0.8, 0.95, 0.975, 0.999, 1 - 1e-9]
    df = [1.0, 2.0, 2.5, 5.0, 30.0, 99.0, 1000.0, 100000.0]
    t_p = [1e-9, 0.001, 0.025, 0.2, 0.4999, 0.5, 0.6, 0.95, 0.975, 0.995, 0.9999]
    chi = [(0.0, 1.0), (0.1, 1.0), (3.84, 1.0), (30.0, 1.0), (200.0, 1.0), (1000.0, 1.0),
           (0.5, 2.0), (10.0, 3.0), (100.0, 3.0), (40.0, 50.0), (90.0, 50.0), (300.0, 50.0), (2.5, 0.5)]
    return {
        "normal_quantile": [[v, float(stats.norm.ppf(v))] for v in p],
        "student_t_quantile": [[v, d, float(stats.t.ppf(v, d))] for v in t_p for d in df],
        "chi_squared_sf": [[v, d, float(stats.chi2.sf(v, d))] for v, d in chi],
        "binomial_test_p": [
            [k, n, float(stats.binomtest(k, n, 0.5).pvalue)]
            for k, n in [(0, 5), (3, 10), (5, 10), (480, 1000), (30, 200), (4900, 10000), (49500, 100000)]
        ],
    }


def bootstraps():
    def ratio(numerator, denominator, axis):
        return np.sum(numerator, axis=axis) / np.sum(denominator, axis=axis)

    out = []
    for tasks, binary, missing in [(40, True, 0.0), (150, False, 0.2)]:
        scores = [row for row in sweep(tasks, 5, binary, missing) if any(x is not None for x in row)]
        numerator = np.array([sum(x for x in row if x is not None) for row in scores])
        denominator = np.array([float(sum(x is not None for x in row)) for row in scores])
        result = stats.bootstrap(
            (numerator, denominator), ratio, paired=True, vectorized=True, n_resamples=100_000,
            confidence_level=0.95, method="percentile", batch=1000, rng=rng,
        )
        out.append(
            {
                "numerator": numerator.tolist(),
                "denominator": denominator.tolist(),
                "low": float(result.confidence_interval.low),
                "high": float(result.confidence_interval.high),
                "std": float(result.standard_error),
            }
        )
    return out


sweeps = [sweep(*shape) for shape in [(50, 4, True, 0.0), (80, 8, True, 0.15), (30, 5, False, 0.1), (200, 3, False, 0.0)]]
golden = {
    "clustered": [clustered(scores) for scores in sweeps],
    "summaries": [summaries(scores) for scores in sweeps],
    "wilson": wilson(),
    "mcnemar": mcnemars(),
    "permutation": permutations(),
    "holm": holm(),
    "distributions": distributions(),
    "bootstrap": bootstraps(),
}
path = Path(__file__).with_name("golden.json")
path.write_text(json.dumps(golden, allow_nan=False, separators=(",", ":")) + "\n")
