"""What train.train() and main() hand to whom: in this process, with a task of random numbers."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import train
from models.transformer import Transformer
from tests.test_train import FAST, VOCAB, new_sampler, new_trainer, pairs, same
from tests.tiny import MODEL
from train import Trainer, Update
from utils import run as run_folder
from utils.arguments import Arguments
from utils.config import LanguageConfig, TranslationConfig
from utils.dataset.batch import Batch, BatchConfig, BucketSampler, Epoch
from utils.training.checkpoint import CheckpointConfig, CheckpointStore, read_weights
from utils.training.distributed import Processes
from utils.training.loss import Loss, Objective, TranslationObjective
from utils.training.plan import Progress, TranslationTrainingConfig
from utils.training.report import Validation
from utils.visualize import curve

CONFIG = TranslationConfig(
    name="tiny",
    model=replace(MODEL, dropout=0.1, tie="all"),
    optimizer=FAST,
    batch=BatchConfig(tokens_per_batch=40, max_tokens=40),
    training=TranslationTrainingConfig(
        max_steps=4, max_epochs=None, validate_every=2, report_every=1, precision="fp32"
    ),
)
MATRIX = "encoder.0.feed_forward.widen.weight"  # one of its weights


class Reversing:
    """Random ids, to be written backwards; each validation is better than the one before."""

    unit = "tok"
    sizes: Mapping[str, int] = {"source": VOCAB, "target": VOCAB}
    fingerprint = "ids, to be reversed"
    vocabulary = SimpleNamespace(save=lambda _: None)

    def __init__(self, config: TranslationConfig, objective: Objective) -> None:
        self.config = config
        self.objective = objective
        self.sampler = new_sampler()
        self.bleu = 0.0

    def build(self) -> Transformer:
        return Transformer(self.config.model, VOCAB, VOCAB)

    def judge(self, loss: float) -> Validation:
        self.bleu += 1
        return Validation(loss, {"bleu": self.bleu, "chrf": 0.0})

    def validation(self, _: nn.Module) -> tuple[Sequence[Batch], Callable[[float], Validation]]:
        return BucketSampler(pairs(10, seed=9), 60).all(), self.judge

    def conclude(self, *_: object) -> None: ...


class Watched(Trainer):
    """Remembers how many batches its updates had."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.update_sizes: list[int] = []

    def train_step(self, micro_batches: Iterable[Any]) -> Update:
        batches = list(micro_batches)
        self.update_sizes.append(len(batches))
        return super().train_step(batches)


class Lonely(Processes):
    """One of two processes, the other of which has nothing to add."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None: ...

    def any(self, *flags: bool) -> list[bool]:
        return list(flags)

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, _: Mapping[int, Any]) -> dict[int, Any]:
        return {}


Go = Callable[..., Watched]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """train.py with these settings; gives what has trained."""
    made: list[Watched] = []

    def watched(*given: Any) -> Watched:
        made.append(Watched(*given))
        return made[-1]

    monkeypatch.setattr(run_folder, "create_run", partial(run_folder.create_run, root=tmp_path))
    monkeypatch.setattr(train, "Trainer", watched)
    monkeypatch.setattr(curve, "draw_curves", lambda *_: None)  # slow, as is the next
    monkeypatch.setattr(train, "return_freed_memory", lambda: None)

    def go(
        config: TranslationConfig = CONFIG,
        objective: Objective | None = None,
        processes: Processes | None = None,
        resume: Path | None = None,
        dry_run: bool = False,
    ) -> Watched:
        task = Reversing(config, objective or TranslationObjective(0.1))
        monkeypatch.setattr(train, "prepare", lambda *_: task)
        arguments = Arguments(config, resume=resume, dry_run=dry_run)
        train.train(arguments, processes or Processes(), torch.device("cpu"))
        return made[-1]

    return go


def only_run(root: Path) -> Path:
    (run,) = root.glob("tiny-*")
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def planned(**changes: Any) -> TranslationConfig:
    return replace(CONFIG, training=replace(CONFIG.training, **changes))


def test_weights_and_dropout_are_of_the_seed(go: Go) -> None:
    drawn = [go(planned(max_steps=1, seed=seed)) for seed in (1, 1, 2)]
    first, again, other = (list(each.net.parameters()) for each in drawn)
    assert same(first, again, set())
    assert not first[0].equal(other[0])
    assert [each.plan.seed for each in drawn] == [1, 1, 2]


def test_the_best_weights_are_the_average_that_was_validated(go: Go, tmp_path: Path) -> None:
    trainer = go(replace(CONFIG, optimizer=replace(FAST, ema_decay=0.9)))
    best = read_weights(only_run(tmp_path) / "model.safetensors")
    average = trainer.state()["optimizer"]["average"]["average"]
    assert all(best[name].equal(mean) for name, mean in average.items())
    assert not best[MATRIX].equal(trainer.net.get_parameter(MATRIX))


def test_what_is_said_anew_when_a_run_goes_on_holds_for_the_next_time(go: Go, tmp_path: Path) -> None:
    go()
    go(planned(max_steps=6), resume=only_run(tmp_path))
    assert TranslationConfig.load(only_run(tmp_path) / "config.yaml").training.max_steps == 6


def test_a_run_that_is_being_trained_is_left_alone(go: Go, tmp_path: Path) -> None:
    go()
    run = only_run(tmp_path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with run_folder.trained_alone(run), pytest.raises(ValueError, match="is being trained by another process"):
        go(planned(max_steps=6), resume=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_no_other_process_can_train_a_run_from_before_its_state_is_read(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go()
    run, read = only_run(tmp_path), []

    class Trying(CheckpointStore):
        def load(self, *given: Any) -> dict[str, Any]:
            with pytest.raises(ValueError, match="is being trained by another process"):
                run_folder.trained_alone(run).__enter__()
            read.append(run)
            return super().load(*given)

    monkeypatch.setattr(train, "CheckpointStore", Trying)
    go(planned(max_steps=6), resume=run)
    assert read == [run]


def test_a_run_that_is_being_trained_can_be_rehearsed(go: Go, tmp_path: Path) -> None:
    go()
    with run_folder.trained_alone(only_run(tmp_path)):
        go(planned(max_steps=6), resume=only_run(tmp_path), dry_run=True)


def test_it_is_said_when_the_rest_of_an_epoch_is_split_into_other_batches(
    go: Go, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(planned(max_steps=3))
    run, told = only_run(tmp_path), "The text is split into other batches than before"
    go(planned(max_steps=4), resume=run)
    assert told not in capsys.readouterr().out
    other = replace(CONFIG.batch, tokens_per_batch=CONFIG.batch.tokens_per_batch // 2)
    go(replace(planned(max_steps=5), batch=other), resume=run)
    assert told in capsys.readouterr().out


def test_drafts_that_killed_preparations_left_anywhere_in_the_corpora_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "cache"):
        folder.mkdir(exist_ok=True)
        (folder / f".files-1.{os.getpid()}.part").mkdir()
    monkeypatch.setattr(train, "CORPUS", tmp_path)
    monkeypatch.setattr(train, "TranslationTask", lambda *_: None)
    train.prepare(CONFIG, None, print)
    assert names(tmp_path) == ["cache"]
    assert not names(tmp_path / "cache")


def test_the_curves_of_a_run_that_goes_on_are_whole(go: Go, tmp_path: Path) -> None:
    go()
    go(planned(max_steps=6), resume=only_run(tmp_path))
    events = EventAccumulator(str(only_run(tmp_path)))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]


def test_weights_of_steps_that_were_lost_go_with_them(go: Go, tmp_path: Path) -> None:
    kept = CheckpointConfig(keep_best=9)
    go(replace(CONFIG, checkpoint=kept))
    run = only_run(tmp_path)
    (run / "checkpoints" / "step-00000004.pt").unlink()
    go(replace(planned(max_steps=3), checkpoint=kept), resume=run)
    assert names(run / "weights") == ["step-00000002.safetensors", "step-00000003.safetensors"]


def test_a_damaged_checkpoint_is_not_counted_among_those_that_stay(go: Go, tmp_path: Path) -> None:
    go()
    run = only_run(tmp_path)
    (run / "checkpoints" / "step-00000004.pt").write_bytes(b"")
    go(planned(max_steps=3), resume=run)
    assert names(run / "checkpoints") == ["step-00000002.pt", "step-00000003.pt"]


def test_the_last_weights_are_averaged_at_the_end(go: Go, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(replace(CONFIG, checkpoint=CheckpointConfig(average_last=2)))
    assert "Average of the weights of the last 2 validations: dev bleu 3.00 against 2.00" in capsys.readouterr().out
    run = only_run(tmp_path)
    first, second = (read_weights(run / "weights" / f"step-0000000{step}.safetensors") for step in (2, 4))
    best = read_weights(run / "model.safetensors")
    torch.testing.assert_close(best[MATRIX], (first[MATRIX] + second[MATRIX]) / 2)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_batch_that_does_not_fit_is_explained(go: Go, dry_run: bool) -> None:
    def greedy(*_: object) -> Loss:
        raise MemoryError

    with pytest.raises(ValueError, match=r"^out of memory at a batch of .*lower --batch"):
        go(objective=greedy, dry_run=dry_run)


def test_a_dry_run_of_two_processes_makes_updates_of_as_many_batches_as_each_learns_from(go: Go) -> None:
    shared = replace(CONFIG, batch=replace(CONFIG.batch, accumulate=2))
    rehearsed, trained = (go(shared, processes=Lonely(), dry_run=dry_run) for dry_run in (True, False))
    assert set(rehearsed.update_sizes) == set(trained.update_sizes) == {1}


def test_the_precision_asked_for_is_that_of_products_and_of_the_scale_of_losses(go: Go) -> None:
    trainer = go(planned(max_steps=1, precision="fp16"))
    assert trainer.plan.precision == "fp16"
    assert trainer.optimizer.loss_scale > 1


def test_blocks_are_compiled_where_that_is_asked_for(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(train, "compile_blocks", compiled.append)
    go(planned(max_steps=1))
    assert not compiled
    trainer = go(planned(max_steps=1, compile=True))
    assert compiled == [trainer.net]


def test_what_a_validation_has_freed_is_given_back(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[str] = []
    monkeypatch.setattr(train, "return_freed_memory", lambda: returned.append("memory"))
    go()
    assert len(returned) == 2  # validations


def test_who_trains_a_large_network_on_a_cpu_is_told(
    go: Go, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(planned(max_steps=1))
    assert "takes days on a CPU" not in capsys.readouterr().out
    monkeypatch.setattr(train, "LARGE_FOR_A_CPU", 100)
    go(planned(max_steps=1))
    assert "days on a CPU. Presets made for CPUs: --config kftt_ja_en_small" in capsys.readouterr().out


def test_main_readies_the_machine_and_refuses_what_the_device_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("own_commit", "keep_freed_memory", "keep_compiled_kernels", "train"):
        monkeypatch.setattr(train, name, lambda *_, name=name: done.append(name))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    on_a_cpu = ["train.py", "--training.device", "cpu"]
    monkeypatch.setattr(sys, "argv", on_a_cpu)
    train.main()
    assert done == ["own_commit", "keep_freed_memory", "keep_compiled_kernels", "train"]
    monkeypatch.setattr(sys, "argv", [*on_a_cpu, "--training.precision", "fp16"])
    with pytest.raises(ValueError, match=r"^precision=fp16 needs CUDA"):
        train.main()
    assert done.count("train") == 1


def test_what_is_about_to_be_trained_is_described_as_it_is() -> None:
    sampler = BucketSampler(pairs(), 60, max_tokens=6)
    epoch = sampler.epoch(0)
    trainer = new_trainer()
    precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    for precision in precisions:
        trainer.plan = replace(trainer.plan, precision=precision)
        config = replace(CONFIG, batch=BatchConfig(max_tokens=6))
        text = train.describe(trainer, epoch, 1234, config, {"source": 4321, "target": 4321})
        n_parameters = sum(p.numel() for p in trainer.net.parameters())
        assert f"{n_parameters:,} parameters on cpu in {precision}; a vocabulary of 4,321 tokens; 1,234 updates" in text
        assert f"padding {epoch.padding:.1%}, {len(pairs().src) - epoch_size(epoch):,} pairs longer than 6" in text
    assert epoch_size(epoch) < len(pairs().src)


def test_two_vocabularies_are_described_as_two() -> None:
    sizes = {"source": 1234, "target": 567}
    assert train.vocabulary(LanguageConfig(), sizes) == "a vocabulary of 1,234 tokens"
    apart = replace(CONFIG, tokenizer=replace(CONFIG.tokenizer, joint=False))
    assert train.vocabulary(apart, sizes) == "vocabularies of 1,234 source and 567 target tokens"


def epoch_size(epoch: Epoch) -> int:
    return sum(len(epoch[i].src) for i in range(len(epoch)))


@pytest.mark.parametrize(("seed", "kept"), [(1, True), (2, False)])
def test_what_is_remembered_belongs_to_the_streams_that_the_text_is_cut_into(seed: int, kept: bool) -> None:
    config = LanguageConfig()
    task: Any = SimpleNamespace(config=config, sizes={"source": VOCAB}, fingerprint="a text")
    saved = train.architecture(task)
    task.config = replace(config, training=replace(config.training, seed=seed))
    trainer: Any = SimpleNamespace(device=None, memories={0: "what was read"}, progress=Progress(step=4, position=3))
    trainer.restore = lambda _: None
    checkpoints: Any = SimpleNamespace(load=lambda *_: saved)
    train.go_on(trainer, checkpoints, task, print)
    assert (trainer.memories, trainer.progress.position) == (({0: "what was read"}, 3) if kept else ({}, 0))


@pytest.mark.parametrize("saved", ["a text", "another", None])
def test_a_text_that_has_changed_is_announced(saved: str | None) -> None:
    task: Any = SimpleNamespace(config=LanguageConfig(), sizes={"source": VOCAB}, fingerprint="a text")
    state = train.architecture(task)
    if saved is None:  # a checkpoint from before fingerprints were kept
        del state["streams"]["text"]
    else:
        state["streams"]["text"] = saved
    trainer: Any = SimpleNamespace(device=None, memories={0: "what was read"}, progress=Progress(step=4, position=3))
    trainer.restore = lambda _: None
    checkpoints: Any = SimpleNamespace(load=lambda *_: state)
    said: list[str] = []
    train.go_on(trainer, checkpoints, task, said.append)
    changed = [line for line in said if line.startswith("The training, dev or test text has changed since")]
    assert len(changed) == (saved == "another")
    assert trainer.memories == ({} if saved == "another" else {0: "what was read"})


def test_a_training_that_has_ended_says_how_to_go_on(
    go: Go, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go()
    said = "This training has reached its end: raise --training.max_steps"
    assert said not in capsys.readouterr().out
    go(resume=only_run(tmp_path))
    assert said in capsys.readouterr().out
