"""How answers are judged: deadlines, killable processes and the sandbox."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract


class SandboxConfig(Contract):
    """The jail that programs written by a model run in. It has no network in any case."""

    backend: Literal["auto", "bwrap", "unshare"] = "auto"
    """What builds the jail: bubblewrap or util-linux's unshare, with the same root inside. `auto`
    takes bubblewrap where it is installed, else unshare; without either no program is judged."""
    slots: int = Field(default=2, ge=1, le=256)
    """Programs that run at the same time."""
    warm: int = Field(default=2, ge=0, le=256)
    """Interpreters that wait, already jailed, for the next program; 0 starts each when needed."""
    cpu_seconds: int = Field(default=10, ge=1, le=3600)
    """CPU time of each process of a program."""
    wall_seconds: float = Field(default=10.0, gt=0.0, le=3600.0)
    """Time of one run of a program: one test case, one call, or one test command. A program that
    takes longer has failed."""
    memory_mb: int = Field(default=1024, ge=64)
    """Address space of each process in MiB."""
    processes: int = Field(default=32, ge=1, le=4096)
    """Processes and threads at the same time."""
    file_mb: int = Field(default=16, ge=1)
    """Largest file in MiB; all files of a program together may be four times as large."""
    output_kb: int = Field(default=256, ge=1)
    """Largest output in KiB; a program that writes more has failed."""
    site_packages: bool = False
    """Whether programs may import the packages installed beside Longstride (read-only)."""


class JudgingConfig(Contract):
    """Limits of judging.

    What they end is "not judged", except that a program's own failures and time-outs in the
    sandbox are wrong answers.
    """

    deadline_seconds: float = Field(default=10.0, gt=0.0, le=3600.0)
    """Longest time that a mathematical or logical answer may take; its process is killed then."""
    workers: int = Field(default=2, ge=1, le=256)
    """Verifier processes at most. One starts; others follow while answers wait."""
    memory_mb: int = Field(default=4096, ge=512)
    """Address space of each verifier process in MiB."""
    program_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Longest time that all runs of one program may take together; it has failed then."""
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    """The jail of programs."""

    @model_validator(mode="after")
    def _one_run_fits_the_program(self) -> Self:
        if self.sandbox.wall_seconds > self.program_seconds:
            raise ValueError(
                f"sandbox.wall_seconds={self.sandbox.wall_seconds:g} has no effect beyond "
                f"program_seconds={self.program_seconds:g}, the time of all runs of a program; "
                "lower it, or raise program_seconds"
            )
        return self
