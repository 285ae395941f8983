//! The words that build small programs for libraries that come with tools of their own.

/// A program in C++ for omniORB, from `NAME.idl` and `NAME.cc` in `folder`: first the stubs, then all of it, as `NAME`.
pub fn omniorb(folder: &str, name: &str) -> [Vec<String>; 2] {
    let path = |ending: &str| format!("{folder}/{name}{ending}");
    let stubs = ["omniidl", "-bcxx", "-C", folder, &path(".idl")].map(str::to_owned).into();
    let (source, generated) = (path(".cc"), path("SK.cc"));
    let flags = ["c++", "-O2", "-w", "-std=c++17", "-pthread", "-I", folder, "-o"];
    let libraries = ["-lomniORB4", "-lomnithread"];
    let files = [path(""), source, generated];
    let all = flags.iter().map(|f| (*f).to_owned()).chain(files).chain(libraries.map(str::to_owned));
    [stubs, all.collect()]
}

/// A program in C for MPI.
pub fn mpi(source: &str, program: &str) -> Vec<String> {
    ["mpicc", "-O2", "-std=gnu11", "-pthread", "-o", program, source].map(str::to_owned).into()
}

/// Open MPI's ranks on this host, over TCP and nothing else. It leaves the loopback alone unless told.
pub const MPIRUN_OVER_TCP: [&str; 13] = [
    "mpirun",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "tcp,self",
    "--mca",
    "btl_tcp_if_include",
    "lo",
];

/// Open MPI's ranks on this host, over what it chooses itself: shared memory.
pub const MPIRUN: [&str; 4] = ["mpirun", "--oversubscribe", "--bind-to", "none"];
