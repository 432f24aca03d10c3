import re

from utils.serve.service import Metrics


def figures(page: str) -> dict[str, float]:
    """Each sample of a page; every line is a comment or a sample as Prometheus reads it."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("# "):
            sample = re.fullmatch(r'(\w+\{(?:\w+="(?:[^"\\]|\\.)*",?)+\}) (\S+)', line)
            assert sample, line
            found[sample[1]] = float(sample[2])
    return found


def test_requests_are_counted_by_path_and_status() -> None:
    metrics = Metrics(["a"])
    for status in (200, 200, 400):
        metrics.answered("/translate", status, 0.1)
    metrics.answered("/", 200, 0.1)
    found = figures(metrics.page({}))
    assert found['miyako_requests_total{path="/translate",status="200"}'] == 2
    assert found['miyako_requests_total{path="/translate",status="400"}'] == 1
    assert found['miyako_requests_total{path="/",status="200"}'] == 1


def test_seconds_fall_into_buckets_that_add_up() -> None:
    metrics = Metrics([])
    for seconds in (0.001, 0.005, 0.006, 99.0):
        metrics.answered("/", 200, seconds)
    found = figures(metrics.page({}))

    def bucket(bound: str) -> float:
        return found[f'miyako_request_seconds_bucket{{path="/",le="{bound}"}}']

    assert [bucket(bound) for bound in ("0.005", "0.01", "30.0", "+Inf")] == [2, 3, 3, 4]
    assert found['miyako_request_seconds_count{path="/"}'] == 4
    assert found['miyako_request_seconds_sum{path="/"}'] == 99.012


def test_batches_and_queues_are_told_run_by_run() -> None:
    metrics = Metrics(["a", "b"])
    metrics.translated("a", 3)
    metrics.translated("a", 1)
    found = figures(metrics.page({"a": 5, "b": 0}))
    assert found['miyako_batch_texts_sum{run="a"}'] == 4
    assert found['miyako_batch_texts_bucket{run="a",le="2"}'] == 1
    assert found['miyako_batch_texts_count{run="b"}'] == 0
    assert found['miyako_queue_texts{run="a"}'] == 5


def test_a_name_may_have_any_character() -> None:
    name = 'a"b\\c\nd'
    (label,) = (key for key in figures(Metrics([name]).page({name: 1})) if key.startswith("miyako_queue_texts"))
    assert label == 'miyako_queue_texts{run="a\\"b\\\\c\\nd"}'


def test_each_kind_is_declared_once() -> None:
    page = Metrics(["a", "b"]).page({"a": 0, "b": 0})
    assert re.findall(r"^# TYPE (\w+) (\w+)$", page, re.M) == [
        ("miyako_requests_total", "counter"),
        ("miyako_request_seconds", "histogram"),
        ("miyako_batch_texts", "histogram"),
        ("miyako_queue_texts", "gauge"),
    ]
