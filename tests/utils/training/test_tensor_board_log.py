import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.utils.training.reports import REPORT, SAMPLE, VALIDATION, at
from utils.training.report import Sample, StepReport, TensorBoardLog


def read_events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_reads_the_curves_of_a_resumed_run(tmp_path: Path) -> None:
    for resumed_at, steps in ((0, (10, 20, 30)), (20, (25, 40))):
        log = TensorBoardLog(tmp_path, resumed_at)
        for step in steps:
            log.on_step(at(step), REPORT._replace(loss=step + resumed_at / 100))
            log.on_validation(at(step), VALIDATION._replace(scores={"bleu": float(step), "chrf": 0.0}))
        log.close()
    events = read_events(tmp_path)
    loss = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in loss] == [10, 20, 25, 40]
    assert [value for _, value in loss] == pytest.approx([10, 20, 25.2, 40.2])
    assert [event.value for event in events.Scalars("dev/bleu")] == [10, 20, 25, 40]
    assert events.Scalars("train/perplexity")[0].value == pytest.approx(math.exp(10))
    assert [event.value for event in events.Scalars("dev/perplexity")] == pytest.approx([math.exp(2)] * 4)
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in (*StepReport._fields, "perplexity")),
        *(f"dev/{name}" for name in ("loss", "perplexity", "bleu", "chrf")),
    }


def test_a_validation_can_be_seen_before_the_training_ends(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, 0)
    log.on_validation(at(10), VALIDATION)
    assert [event.value for event in read_events(tmp_path).Scalars("dev/bleu")] == pytest.approx([12.34])
    log.close()


def texts(events: EventAccumulator, name: str) -> list[tuple[int, str]]:
    found = events.Tensors(f"{name}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]


def test_tensorboard_reads_settings_and_translations_as_they_stand(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, 5, "model:\n  d_model: 16\n")
    log.on_validation(at(10), VALIDATION._replace(samples=[Sample("a *b* <i>c</i>", "# d", "_e_"), SAMPLE]))
    log.close()
    events = read_events(tmp_path)
    # indented by four: Markdown shows it as it is
    assert texts(events, "settings") == [(5, "    model:\n      d_model: 16\n")]
    ((step, shown),) = texts(events, "dev/samples")
    assert step == 10
    assert shown.startswith(
        "    source     a *b* <i>c</i>\n    reference  # d\n    ours       _e_\n    \n    source     都"
    )
    assert all(line.startswith("    ") for line in shown.split("\n")[:-1])


def test_a_loss_that_is_no_number_is_no_point(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = TensorBoardLog(tmp_path, 0)
    for step in (10, 20, 30):
        log.on_step(at(step), REPORT._replace(loss=math.nan if step == 20 else 2.0, skipped=step))
    log.close()
    events = read_events(tmp_path)
    assert [event.step for event in events.Scalars("train/loss")] == [10, 30]
    assert [event.step for event in events.Scalars("train/perplexity")] == [10, 30]
    assert [event.value for event in events.Scalars("train/skipped")] == [10, 20, 30]
    assert not caplog.records
