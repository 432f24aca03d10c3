"""Train: `python train.py [--config const/preset/NAME.yaml] [--GROUP.KEY VALUE ...] [--resume [RUN]]`."""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from const.path import CORPUS
from utils import run as run_folder
from utils.above_bars import print_above_bars
from utils.command_line import INTERRUPTED, run_command
from utils.conclusion import Judge, try_average
from utils.config import AnyConfig, ClassificationConfig, Config, LanguageConfig, MaskedLanguageConfig
from utils.dataset.prefetch import prefetched
from utils.dataset.training_data import AnyBatch, AnyEpoch, BatchSettings, Sampler
from utils.device import (
    Precision,
    autocast,
    inference_dtype,
    keep_compiled_kernels,
    keep_freed_memory,
    pick_device,
    product_dtype,
    return_freed_memory,
)
from utils.file import sweep_drafts
from utils.provenance import own_commit
from utils.task.arguments import Arguments, read_arguments
from utils.task.classification import ClassificationTask
from utils.task.language import LanguageTask
from utils.task.masked_language import MaskedLanguageTask
from utils.task.task import Task
from utils.task.translation import TranslationTask
from utils.training.checkpoint import FORMAT, difference
from utils.training.checkpoint_keeper import CheckpointKeeper
from utils.training.checkpoint_store import CheckpointStore
from utils.training.compiled import compile_blocks
from utils.training.distributed import Processes, joined_processes, own_device
from utils.training.guarded_optimizer import GuardedOptimizer
from utils.training.interrupt import Interrupt, graceful_interrupt
from utils.training.jsonl_log import LOG, JsonlLog
from utils.training.memory import explained_out_of_memory
from utils.training.meter import Meter
from utils.training.objective import Loss, Objective, mean_loss
from utils.training.observer import Observer
from utils.training.plan import PlanConfig, Progress
from utils.training.rehearsal import rehearse
from utils.training.tensor_board_log import TensorBoardLog
from utils.training.terminal import Terminal
from utils.training.trace import Tracer
from utils.training.validation import Validation
from utils.training.weight_store import WeightStore
from utils.visualize.curve import CurvePicture

LARGE_FOR_A_CPU = 20_000_000  # parameters


class Update(NamedTuple):
    """What an update went by, over all processes."""

    nats: Tensor  # summed loss
    tokens: Tensor  # that it was summed over
    norm: Tensor  # of the mean gradient before clipping; where it is not finite, no weight has moved


class Trainer:
    """Moves a network towards an objective. It knows tensors and time, and no files, texts or scores.

    Args:
        net: the network, already on its device.
        objective: what to minimise.
        optimizer: how steps are made.
        precision: of matrix products.
        seed: of dropout; each draw is a function of it, the step and the batch, whichever process makes it.
        processes: those that train together.
    """

    def __init__(
        self,
        net: nn.Module,
        objective: Objective,
        optimizer: GuardedOptimizer,
        precision: Precision = "auto",
        seed: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.net = net
        self.objective = objective
        self.optimizer = optimizer
        self.precision = precision
        self.seed = seed
        self.processes = processes or Processes()
        self.device = next(net.parameters()).device
        self.progress = Progress()
        self.meter = Meter(self.progress)
        self.memories: dict[int, Any] = {}  # by place in an update: what the batch there must know of the one before

    def loss_fn(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Summed nats of a batch, differentiable, the number of its target tokens, and what the next one must know."""
        with autocast(self.device, self.precision):
            return self.objective(self.net, batch.to(self.device), memory)

    def train_step(self, micro_batches: Iterable[AnyBatch]) -> Update:
        """One update from all these batches, and those of the other processes, as if they were one."""
        self.net.train()
        self.optimizer.zero_grad()
        nats, tokens = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for i, batch in enumerate(micro_batches):
            place = i * self.processes.size + self.processes.rank
            self._seed(place)
            with record_function("forward"):
                loss = self.loss_fn(batch, self.memories.get(place))
            with record_function("backward"):
                (loss.nats * self.optimizer.loss_scale).backward()
            nats, tokens = nats + loss.nats.detach(), tokens + loss.tokens
            if loss.memory is not None:
                self.memories[place] = loss.memory
        with record_function("optimizer"):
            if self.processes.size > 1:
                self.optimizer.missing_gradients()
                self.processes.add_up([*self.optimizer.gradients(), nats, tokens])
            norm = self.optimizer.step(self.progress.step + 1, tokens)
        return Update(nats, tokens, norm)

    def _seed(self, place: int) -> None:
        """Before the batch at this place of an update: what is drawn now, a resumed training draws again."""
        sequence = np.random.SeedSequence((self.seed, self.progress.step, place))
        torch.manual_seed(int(sequence.generate_state(1)[0]))

    @torch.no_grad()
    def val_step(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Of a batch that is not learned from."""
        self.net.eval()
        return self.loss_fn(batch, memory)

    def fit(
        self,
        sampler: Sampler,
        batch: BatchSettings,
        dev: Sequence[AnyBatch],
        judge: Judge,
        plan: PlanConfig,
        observers: Sequence[Observer],
        interrupt: Interrupt,
        after_update: Callable[[], None] | None = None,
    ) -> None:
        """Train until the plan ends or somebody interrupts; goes on from where `progress` stands.

        Args:
            sampler: cuts the training text into batches.
            batch: how many of them are an update.
            dev: text to validate on.
            judge: translates and scores it, given its loss.
            plan: bounds, and when to validate.
            observers: are told what happens; only those of the first process.
            interrupt: is asked after each update.
            after_update: is called then, too.

        Raises:
            ValueError: too many gradients in a row were not finite, or the memory does not hold a batch.
        """
        progress = self.progress
        self.meter.restart_clock()
        while not self._is_over(plan, interrupt):
            epoch = sampler.epoch(progress.epoch)
            updates = cut_into_updates(len(epoch), batch.accumulate)
            if progress.position >= len(updates):  # it was resumed with larger batches
                progress.epoch, progress.position = progress.epoch + 1, 0
                continue
            if progress.position == 0:
                self.memories.clear()
            with closing(self._micro_batches(epoch, updates[progress.position :])) as prepared:
                for n_tokens, micro_batches in prepared:
                    with explained_out_of_memory(micro_batches, batch):
                        update = self.train_step(micro_batches)
                    self.meter.count(n_tokens, micro_batches, *update)
                    if progress.position == len(updates):
                        progress.epoch, progress.position = progress.epoch + 1, 0
                    if progress.step % plan.report_every == 0:
                        self._report(plan, observers)
                    if after_update is not None:
                        after_update()
                    if self.processes.any(progress.ended(plan)) or progress.step % plan.validate_every == 0:
                        self._validate(dev, judge, plan, observers)
                    if self._is_over(plan, interrupt):
                        break
            del epoch  # before the next one is made: each may take gigabytes
        self._memories_to_first()

    def _is_over(self, plan: PlanConfig, interrupt: Interrupt) -> bool:
        """Whether one of the processes stops; then all do, and know why."""
        if stops := self.processes.any(interrupt.asked):
            interrupt.asked = True  # never False: a signal may have come meanwhile, which the next update hears of
        return stops or self.processes.any(self.progress.ended(plan))

    def _micro_batches(
        self, epoch: AnyEpoch, updates: Sequence[range]
    ) -> Generator[tuple[int, list[AnyBatch]], None, None]:
        """Of each update, the tokens that all processes predict, and the batches that are this one's to learn from."""
        rank, size = self.processes.rank, self.processes.size
        made = ((sum(map(epoch.target_tokens, update)), [epoch[i] for i in update[rank::size]]) for update in updates)
        with closing(prefetched(made, pin=self.device.type == "cuda")) as prepared:
            for _ in updates:
                with record_function("data"):
                    update = next(prepared)
                yield update

    def _report(self, plan: PlanConfig, observers: Sequence[Observer]) -> None:
        report = self.meter.report(self.optimizer)
        for observer in observers:
            observer.on_step(self.progress, report)
        if (in_a_row := int(self.optimizer.skipped_in_a_row)) >= plan.max_skipped:
            raise ValueError(
                f"the gradient of {in_a_row} updates in a row, up to step {self.progress.step}, was not finite: lower "
                f"--optimizer.peak_lr (now {self.optimizer.config.peak_lr}), lengthen --optimizer.warmup_steps, or "
                f"train with --training.precision fp32; weights before that are as last saved"
            )

    def _validate(self, dev: Sequence[AnyBatch], judge: Judge, plan: PlanConfig, observers: Sequence[Observer]) -> None:
        begin, progress = time.monotonic(), self.progress
        self._memories_to_first()
        with self.optimizer.averaged():
            validation = self.test(dev, judge) if self.processes.is_first else None
        validation = self.processes.from_first(validation)
        progress.note(validation.score(plan.select_by))
        progress.seconds += time.monotonic() - begin
        for observer in observers:
            observer.on_validation(progress, validation)
        return_freed_memory()
        self.meter.restart_clock()

    def _memories_to_first(self) -> None:
        """The first process saves what all remember, of their own places."""
        rank, size = self.processes.rank, self.processes.size
        own = {place: memory for place, memory in self.memories.items() if place % size == rank}
        self.memories |= self.processes.to_first(own)

    def test(self, batches: Iterable[AnyBatch], judge: Judge) -> Validation:
        """Loss of some batches with the weights that the network has, and the scores that `judge` gives."""
        return judge(mean_loss(self.val_step, batches))

    def state(self) -> dict[str, Any]:
        """All that going on from here needs: tensors and plain values. What is random follows from seed and step."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "meter": self.meter.state_dict(),
            "memories": {place: tuple(memory) for place, memory in self.memories.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.meter = Meter(self.progress)
        self.meter.load_state_dict(state["meter"])
        self.memories = state["memories"]


def cut_into_updates(n_batches: int, accumulate: int) -> list[range]:
    """The places of an epoch's batches, so many to an update; the last one may have fewer."""
    return [range(i, min(i + accumulate, n_batches)) for i in range(0, n_batches, accumulate)]


def describe(trainer: Trainer, epoch: AnyEpoch, n_updates: int, config: AnyConfig) -> str:
    """What is about to be trained, on what."""
    n_parameters = sum(p.numel() for p in trainer.net.parameters())
    dtype = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    together = f" by {trainer.processes.size} processes" if trainer.processes.size > 1 else ""
    text = (
        f"{n_parameters:,} parameters on {trainer.device}{together} in "
        f"{dtype[product_dtype(trainer.device, trainer.precision)]}; "
        f"{n_updates:,} updates an epoch, padding {epoch.padding:.1%}"
    )
    if isinstance(config, Config):
        text += f", {epoch.n_dropped:,} pairs longer than {config.batch.max_tokens} tokens left out"
    if trainer.device.type == "cpu" and n_parameters > LARGE_FOR_A_CPU:
        text += (
            "\nNo CUDA here: a model of this size takes days on a CPU. Made for one: "
            "--config const/preset/kftt_ja_en_small.yaml (hours) and const/preset/demo.yaml (minutes)."
        )
    return text


def architecture(task: Task) -> dict[str, Any]:
    """What a checkpoint must say of its network to fit that of a task, and how the text was cut."""
    config = task.config
    streams = {"batch": asdict(config.batch), "seed": config.training.seed}
    return {
        "format": FORMAT,
        "task": config.task,
        "model": config.model.architecture(),
        "vocabulary": task.sizes,
        "streams": streams,
    }


def go_on(trainer: Trainer, checkpoints: CheckpointStore, task: Task, say: Callable[[str], None]) -> None:
    """Put a trainer where the newest whole checkpoint stands; an option that is newer than that had its default then.

    Raises:
        ValueError: there is none, or it is of another architecture.
    """
    state, wanted = checkpoints.load(trainer.device, say), architecture(task)
    state["model"] = type(task.config.model)().architecture() | state.get("model", {})
    if differs := difference(state, {name: value for name, value in wanted.items() if name != "streams"}):
        raise ValueError(f"the run cannot be gone on with: {differs}")
    trainer.restore(state)
    say(f"Going on from step {trainer.progress.step:,}")
    if trainer.memories and state["streams"] != wanted["streams"]:
        trainer.memories, trainer.progress.position = {}, 0
        say("The text is cut into other streams than before: the epoch begins anew, with nothing to remember")


def begin_with(net: nn.Module, source: Path, config: AnyConfig, say: Callable[[str], None]) -> None:
    """Give a network the best weights of a run of the same task.

    Raises:
        ValueError: it has none, or they are of another architecture.
    """
    theirs = run_folder.read_config(source, type(config)).model.architecture()
    if differs := difference({"model": theirs}, {"model": config.model.architecture()}):
        raise ValueError(f"the weights of {source} cannot be begun with: {differs}")
    run_folder.load_weights(net, source)
    say(f"Beginning with the weights of {source}")


def prepare(config: AnyConfig, source: Path | None, say: Callable[[str], None]) -> Task:
    """Have what the settings ask for at hand, with the vocabulary of a run where there is one to go on from."""
    sweep_drafts(CORPUS)  # of preparations that were killed
    match config:
        case Config():
            return TranslationTask(config, source, say)
        case MaskedLanguageConfig():
            return MaskedLanguageTask(config, source, say)
        case LanguageConfig():
            return LanguageTask(config, source, say)
        case ClassificationConfig():
            return ClassificationTask(config, source, say)


def train(arguments: Arguments, processes: Processes, device: torch.device) -> None:
    """Train, validate, test; all but the first process only lend a hand."""
    say: Callable[[str], None] = print if processes.is_first else lambda _: None
    accumulate = arguments.config.batch.accumulate
    if accumulate % processes.size:
        raise ValueError(
            f"accumulate={accumulate} batches an update cannot be shared by {processes.size} processes: "
            f"give --batch.accumulate {processes.size} or a multiple of it"
        )
    with processes.first_alone():
        task = prepare(arguments.config, arguments.resume or arguments.init_from, say)
    config, plan = task.config, task.config.training
    torch.manual_seed(plan.seed)
    net = task.build().to(device)
    if arguments.init_from is not None:
        begin_with(net, arguments.init_from, config, say)
    if plan.compile:
        compile_blocks(net)
    schedule = config.optimizer.ending_at(plan.max_steps)
    optimizer = GuardedOptimizer(net, schedule, config.model.d_model, plan.precision, processes)
    trainer = Trainer(net, task.objective, optimizer, plan.precision, plan.seed, processes)
    keep_last = config.checkpoint.keep_last
    checkpoints = None
    if arguments.resume is not None:
        checkpoints = CheckpointStore(arguments.resume / run_folder.CHECKPOINTS, keep_last)
        go_on(trainer, checkpoints, task, say)
    with processes.first_alone():
        epoch = task.sampler.epoch(trainer.progress.epoch)
    n_updates = len(cut_into_updates(len(epoch), accumulate))
    say(describe(trainer, epoch, n_updates, config))
    if arguments.dry_run:
        with explained_out_of_memory([epoch[epoch.largest()]], config.batch):
            rehearse(trainer, epoch, accumulate, say, processes.size)
        return
    del epoch  # as in `fit`
    if not processes.is_first:
        with graceful_interrupt() as interrupt:
            trainer.fit(task.sampler, config.batch, [], _judges_nothing, plan, [], interrupt)
        return
    folder = Path(os.path.relpath(arguments.resume or run_folder.create_run(config, task.vocabulary)))
    with run_folder.trained_alone(folder):
        say(f"Run folder: {folder}")
        if arguments.resume is not None:
            config.save(folder / run_folder.CONFIG)  # what was said anew holds for the next time too
        checkpoints = checkpoints or CheckpointStore(folder / run_folder.CHECKPOINTS, keep_last)
        lead(trainer, task, folder, checkpoints, n_updates, arguments.profile)


def lead(
    trainer: Trainer, task: Task, folder: Path, checkpoints: CheckpointStore, n_updates: int, profile: bool
) -> None:
    """Train as the first process or the only one: validate, show and keep what comes of it, and test.

    Args:
        trainer: where the training begins, or goes on.
        task: what it learns.
        folder: of the run.
        checkpoints: keeps where the training stands.
        n_updates: in a pass over the training text.
        profile: record what takes how long.
    """
    config, plan, kept = task.config, task.config.training, task.config.checkpoint
    dev, judge = task.validation(trainer.net)

    def learned() -> dict[str, Tensor]:
        with trainer.optimizer.averaged():
            return trainer.net.state_dict()

    step = trainer.progress.step
    weights = WeightStore(folder / run_folder.KEPT_WEIGHTS, kept.keep_best, kept.average_last, step)
    keeper = CheckpointKeeper(
        checkpoints,
        weights,
        folder / run_folder.WEIGHTS,
        lambda: architecture(task) | trainer.state(),
        learned,
        plan.select_by,
    )
    observers: list[Observer] = [
        Terminal(plan, n_updates, task.unit, int(trainer.optimizer.skipped)),
        JsonlLog(folder / LOG, step),
        TensorBoardLog(folder, step, (folder / run_folder.CONFIG).read_text(encoding="utf-8")),
        CurvePicture(folder / LOG, folder / run_folder.CURVE),
        keeper,
    ]
    tracer = Tracer(folder / run_folder.TRACE, trainer.device, print_above_bars) if profile else None
    with graceful_interrupt() as interrupt, tracer or nullcontext():
        try:
            after_update = tracer.step if tracer is not None else None
            trainer.fit(task.sampler, config.batch, dev, judge, plan, observers, interrupt, after_update)
        finally:
            for observer in observers:
                observer.close()
    if interrupt.asked:
        keeper.save(trainer.progress.step)
        print(f"\nStopped at step {trainer.progress.step:,}; go on with: python train.py --resume {folder}")
        sys.exit(INTERRUPTED)
    try_average(trainer, weights, folder, plan.select_by, dev, judge, print)
    task.conclude(trainer, folder, print)


def _judges_nothing(loss: float) -> Validation:
    raise AssertionError(f"only the first process validates, and this one has a loss of {loss}")


def main() -> None:
    """Train alone, or with the other processes that torchrun has started."""
    arguments = read_arguments(sys.argv[1:])
    own_commit()  # before hours pass
    device = own_device(pick_device(arguments.config.training.device))
    inference_dtype(device, arguments.config.training.precision)  # refuses what the device cannot do
    keep_freed_memory()
    keep_compiled_kernels()
    with joined_processes(device) as processes:
        train(arguments, processes, device)


if __name__ == "__main__":
    run_command("train.py", main)
