"""What Orrery's functions raise."""


class InputError(ValueError):
    """What was given cannot be used: where the fault is, what was found there and what was expected."""

    def __init__(self, message: str, file: str = "", pointer: str = "", found: str = "", expected: str = "",
                 nearest: str = ""):
        super().__init__(message, file, pointer, found, expected, nearest)  # all of them, so that copies keep them
        self.message = message
        self.file = file  # a file, "<dict>" of a scenario that is one, "--set KEY=VALUE", or an argument's name
        self.pointer = pointer  # JSON pointer (RFC 6901): "/plan/tensor_parallel"; "" for all of it
        self.found = found
        self.expected = expected
        self.nearest = nearest  # a valid name that may have been meant, or ""

    def __str__(self) -> str:
        return self.message


class StalledError(RuntimeError):
    """A simulated step does not end; the message says which ranks wait in which op."""
