"""Train a translator: `python train.py [--config const/preset/NAME.yaml] [--GROUP.KEY VALUE ...] [--resume [RUN]]`."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from const.path import PICKLES, PRESET
from const.token import EOS
from models.transformer import Transformer
from utils import run as run_folder
from utils.command_line import INTERRUPTED, Parser, run_command
from utils.config import Config, add_config, to_config
from utils.dataset.batch import Batch
from utils.dataset.bucket_sampler import BucketSampler
from utils.dataset.corpus import Corpus, prepare_corpus
from utils.dataset.parallel_text import read_parallel
from utils.dataset.token_cache import SPLITS, cached_tokenizers, cached_tokens
from utils.device import Precision, autocast, has_fast_bf16, keep_freed_memory, pick_device
from utils.evaluation.validator import Validator
from utils.file import atomic_file
from utils.text.pair import load_tokenizers
from utils.training.checkpoint import CheckpointKeeper, first_difference, load_checkpoint
from utils.training.interrupt import Interrupt, graceful_interrupt
from utils.training.meter import Meter
from utils.training.objective import Objective, TranslationObjective
from utils.training.observer import JsonlLog, Observer, Sample, TensorBoardLog, Terminal, Validation
from utils.training.optimizer import OptimizerConfig, build_adam, inverse_sqrt
from utils.training.plan import Progress, TrainingConfig
from utils.visualize.attention import cross_attention, draw_cross_attention
from utils.visualize.curve import CurvePicture

LARGE_FOR_A_CPU = 20_000_000  # parameters

# translates and scores a text whose loss is known
Judge = Callable[[float], Validation]


class Trainer:
    """Moves a network towards an objective. It knows tensors and time, and no files, texts or scores.

    Args:
        net: the network, already on its device.
        objective: what to minimise.
        optimizer: how steps are made.
        precision: of matrix products.
    """

    def __init__(
        self, net: nn.Module, objective: Objective, optimizer: OptimizerConfig, precision: Precision = "auto"
    ) -> None:
        self.net = net
        self.objective = objective
        self.config = optimizer
        self.adam = build_adam(net, optimizer)
        self.precision = precision
        self.device = next(net.parameters()).device
        self.progress = Progress()

    def loss_fn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed nats of a batch, differentiable, and the number of its target tokens."""
        with autocast(self.device, self.precision):
            return self.objective(self.net, batch.to(self.device))

    def train_step(self, micro_batches: Iterable[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """One update from all these batches, as if they were one.

        Returns:
            Summed nats, target tokens, and the norm of the mean gradient before clipping.
        """
        self.net.train()
        self.adam.zero_grad()
        nats = tokens = torch.zeros((), device=self.device)
        for batch in micro_batches:
            loss, n = self.loss_fn(batch)
            loss.backward()
            nats, tokens = nats + loss.detach(), tokens + n
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients) / tokens
        # the sum becomes a mean, and no longer than clip_norm, in one pass
        torch._foreach_mul_(gradients, (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0) / tokens)
        for group in self.adam.param_groups:
            group["lr"] = inverse_sqrt(self.progress.step + 1, self.config)
        self.adam.step()
        return nats, tokens, norm

    @torch.no_grad()
    def val_step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed nats and target tokens of a batch that is not learned from."""
        self.net.eval()
        return self.loss_fn(batch)

    def mean_loss(self, batches: Iterable[Batch]) -> float:
        """Nats per target token over all batches: the same however they were cut."""
        sums = [self.val_step(batch) for batch in batches]
        return (sum(nats for nats, _ in sums) / sum(tokens for _, tokens in sums)).item()  # type: ignore[union-attr]

    def fit(
        self,
        sampler: BucketSampler,
        accumulate: int,
        dev: Sequence[Batch],
        judge: Judge,
        plan: TrainingConfig,
        observers: Sequence[Observer],
        interrupt: Interrupt,
    ) -> None:
        """Train until the plan ends or somebody interrupts; goes on from where `progress` stands.

        Args:
            sampler: cuts the training text into batches.
            accumulate: batches an update.
            dev: text to validate on.
            judge: translates and scores it, given its loss.
            plan: bounds, and when to validate.
            observers: are told what happens.
            interrupt: is asked after each update.
        """
        progress = self.progress
        meter = Meter(progress)
        while not (progress.ended(plan) or interrupt.asked):
            epoch = sampler.epoch(progress.epoch)
            updates = [range(i, min(i + accumulate, len(epoch))) for i in range(0, len(epoch), accumulate)]
            for places in updates[progress.position :]:
                micro_batches = [epoch[i] for i in places]
                meter.count(micro_batches, *self.train_step(micro_batches))
                if progress.position == len(updates):
                    progress.epoch, progress.position = progress.epoch + 1, 0
                if progress.step % plan.report_every == 0:
                    report = meter.report(self.adam.param_groups[0]["lr"])
                    for observer in observers:
                        observer.on_step(progress, report)
                if progress.step % plan.validate_every == 0 or progress.ended(plan):
                    self._validate(dev, judge, observers)
                    meter.restart_clock()
                if progress.ended(plan) or interrupt.asked:
                    break

    def _validate(self, dev: Sequence[Batch], judge: Judge, observers: Sequence[Observer]) -> None:
        begin, progress = time.monotonic(), self.progress
        validation = self.test(dev, judge)
        if validation.bleu > progress.best_score:
            progress.best_score, progress.best_step = validation.bleu, progress.step
        progress.seconds += time.monotonic() - begin
        for observer in observers:
            observer.on_validation(progress, validation)

    def test(self, batches: Iterable[Batch], judge: Judge) -> Validation:
        """Loss of some batches, and the scores that `judge` gives."""
        return judge(self.mean_loss(batches))

    def state(self) -> dict[str, Any]:
        """All that going on from here needs: tensors and plain values."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "net": self.net.state_dict(),
            "adam": self.adam.state_dict(),
            "progress": asdict(self.progress),
            "rng": torch.get_rng_state(),
            "cuda_rng": cuda,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises:
            ValueError: it is of another architecture.
        """
        try:
            self.net.load_state_dict(state["net"])
        except RuntimeError as error:
            raise ValueError(f"the checkpoint is of another architecture: {first_difference(error)}") from error
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(**state["progress"])
        torch.set_rng_state(state["rng"].cpu())
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda_rng"]])


def build_parser() -> Parser:
    """All options: those of the configuration tree, and the two that are not part of a run."""
    parser = Parser(
        prog="train.py",
        usage="python train.py [--config PRESET] [--GROUP.KEY VALUE ...] [--resume [RUN]]",
        description="Train a translator; without options: KFTT, Japanese to English, Transformer base.",
        epilog="""examples:
  python train.py --config const/preset/demo.yaml                 two minutes, no download
  python train.py --config const/preset/kftt_ja_en_small.yaml     KFTT on a CPU
  python train.py --data.archive kftt-data-1.0.tar.gz             KFTT from a local archive
  python train.py --data.src my.ja --data.tgt my.en --name mine   two files of your own
  python train.py --resume                                        go on with the newest run
  python train.py --resume pickles/RUN --training.max_epochs 40   go on with that one, for longer""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", action="config", help="a YAML file of settings; see const/preset/")
    parser.add_argument(
        "--resume", nargs="?", const="newest", metavar="RUN", help="go on with this run, or the newest one"
    )
    add_config(parser)
    return parser


def read_arguments(argv: Sequence[str]) -> tuple[Config, Path | None]:
    """The settings, and the folder of the run to resume.

    Settings begin with the preset kftt_ja_en where no other file and no run is named; those of a resumed run come
    before the other arguments.
    """
    parser = build_parser()
    if not any(argument.split("=")[0] in ("--config", "--resume") for argument in argv):
        argv = ["--config", str(PRESET / "kftt_ja_en.yaml"), *argv]
    arguments = parser.parse_args(argv)
    resume: Path | None = None
    if arguments.resume is not None:
        resume = run_folder.newest_run(run_folder.LAST) if arguments.resume == "newest" else Path(arguments.resume)
        saved = resume / run_folder.CONFIG
        if not saved.is_file():
            raise ValueError(f"no run to resume in {resume}: give a folder under {PICKLES}")
        arguments = parser.parse_args(["--config", str(saved), *argv])
    return to_config(parser, arguments), resume


def describe(trainer: Trainer, sampler: BucketSampler, config: Config, n_updates: int) -> None:
    """Say what is about to be trained, on what."""
    n_parameters, epoch = sum(p.numel() for p in trainer.net.parameters()), sampler.epoch(trainer.progress.epoch)
    bf16 = config.training.precision == "bf16" or (
        config.training.precision == "auto" and has_fast_bf16(trainer.device)
    )
    print(
        f"{n_parameters:,} parameters on {trainer.device} in {'bf16' if bf16 else 'fp32'}; "
        f"{n_updates:,} updates an epoch, padding {epoch.padding:.1%}, "
        f"{epoch.n_dropped:,} pairs longer than {config.batch.max_tokens} tokens left out"
    )
    if trainer.device.type == "cpu" and n_parameters > LARGE_FOR_A_CPU:
        print(
            "No CUDA here: a model of this size takes days on a CPU. Made for one: "
            "--config const/preset/kftt_ja_en_small.yaml (hours) and const/preset/demo.yaml (minutes)."
        )


def finish(trainer: Trainer, config: Config, corpus: Corpus, folder: Path, test: Sequence[Batch]) -> None:
    """Score the best weights on the test set, show some translations, draw what the decoder looked at."""
    best = run_folder.load_run(folder, trainer.device)
    trainer.net.load_state_dict(best.model.state_dict())
    print(
        f"\nTesting the weights of step {trainer.progress.best_step:,} (best dev BLEU), beam {config.search.beam_size}"
    )
    text = read_parallel(corpus.test)
    validator = Validator(best.translator, text, corpus, n_samples=5)
    scores = trainer.test(test, validator)
    progress = trainer.progress
    result = {
        "name": config.name,
        "corpus": corpus.name,
        "direction": f"{corpus.src_lang}-{corpus.tgt_lang}",
        "parameters": sum(p.numel() for p in trainer.net.parameters()),
        "best_step": progress.best_step,
        "steps": progress.step,
        "target_tokens": progress.target_tokens,
        "minutes": round(progress.seconds / 60, 1),
        "beam": config.search.beam_size,
        "perplexity": scores.perplexity,
        "bleu": scores.bleu,
        "chrf": scores.chrf,
        "bleu_signature": scores.bleu_signature,
        "chrf_signature": scores.chrf_signature,
    }
    with atomic_file(folder / run_folder.TEST) as draft:
        draft.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with atomic_file(folder / run_folder.TRANSLATIONS) as draft:
        draft.write_text("".join(line + "\n" for line in validator.translations), encoding="utf-8")
    print(
        f"test  PPL {scores.perplexity:.2f}  BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}\n"
        f"      {scores.bleu_signature}\n      {scores.chrf_signature}\n"
    )
    for sample in scores.samples:
        print(f"  {sample.source}\n  → {sample.translation}\n    ({sample.reference})\n")
    # a right translation of a length that is easily read, if there is one
    sample = min(scores.samples, key=lambda s: (s.translation != s.reference, abs(len(s.translation) - 60)))
    draw_sample(run_folder.load_run(folder, trainer.device, fused=False), sample, folder / run_folder.ATTENTION)
    for name in (run_folder.TRANSLATIONS, run_folder.TEST, run_folder.CURVE, run_folder.ATTENTION):
        print(f"  {folder / name}")
    print(f'\nTranslate with it: python translate.py --run {folder} "{scores.samples[0].source}"')


def draw_sample(run: run_folder.Run, sample: Sample, picture: Path) -> None:
    """Draw the cross-attention behind a translation."""
    src, tgt = run.tokenizers
    src_ids, tgt_ids = (
        side.encode([text])[0][: run.window - 1] for side, text in ((src, sample.source), (tgt, sample.translation))
    )
    weights = cross_attention(run.model, src_ids, tgt_ids)
    draw_cross_attention(weights, [*src.tokens(src_ids), EOS], [*tgt.tokens(tgt_ids), EOS], picture)


def main() -> None:
    """Train, validate, test."""
    config, resume = read_arguments(sys.argv[1:])
    plan = config.training
    device = pick_device(plan.device)
    torch.manual_seed(plan.seed)
    keep_freed_memory()

    corpus = prepare_corpus(config.data)
    if resume is None:
        tokenizers = cached_tokenizers(corpus, config.data, config.tokenizer, print)
    else:
        tokenizers = load_tokenizers(resume)
    train, dev, test = (cached_tokens(corpus, split, config.data, tokenizers, print) for split in SPLITS)
    sampler = BucketSampler(
        train, config.batch.tokens_per_batch, config.batch.max_tokens, plan.seed, config.batch.length_multiple
    )
    dev_sampler, test_sampler = (BucketSampler(pairs, config.batch.tokens_per_batch) for pairs in (dev, test))

    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt)).to(device)
    trainer = Trainer(model, TranslationObjective(plan.label_smoothing), config.optimizer, plan.precision)
    if resume is not None:
        trainer.restore(load_checkpoint(resume / run_folder.LAST, device))
        config.save(resume / run_folder.CONFIG)  # what was said anew holds for the next time too
        print(f"Going on with {resume} from step {trainer.progress.step:,}")
    folder = Path(os.path.relpath(resume or run_folder.create_run(config, tokenizers)))
    print(f"Run folder: {folder}")

    n_updates = -(-len(sampler.epoch(trainer.progress.epoch)) // config.batch.accumulate)
    describe(trainer, sampler, config, n_updates)
    dev_text = read_parallel(corpus.dev)[: plan.bleu_sentences]
    greedy = replace(config.search, beam_size=1)
    run = run_folder.Run(folder, config, tokenizers, model)
    judge = Validator(lambda: run.translator(greedy), dev_text, corpus, plan.n_samples)
    keeper = CheckpointKeeper(folder / run_folder.LAST, trainer.state, lambda: run_folder.save_weights(model, folder))
    step = trainer.progress.step
    observers: list[Observer] = [
        Terminal(plan, n_updates),
        JsonlLog(folder / run_folder.LOG, step),
        TensorBoardLog(folder, step),
        CurvePicture(folder / run_folder.LOG, folder / run_folder.CURVE),
        keeper,
    ]
    with graceful_interrupt() as interrupt:
        try:
            trainer.fit(sampler, config.batch.accumulate, dev_sampler.all(), judge, plan, observers, interrupt)
        finally:
            for observer in observers:
                observer.close()
    if interrupt.asked:
        keeper.save()
        print(f"\nStopped at step {trainer.progress.step:,}; go on with: python train.py --resume {folder}")
        sys.exit(INTERRUPTED)
    finish(trainer, config, corpus, folder, test_sampler.all())


if __name__ == "__main__":
    run_command("train.py", main)
