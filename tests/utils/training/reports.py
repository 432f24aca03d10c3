"""What an observer of a training is told."""

from utils.training.plan import Progress
from utils.training.report import Sample, StepReport, Validation

REPORT = StepReport(3.25, 1.5, 0.0005, 1234, 5678.4, 0.125, 0)
# U+2028 stands inside sentences of real corpora, and is no end of a line
SAMPLE = Sample("都\u2028です", 'the "capital"', "capital")
VALIDATION = Validation(
    2.0, {"bleu": 12.34, "chrf": 45.67}, {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}, [SAMPLE]
)


def at(step: int, best: int = 0) -> Progress:
    return Progress(step=step, epoch=1, position=2, target_tokens=1234, seconds=6.0 * step, best_step=best)
