"""Train: `python train.py [--config PRESET] [--GROUP.KEY VALUE ...] [--resume [RUN]]`."""

import sys

from utils.arguments import Arguments, read_arguments
from utils.command import INTERRUPTED, Log, confirm, duration, print_above_bars, run_command, typed_command

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:
    run_command("train.py", lambda: read_arguments(sys.argv[1:]))  # before torch, which takes seconds to import

import math
import shlex
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from config.training import TrainingConfig
from const.path import CORPUS, PICKLES
from utils import run as run_folder
from utils.dataset.batch import AnyBatch, BatchSettings, Epoch, Sampler, prefetched
from utils.device import autocast, compile_blocks, keep_compiled_kernels, pick_device
from utils.file import from_here, require_writable, sweep_drafts
from utils.load import load_weights
from utils.memory import keep_freed_memory
from utils.task.task import Task, describe, init_from, prepare, settle_precision, write_scores
from utils.training.checkpoint import CheckpointKeeper, CheckpointStore, WeightStore
from utils.training.distributed import Interrupt, Processes, graceful_interrupt, joined_processes, own_device
from utils.training.dry_run import FreedMemory, Tracer, dry_run, explained_out_of_memory
from utils.training.graph import GraphedPasses
from utils.training.loss import Loss, Objective, mean_loss, require_true_gradients
from utils.training.optimizer import Optimizer
from utils.training.report import (
    LOG,
    Decoration,
    JsonlLog,
    Meter,
    Observer,
    TensorBoardLog,
    Terminal,
    Validate,
    Validation,
)
from utils.training.schedule import Progress, total_steps
from utils.visualize.curve import CurvePicture

LONG_FOR_A_CPU = 2e15  # parameters times positions to learn from: some ten hours on two cores


class Trainer:
    """Trains a network to minimise an objective. It deals with tensors and time, not with files, texts or scores.

    The seed of its settings is also that of dropout; the network is on its device already.
    """

    def __init__(
        self,
        net: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        training: TrainingConfig,
        processes: Processes | None = None,
    ) -> None:
        self.net = net
        self.objective = objective
        self.optimizer = optimizer
        self.training = training
        self.processes = processes or Processes()
        self.device = next(net.parameters()).device
        self.progress = Progress()
        self.meter = Meter()
        self.memories: dict[int, Any] = {}  # of a Transformer-XL, by place in an update: memory of the batch before
        self.graphed = training.graphs and self.device.type == "cuda"
        self.passes: Callable[[AnyBatch, Any], Loss] = self._passes
        if self.graphed:
            self.passes = GraphedPasses(self._passes, optimizer.fill_missing_gradients, rehearsed=training.compile)
        self._lap_began = 0.0  # by the clock

    def loss_fn(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Return a batch's summed nats, differentiable, its number of target tokens, and memory for the next one."""
        with autocast(self.device, self.training.precision):
            return self.objective(self.net, batch.to(self.device), memory)

    def train_step(self, micro_batches: Iterable[AnyBatch]) -> tuple[Loss, Tensor]:
        """Make one update from all these batches and those of the other processes, as if they were one batch.

        Return their loss and the norm of the mean gradient before clipping; if it is not finite, no weight has moved.
        """
        self.net.train()
        self.optimizer.zero_grad(keep=self.graphed)
        total = Loss(*torch.zeros(3, device=self.device))
        for i, batch in enumerate(micro_batches):
            place = i * self.processes.size + self.processes.rank
            self._seed(place)
            loss = self.passes(batch, self.memories.get(place))
            if loss.memory is not None:
                self.memories[place] = loss.memory
            total = total.plus(loss)
        with record_function("optimizer"):
            if self.processes.size > 1:
                self.optimizer.fill_missing_gradients()
                self.processes.all_reduce([*self.optimizer.gradients(), *total[:3]])
            time_spent = self.progress.time_spent(self.training)
            norm = self.optimizer.step(self.progress.step + 1, total.tokens, time_spent)
        return total, norm

    def _passes(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Add the gradients of a batch to those that are there, and return its loss."""
        with record_function("forward"):
            loss = self.loss_fn(batch, memory)
        with record_function("backward"):
            (loss.nats * self.optimizer.loss_scale).backward()
        return loss._replace(nats=loss.nats.detach())

    def _seed(self, place: int) -> None:
        """Make all draws of a batch a function of seed, step and place in the update, whichever process makes them."""
        sequence = np.random.SeedSequence((self.training.seed, self.progress.step, place))
        torch.manual_seed(int(sequence.generate_state(1)[0]))

    @torch.no_grad()
    def val_step(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Return the loss of a held-out batch, of a shape that is not worth compiling for."""
        self.net.eval()
        with torch.compiler.set_stance("force_eager"):
            return self.loss_fn(batch, memory)

    def fit(
        self,
        sampler: Sampler[Any],
        batching: BatchSettings,
        dev: Sequence[AnyBatch] = (),
        validate: Validate = Validation,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
    ) -> None:
        """Train until a limit is reached or the user interrupts, starting from where `progress` stands.

        The first process alone is given a text to validate on, and what scores it.
        """
        progress, training, interrupt = self.progress, self.training, interrupt or Interrupt()
        self._lap()
        if progress.lacks_validation(training):
            self._validate(dev, validate, observers)
        while not self._is_over(interrupt):
            epoch = sampler.epoch(progress.epoch)
            updates = split_into_updates(len(epoch), batching.accumulate)
            if progress.position >= len(updates):  # resumed with more batches per update
                progress.epoch, progress.position = progress.epoch + 1, 0
                continue
            if progress.position == 0:
                self.memories.clear()
            with closing(self._micro_batches(epoch, updates[progress.position :])) as prepared:
                for n_tokens, micro_batches in prepared:
                    with explained_out_of_memory(micro_batches, batching):
                        loss, norm = self.train_step(micro_batches)
                    seconds = self._lap()
                    progress.advance(n_tokens, seconds, len(updates))
                    self.meter.count(loss, norm, micro_batches, n_tokens, seconds)
                    if progress.step % training.report_every == 0:
                        self._report(norm, observers)
                    for observer in observers:
                        observer.on_update()
                    is_over = self._is_over(interrupt)
                    if progress.lacks_validation(training):
                        self._validate(dev, validate, observers)
                        is_over = self._is_over(interrupt)
                    if is_over:
                        break
            del epoch  # before the next one is made: each may take gigabytes
        self._gather_memories()

    def _lap(self) -> float:
        """Return the seconds since the last call."""
        begin, self._lap_began = self._lap_began, time.monotonic()
        return self._lap_began - begin

    def _is_over(self, interrupt: Interrupt) -> bool:
        """Return whether a limit is reached or a stop was requested, in any process: all stop together.

        They also agree on the time that has passed, which a learning rate may depend on.
        """
        progress = self.progress
        progress.seconds, ended, asked = self.processes.highest(
            progress.seconds, progress.ended(self.training), interrupt.asked
        )
        if asked:
            interrupt.asked = True  # never set to False: a signal may have arrived meanwhile
        return bool(ended or asked)

    def _micro_batches(
        self, epoch: Epoch, updates: Sequence[range]
    ) -> Generator[tuple[int, list[AnyBatch]], None, None]:
        """Yield for each update the number of target tokens of all processes, and the batches of this one."""
        rank, size = self.processes.rank, self.processes.size
        made = ((sum(map(epoch.target_tokens, update)), [epoch[i] for i in update[rank::size]]) for update in updates)
        with closing(prefetched(made, pin=self.device.type == "cuda")) as prepared:
            for _ in updates:
                with record_function("data"):
                    update = next(prepared)
                yield update

    def _report(self, norm: Tensor, observers: Sequence[Observer]) -> None:
        report = self.meter.report(self.progress, self.optimizer, norm)
        for observer in observers:
            observer.on_step(self.progress, report)
        if (in_a_row := int(self.optimizer.skipped_in_a_row)) >= self.training.max_skipped:
            raise ValueError(
                f"the gradient of {in_a_row} updates in a row, up to step {self.progress.step}, was not finite: lower "
                f"--optimizer.peak_lr (now {self.optimizer.config.peak_lr}), lengthen --optimizer.warmup_steps, or "
                f"train with --training.precision fp32; weights from before are as last saved"
            )

    def _validate(self, dev: Sequence[AnyBatch], validate: Validate, observers: Sequence[Observer]) -> None:
        progress = self.progress
        self._lap()
        self._gather_memories()
        with self.optimizer.averaged():
            validation = self.test(dev, validate) if self.processes.is_first else None
        validation = self.processes.broadcast(validation)._replace(train_loss=self.meter.train_loss())
        progress.seconds, progress.validated = progress.seconds + self._lap(), progress.step
        if progress.is_scheduled(self.training):  # now that the time may be over: no other validation would follow
            progress.note(validation.rank(self.training.select_by))
        for observer in observers:
            observer.on_validation(progress, validation)
        self._lap()

    def _gather_memories(self) -> None:
        """Collect the memories of all processes at the first, which saves them."""
        rank, size = self.processes.rank, self.processes.size
        own = {p: m for p, m in self.memories.items() if p % size == rank}
        self.memories |= self.processes.gather(own, self.device)

    def test(self, batches: Iterable[AnyBatch], validate: Validate) -> Validation:
        """Score any text, dev or test, with the present weights: its loss, and what `validate` makes of it."""
        return validate(mean_loss(self.val_step, batches))

    def state(self) -> dict[str, Any]:
        """Return all that is needed to resume: tensors and plain values. Randomness follows from seed and step."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "meter": dict(vars(self.meter)),
            "memories": {place: tuple(memory) for place, memory in self.memories.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a `state`."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        # NaN: a checkpoint from before the NLL was summed does not have that of the report it is in the middle of
        self.meter = Meter(**{"nll": math.nan} | state["meter"])
        self.memories = state["memories"]


def split_into_updates(n_batches: int, accumulate: int) -> list[range]:
    """Split the batches of an epoch, by index, into updates of `accumulate` batches; the last may have fewer."""
    return [range(i, min(i + accumulate, n_batches)) for i in range(0, n_batches, accumulate)]


def resume(trainer: Trainer, checkpoints: CheckpointStore, task: Task, log: Log) -> None:
    """Resume from the newest intact checkpoint; options that are newer than it are taken to have had their defaults."""
    state, wanted = checkpoints.load(trainer.device, log), task.checked_on_resume()
    task.refuse_other(state)
    trainer.restore(state)
    log(f"Resuming from step {trainer.progress.step:,}")
    streams, text = state["streams"], task.fingerprint
    streams["batch"] = asdict(type(task.config.batch)()) | streams["batch"]
    if streams.setdefault("text", text) != text:
        log("The training, dev or test text has changed since")
    if state.get("scoring", task.scoring) != task.scoring:
        trainer.progress.forget_scores()
        log("Scores on dev do not compare with those from before: the best weights are now sought anew")
    if streams != wanted["streams"]:
        if trainer.memories:
            trainer.memories, trainer.progress.position = {}, 0
            log("The text is split into other streams than before: the epoch starts over, with an empty memory")
        elif trainer.progress.position and streams["text"] != text:
            trainer.progress.position = 0
            log("This epoch starts over, with the new text")
        elif trainer.progress.position:
            log("The text is split into other batches than before: parts of this epoch may come twice, or not at all")


def new_trainer(task: Task, source: Path | None, processes: Processes, device: torch.device, log: Log) -> Trainer:
    """Build the network of a task, initialised from another run if there is one, and what trains it."""
    config, training = task.config, task.config.training
    torch.manual_seed(training.seed)
    net = task.build().to(device)
    if source is not None:
        init_from(net, source, task, log)
    if training.compile:
        compile_blocks(net)
    require_true_gradients()
    schedule = config.optimizer.ending_at(training.max_steps, training.max_minutes)
    return Trainer(net, task.objective, Optimizer(net, schedule, training.precision), training, processes)


def long_for_a_cpu(trainer: Trainer, epoch: Epoch, n_updates: int) -> str:
    """Say how long a training takes on this CPU and what to use instead, or nothing if it is short or on a GPU.

    The time is estimated from a forward and a backward pass of the largest batch, which change no weight; an epoch has
    `n_updates`.
    """
    training, positions, total = trainer.training, epoch.positions, total_steps(trainer.training, n_updates)
    left = 0 if total is None else total - trainer.progress.step
    n_positions = left / n_updates * int(positions.sum())
    work = n_positions * sum(p.numel() for p in trainer.net.parameters())
    if trainer.device.type != "cpu" or training.max_minutes is not None or work <= LONG_FOR_A_CPU:
        return ""
    batch = epoch[epoch.largest()]
    for _ in range(2):  # the first allocates and compiles
        begin = time.monotonic()
        trainer.loss_fn(batch).nats.backward()  # train_step will discard the gradient
        took = time.monotonic() - begin
    seconds = took * n_positions / int(positions.max()) / trainer.processes.size
    return (
        f"No CUDA here: this training takes about {duration(seconds)} on this CPU, validations not included. "
        "Made for a CPU: --config kftt_ja_en_small (hours), or `make demo` (minutes)"
    )


def train(arguments: Arguments, processes: Processes, device: torch.device) -> None:
    """Train, validate and test; processes other than the first only take part in the training."""
    log: Log = print if processes.is_first else lambda _: None
    accumulate, resumed = arguments.config.batch.accumulate, arguments.resume
    if arguments.notice:
        log(arguments.notice)
    if accumulate % processes.size:
        remedy = f"give --batch.accumulate {processes.size} or a multiple of it"
        raise ValueError(f"accumulate={accumulate} batches cannot be shared by {processes.size} processes: {remedy}")
    if processes.is_first:
        require_writable(CORPUS, "set MIYAKO_CORPUS to another folder")
        if not arguments.dry_run:
            require_writable(resumed or PICKLES, "set MIYAKO_PICKLES to another folder")
    with ExitStack() as locks:
        if resumed is not None and processes.is_first and not arguments.dry_run:
            locks.enter_context(run_folder.trained_alone(resumed))  # what is read now is what is resumed from
        with processes.first_alone():
            sweep_drafts(CORPUS)  # left by preparations that were killed
            run = resumed or arguments.init_from or arguments.branch
            task = prepare(arguments.config, None if arguments.new_vocabulary else run, log)
        settle_precision(task, device, resumed is not None, processes, log)
        config, origin = task.config, resumed or arguments.branch  # origin: whose checkpoint is read, if any is
        trainer = new_trainer(task, arguments.init_from, processes, device, log)
        if origin is not None:
            checkpoints = CheckpointStore(origin / run_folder.CHECKPOINTS, config.checkpoint.keep_last)
            resume(trainer, checkpoints, task, log)
        if resumed is None:
            trainer.progress.forget_scores()  # of the run that --branch started from: its best weights stay there
        elif trainer.progress.ended(config.training):
            log("This training has reached its end: raise --training.max_steps (or what ended it) to train further")
        with processes.first_alone():
            epoch = task.sampler.epoch(trainer.progress.epoch)
        n_updates = len(split_into_updates(len(epoch), accumulate))
        log(describe(task, trainer.net, trainer.optimizer, epoch, n_updates, processes.size))
        with explained_out_of_memory([epoch[epoch.largest()]], config.batch):
            if processes.is_first and (warning := long_for_a_cpu(trainer, epoch, n_updates)):
                log(warning)
                if resumed is None and not arguments.dry_run and processes.size == 1:
                    confirm("Train on this CPU all the same?")
            if arguments.dry_run:
                dry_run(trainer.net, trainer.train_step, epoch, accumulate, log, processes.size)
                return
        del epoch  # as in `fit`
        if not processes.is_first:
            with graceful_interrupt() as interrupt:
                trainer.fit(task.sampler, config.batch, observers=[FreedMemory()], interrupt=interrupt)
            return
        folder = from_here(resumed or run_folder.create_run(config, *task.vocabularies()))
        if resumed is None:
            locks.enter_context(run_folder.trained_alone(folder))
            checkpoints = CheckpointStore(folder / run_folder.CHECKPOINTS, config.checkpoint.keep_last)
        else:
            config.save(folder / run_folder.CONFIG)  # settings that were changed now apply to later resumes, too
        log(f"Run folder: {folder}")
        fit_and_save(trainer, task, folder, checkpoints, n_updates, arguments.profile)


def fit_and_save(
    trainer: Trainer, task: Task, folder: Path, checkpoints: CheckpointStore, n_updates: int, traced: bool
) -> None:
    """Train as the first process or the only one: validate, report, save, and test; an epoch has `n_updates`."""
    training, saving, best = task.config.training, task.config.checkpoint, folder / run_folder.WEIGHTS
    step, (dev, validate) = trainer.progress.step, task.validation(trainer.net)

    def learned() -> dict[str, Tensor]:
        with trainer.optimizer.averaged():
            return trainer.net.state_dict()

    weights = WeightStore(folder / run_folder.KEPT_WEIGHTS, saving.keep_best, saving.average_last, step, task.scoring)
    keeper = CheckpointKeeper(
        checkpoints, weights, best, lambda: task.checked_on_resume() | trainer.state(), learned, training.select_by
    )
    settings = (folder / run_folder.CONFIG).read_text(encoding="utf-8")
    observers = [
        Terminal(training, n_updates, task.unit, int(trainer.optimizer.skipped)),
        JsonlLog(folder / LOG, step),
        *task.observers(trainer.net, trainer.optimizer.averaged, folder, step),  # before what is resumed from is saved
        keeper,
        Decoration("TensorBoard", lambda: TensorBoardLog(folder, step, settings)),
        Decoration("a picture of its curves", lambda: CurvePicture(folder / LOG, folder / run_folder.CURVE)),
        FreedMemory(),
    ]
    if traced:
        trace = folder / run_folder.TRACE
        observers.append(Decoration("a trace", lambda: Tracer(trace, trainer.device, print_above_bars)))
    with graceful_interrupt() as interrupt:
        try:
            trainer.fit(task.sampler, task.config.batch, dev, validate, observers, interrupt)
        finally:
            for observer in observers:
                observer.close()
            # stopped, or a validation failed, with which a resume then begins; not where it would always fail again
            is_sound = not trainer.optimizer.skipped_in_a_row
            if interrupt.asked or (is_sound and trainer.progress.lacks_validation(training)):
                keeper.save(trainer.progress.step)
                command = f"{typed_command('train.py')} --resume {shlex.quote(str(folder))}"
                print(f"\nStopped at step {trainer.progress.step:,}; resume with: {command}")
    if interrupt.asked:
        sys.exit(INTERRUPTED)
    keeper.try_average(trainer.net, lambda: trainer.test(dev, validate), print)
    print("\nTesting the best weights")
    load_weights(trainer.net, folder)
    task.choose_on_dev(trainer.net, folder, print)
    test = trainer.test(*task.validation(trainer.net, "test"))
    write_scores(task, trainer.net, test, trainer.progress, folder)
    print("\n".join([f"test  {test}", *(f"      {signature}" for signature in test.signatures.values())]))
    task.show(trainer.net, folder, test, print)


def main() -> None:
    """Train alone, or together with the other processes that torchrun has started."""
    arguments = read_arguments(sys.argv[1:])
    training = arguments.config.training
    device = own_device(pick_device(training.device, training.precision))
    keep_freed_memory()
    keep_compiled_kernels()
    with joined_processes(device) as processes:
        train(arguments, processes, device)


if __name__ == "__main__":
    run_command("train.py", main)
