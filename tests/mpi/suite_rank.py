"""One rank of mpi4py's own test suite: suite_rank.py FOLDER-OF-THE-SUITE FOLDER-FOR-RESULTS OPTIONS-OF-THE-SUITE...

Runs the suite's main.py as it is, but writes what each test came to, one line each, into a file of this rank's: the ranks' output is
one stream, in which lines of several cannot be told apart. The line is there before the test begins, so the last one of a rank that hangs says where.
Tests whose names are lines of the file `known` in the folder for results, if there is one, are left out.
"""
import os
import sys
import unittest

suite, results = sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, suite)
sys.argv = [os.path.join(suite, "main.py"), *sys.argv[3:]]


class Result(unittest.TextTestResult):
    """What unittest says of each test, and the file."""

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
import main  # noqa: E402, the suite's

known = os.path.join(results, "known")
if os.path.exists(known):
    with open(known, encoding="utf-8") as names:
        KNOWN = set(names.read().splitlines())
    all_names = main.TestLoader.getTestCaseNames

    def unknown_names(loader, case):
        """Of a class's tests those that are not left out, by the names that tests have as their ids."""
        return [name for name in all_names(loader, case) if f"{case.__module__}.{case.__qualname__}.{name}" not in KNOWN]

    main.TestLoader.getTestCaseNames = unknown_names
main.main(module=None)
