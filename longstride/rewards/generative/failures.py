"""Why a judgment could not be made, on its way up to `NotJudged`."""

from __future__ import annotations

from longstride.rewards.protocol import NotJudged, NotJudgedReason


class CallFailed(Exception):
    """A judge could not be asked, or did not answer. Holds no key and no text of an answer."""

    def __init__(self, reason: NotJudgedReason, detail: str) -> None:
        """Remember the kind of failure, and what happened in one sentence."""
        super().__init__(f"{reason}: {detail}")
        self.reason: NotJudgedReason = reason
        self.detail = detail

    def judgment(self) -> NotJudged:
        """The failure as a judgment."""
        return NotJudged(self.reason, self.detail)
