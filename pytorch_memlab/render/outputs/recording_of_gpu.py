"""A recording of a GPU, with how its simulation compares."""

from __future__ import annotations

from ..output_format import OutputFormat, VerifiedResults


class RecordingFile(OutputFormat[VerifiedResults]):
    """JSON, compressed, as the tests of the simulation replay it."""

    shows = VerifiedResults
    endings = (".json.gz",)
    order = 1

    def render(self, results: VerifiedResults) -> bytes:
        from ...saved.recording import recording_file

        return recording_file(results.history, results.verification, results.versions)
