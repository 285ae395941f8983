//! Commands that build small programs for libraries with tools of their own. Each command is a list of words.

/// Builds a C++ program for omniORB from `NAME.idl` and `NAME.cc` in `folder`. The first command makes the stubs, the second the program `NAME`.
pub fn omniorb(folder: &str, name: &str) -> [Vec<String>; 2] {
    omniorb_with(folder, name, &[], &["SK.cc"], &["-lomniORB4", "-lomnithread"])
}

/// Builds a C++ program for omniORB that puts its own types into an `any`. Otherwise like [`omniorb`].
pub fn omniorb_any(folder: &str, name: &str) -> [Vec<String>; 2] {
    let libraries = ["-lomniORB4", "-lomnithread", "-lomniDynamic4"];
    omniorb_with(folder, name, &["-Wba"], &["SK.cc", "DynSK.cc"], &libraries)
}

fn omniorb_with(folder: &str, name: &str, options: &[&str], stubs: &[&str], libraries: &[&str]) -> [Vec<String>; 2] {
    let path = |ending: &&str| format!("{folder}/{name}{ending}");
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let generate = [all(&["omniidl", "-bcxx"]), all(options), all(&["-C", folder, &path(&".idl")])].concat();
    let flags = all(&["c++", "-O2", "-w", "-std=c++17", "-pthread", "-I", folder, "-o"]);
    let sources = ["", ".cc"].iter().chain(stubs).map(path).collect();
    [generate, [flags, sources, all(libraries)].concat()]
}

/// Builds a Java program for JacORB from `NAME.idl` and the given sources in `folder`, as `NAME.jar`. `libraries` is a class path with JacORB, its
/// IDL compiler and their dependencies.
pub fn jacorb(libraries: &str, folder: &str, name: &str, sources: &[&str]) -> [Vec<String>; 3] {
    let path = |file: &str| format!("{folder}/{file}");
    let (stubs, classes, with_stubs) = (path("stubs"), path("classes"), format!("{libraries}:{}", path("stubs")));
    let (idl, jar) = (path(&format!("{name}.idl")), path(&format!("{name}.jar")));
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let quick = "-J-XX:TieredStopAtLevel=1";
    let sources: Vec<String> = sources.iter().map(|file| path(file)).collect();
    [
        all(&["java", "-cp", libraries, "org.jacorb.idl.parser", "-forceOverwrite", "-d", &stubs, &idl]),
        [all(&["javac", quick, "-nowarn", "-cp", &with_stubs, "-d", &classes]), sources].concat(),
        all(&["jar", "--create", "--file", &jar, "-C", &classes, "."]),
    ]
}

/// Makes the Python stubs of `NAME.idl`, beside it in `folder`. `orb` is the folder of omniORBpy and of the Python that it was built for.
pub fn omniorbpy(orb: &str, folder: &str, name: &str) -> Vec<String> {
    let (generator, idl) = (format!("{orb}/bin/omniidl"), format!("{folder}/{name}.idl"));
    [&omniorbpys_python(orb), &generator, "-bpython", "-C", folder, &idl].map(str::to_owned).into()
}

/// The Python interpreter in the folder of omniORBpy.
pub fn omniorbpys_python(orb: &str) -> String {
    format!("{orb}/bin/python3.10")
}

/// Builds a C program for MPI.
pub fn mpi(source: &str, program: &str) -> Vec<String> {
    ["mpicc", "-O2", "-std=gnu11", "-pthread", "-o", program, source].map(str::to_owned).into()
}

/// Launches Open MPI's ranks on this host over TCP only. The interface is named because Open MPI excludes the loopback interface by default.
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

/// Launches Open MPI's ranks on this host with its default transport, which is shared memory.
pub const MPIRUN: [&str; 4] = ["mpirun", "--oversubscribe", "--bind-to", "none"];

/// Builds a message benchmark (`tests/bench/NAME_messages.c`) for the MPI library whose compiler is `compiler`.
pub fn mpi_messages(compiler: &str, source: &str, program: &str) -> Vec<String> {
    // gcc takes MPICH's MPI_STATUSES_IGNORE for a short array.
    let flags = ["-O2", "-std=gnu11", "-Wno-stringop-overflow", "-o"];
    [&[compiler][..], &flags, &[program, source]].concat().into_iter().map(str::to_owned).collect()
}

/// Builds a message benchmark that is linked with `libraries`.
pub fn messages(libraries: &[&str], source: &str, program: &str) -> Vec<String> {
    let words = [&["cc", "-O2", "-std=gnu11", "-o", program, source][..], libraries].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// Launches Open MPI's ranks on this host with its default transport. The caller appends the number of ranks.
pub const OPEN_MPI: [&str; 4] = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none"];
/// Options for Open MPI's own protocols over its own shared memory.
pub const OPEN_MPI_OB1: [&str; 3] = ["--mca", "pml", "ob1"];
/// Options for UCX, also where UCX finds no network.
pub const OPEN_MPI_UCX: [&str; 9] =
    ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"];
/// Option for ranks that yield between polls.
pub const OPEN_MPI_YIELDS: [&str; 3] = ["--mca", "mpi_yield_when_idle", "1"];
/// Environment that allows root to use Open MPI's launcher.
pub const OPEN_MPI_AS_ROOT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// Launches MPICH's ranks on this host.
pub const MPICH: [&str; 5] = ["mpirun.mpich", "-launcher", "fork", "-hosts", "localhost"];
