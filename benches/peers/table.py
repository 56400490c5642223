#!/usr/bin/env python3
"""Medians of the figures of one run, and what the queue is measured against: table.py FIGURES [FIGURES ..]"""
import statistics
import sys
from collections import defaultdict

seen = defaultdict(list)
for path in sys.argv[1:]:
    for line in open(path):
        who, metric, value = line.split()
        seen[who, metric].append(float(value))
median = {key: statistics.median(values) for key, values in seen.items()}


def figure(who, metric):
    value = median.get((who, metric))
    return "" if value is None else f"{value:,.0f}"


# What is measured, against which figure of the floor or a peer, and how many times it has to be.
GOALS = [
    ("enqueue_1", "floor", "enqueue_1", 0.85),
    ("enqueue_1", "effectum", "enqueue_1", 1.6),
    ("enqueue_64", "floor", "parked_64", 1.1),
    ("enqueue_64_tasks", "floor", "enqueue_64", 0.9),
    ("enqueue_64", "effectum", "enqueue_64", 2.0),
    ("bulk_1000", "floor", "enqueue_1024", 1.5),
    ("bulk_1000", "effectum", "bulk_1000", 1.8),
    ("drain", "floor", "drain_256", 2.0),
    ("drain", "effectum", "drain", 10.0),
    ("drain", "rustqueue", "drain", 80.0),
    ("pipeline_64", "floor", "life_64", 1.0),
    ("pipeline_256_tasks", "floor", "life_256", 1.5),
    ("life_bulk", "floor", "life_256", 1.5),
    ("app_commits_64", "floor", "parked_64", 0.6),
    ("drain_async", "floor", "drain_256", 1.2),
]
# The other way round: at most so many times.
LIMITS = [
    ("latency_p50_us", "floor", "commit_p50_us", 1.3),
    ("latency_p99_us", "onceward", "latency_p50_us", 4.0),
    ("latency_p50_us", "effectum", "latency_p50_us", 0.35),
]

metrics = []
for who, metric in median:
    if who == "onceward" and metric not in metrics:
        metrics.append(metric)
print(f"{'':22} {'onceward':>12} {'one-phase':>12} {'effectum':>12} {'rustqueue':>12}")
for metric in metrics:
    names = ("onceward", "onceward-one-phase", "effectum", "rustqueue")
    print(f"{metric:22}" + "".join(f" {figure(who, metric):>12}" for who in names))
print("\nfloor: " + ", ".join(f"{metric} {value:,.0f}" for (who, metric), value in median.items() if who == "floor"))
print(f"\n{'':22} {'against':28} {'ratio':>8} {'goal':>8}")
for goals, least in ((GOALS, True), (LIMITS, False)):
    for metric, who, other, goal in goals:
        ours, theirs = median.get(("onceward", metric)), median.get((who, other))
        if ours is None or not theirs:
            continue
        ratio = ours / theirs
        reached = ratio >= goal if least else ratio <= goal
        sign = ">=" if least else "<="
        print(f"{metric:22} {who + ' ' + other:28} {ratio:8.2f} {sign:>3} {goal:<5} {'yes' if reached else 'no'}")
