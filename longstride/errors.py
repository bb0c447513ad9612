"""The exception tree. Every error that a user can cause or mend derives from `LongstrideError`.

LongstrideError
├── UsageError             wrong command line or recipe: exit code 2
│   └── RecipeError        a recipe names an unknown field, a bad value, or a contradiction
├── DataError              an input cannot be used: names the file, the row and the reason
│   └── CheckpointError    a checkpoint is missing, truncated, or holds non-finite values
├── StoreError             a place for artifacts cannot be reached, read or written to
│   └── ConcurrentWrite    somebody else has published other content under the name
├── GeneratorError         the sampling server did not start, answer in time, or answer sensibly
├── QualityGateBlocked     a gate measured the data and refused it
├── GateCouldNotRun        a gate could not measure; never the same thing as a refusal
├── TrainingDiverged       loss or gradients exploded again after every back-off
├── EngineError            a rank process of a training engine failed, or did not come
└── PipelineError          compiled IR cannot run here, or a run failed
"""

from __future__ import annotations


class LongstrideError(Exception):
    """Base of all errors whose message is meant for the person at the keyboard."""


class UsageError(LongstrideError, ValueError):
    """The command line or a recipe is wrong; nothing was run."""


class RecipeError(UsageError):
    """A recipe names an unknown field, holds a value out of bounds, or contradicts itself."""


class DataError(LongstrideError, ValueError):
    """An input cannot be used. The message names the file, the row and the reason."""


class CheckpointError(DataError):
    """A checkpoint is missing, truncated, or does not hold what its manifest says."""


class StoreError(LongstrideError, OSError):
    """Storage failed, not the data in it: credentials, endpoint, bucket, network, a full disk."""


class ConcurrentWrite(StoreError):
    """Another writer has published other content under this name; the message says who."""


class GeneratorError(LongstrideError, RuntimeError):
    """The sampling server did not start, died, took too long, or answered nonsense."""


class QualityGateBlocked(LongstrideError):
    """A gate measured the data and refused it; the message names the failed checks."""


class GateCouldNotRun(LongstrideError):
    """A gate could not measure its subject. Fails closed, and is never reported as a refusal."""


class TrainingDiverged(LongstrideError, ArithmeticError):
    """Loss or gradients exploded, and going back at a lower learning rate did not help."""


class EngineError(LongstrideError, RuntimeError):
    """A rank process of a training engine failed, was killed, or did not come in time."""


class PipelineError(LongstrideError, RuntimeError):
    """Compiled IR cannot run on this target, or a run failed."""
