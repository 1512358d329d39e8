"""The errors of pytorch_memlab: each says in one line what was wrong and what to do."""


class MemlabError(Exception):
    """Base of every error that pytorch_memlab raises itself."""


class UsageError(MemlabError, ValueError):
    """An argument that cannot be used; the message names what would have been right."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        import pytorch_memlab

        return pytorch_memlab._short_traceback(self)


class NotAFunctionError(UsageError, TypeError):
    """Something that has no Python source lines was given to be profiled."""


class UnknownColumnError(UsageError):
    """A column that no device records; the message lists the near ones."""


class UnknownGPUError(UsageError):
    """A GPU name or size that cannot be simulated; the message lists the known names."""


class UnknownDeviceError(UsageError):
    """A device that this process does not have; the message lists those that it has."""


class AllocatorSettingsError(UsageError, RuntimeError):
    """A PYTORCH_CUDA_ALLOC_CONF string that PyTorch would refuse."""


class SnapshotError(UsageError):
    """A file or an object that is no memory snapshot of PyTorch; the message says what it is."""


class ProfileError(UsageError):
    """A file that is no saved profile of pytorch_memlab; the message says what it is."""


class HistoryError(UsageError):
    """The data asked for was not recorded; the message says what to do."""


class UnsupportedCUDACallError(MemlabError, NotImplementedError, AttributeError):
    """A CUDA call that the simulation does not cover; the message names it."""

    # It is an ``AttributeError`` too, so that ``hasattr`` answers no.


class StrictSimulationError(MemlabError):
    """Something happened that ``simulate(strict=...)`` does not allow; the message names it."""


class UnmodelledOpError(StrictSimulationError):
    """An op took memory of unknown size under ``simulate(strict=True)``."""


class AssumedValueError(StrictSimulationError):
    """A program read a value that a dry run does not have, under ``simulate(strict=True)``."""


class EstimatedMemoryError(StrictSimulationError):
    """An op took memory that no recording confirms, under ``simulate(strict="estimates")``."""


class CommandRefusedError(MemlabError, FileNotFoundError):
    """``fit`` starts no command whose writes it cannot hold back; the message names it.

    It is a ``FileNotFoundError`` too, so that libraries do without the command.
    """


class HostMemoryError(MemlabError, MemoryError):
    """This machine cannot hold what the simulated GPU could."""


class ContextReleaseError(MemlabError):
    """CUDA's context could not be given back, or not be taken again; the message says why."""


__all__ = [name for name in globals() if name.endswith("Error")]
