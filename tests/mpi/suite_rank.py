"""One rank of mpi4py's own test suite: suite_rank.py FOLDER-OF-THE-SUITE FOLDER-FOR-RESULTS OPTIONS-OF-THE-SUITE...

Runs the unmodified main.py of the suite, and writes the result of each test as a line of a file for this rank, because the ranks share one output
stream. A line is also written when a test begins, so the last line of a hanging rank names the test. Tests that are listed in the file `known` of
the folder for results, if it exists, are excluded.
"""
import os
import sys
import unittest

suite, results = sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, suite)
sys.argv = [os.path.join(suite, "main.py"), *sys.argv[3:]]


class Result(unittest.TextTestResult):
    """Results of unittest, also written to the file of this rank."""

    file = None

    def note(self, what, test):
        if Result.file is None:
            from mpi4py import MPI
            path = os.path.join(results, f"{MPI.COMM_WORLD.Get_rank()}")
            Result.file = open(path, "w", buffering=1, encoding="utf-8")
        Result.file.write(f"{what} {test.id()}\n")

    def startTest(self, test):
        self.note("began", test)
        super().startTest(test)

    def addSuccess(self, test):
        self.note("passed", test)
        super().addSuccess(test)

    def addSkip(self, test, reason):
        self.note("skipped", test)
        super().addSkip(test, reason)

    def addFailure(self, test, error):
        self.note("failed", test)
        super().addFailure(test, error)

    def addError(self, test, error):
        self.note("failed", test)
        super().addError(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note("failed", test)
        super().addSubTest(test, subtest, error)

    def addExpectedFailure(self, test, error):
        self.note("passed", test)
        super().addExpectedFailure(test, error)

    def addUnexpectedSuccess(self, test):
        self.note("failed", test)
        super().addUnexpectedSuccess(test)


unittest.TextTestRunner.resultclass = Result
import main  # noqa: E402, of the suite

known = os.path.join(results, "known")
if os.path.exists(known):
    with open(known, encoding="utf-8") as names:
        KNOWN = set(names.read().splitlines())
    all_names = main.TestLoader.getTestCaseNames

    def unknown_names(loader, case):
        """The names of a class's tests without the excluded ones, which are listed by test id."""
        return [name for name in all_names(loader, case) if f"{case.__module__}.{case.__qualname__}.{name}" not in KNOWN]

    main.TestLoader.getTestCaseNames = unknown_names
main.main(module=None)
