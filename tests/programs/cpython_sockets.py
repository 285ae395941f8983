"""Runs one share of CPython's own tests of sockets and selectors, and prints the result of each test that did not pass.

cpython_sockets.py SHARE SHARES [TEST...]

Tests that are named form one share. The tests of VSOCK are left out: they hang where the host of a virtual machine does not answer."""
import os
import sys
import tempfile
import unittest
import zlib


def cases(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from cases(part)
        else:
            yield part


def main():
    share, shares, named = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    try:
        import test.test_selectors
        import test.test_socket
    except ImportError:
        print("no suite")
        return
    whole = unittest.defaultTestLoader.loadTestsFromNames(["test.test_socket", "test.test_selectors"])
    mine = [c for c in cases(whole) if "VSOCK" not in c.id() and zlib.crc32(c.id().encode()) % shares == share]
    if named:
        mine = [c for c in mine if c.id() in named]
    result = unittest.TestResult()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        unittest.TestSuite(mine).run(result)
    for word, found in [("failed", result.failures), ("error", result.errors), ("skipped", result.skipped)]:
        for test, detail in found:
            print(f"{word}: {test.id()}")
            if word != "skipped":
                print(detail, file=sys.stderr)
    for test in result.unexpectedSuccesses:
        print(f"unexpected success: {test.id()}")
    print(f"ran {result.testsRun}")


if __name__ == "__main__":
    main()
