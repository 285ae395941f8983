//! Predicts before an MPI job starts whether its ranks will be on one host or on several.
//!
//! Sources: the options and host files of the launcher, and the environment of a batch system; inside a rank, the variables that its
//! launcher sets. No program is run and no name is resolved. Without any host the ranks start on this host, as with Open MPI, MPICH
//! and Intel MPI. A launcher inside a script that names its own hosts is not seen.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use motet_session::launcher::Place;

use crate::mpi_launcher;

/// A host on which ranks may start. Launchers fill hosts in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    name: String,
    /// Ranks that start here before the next host is used; `None` if not given.
    slots: Option<usize>,
}

/// The inputs of the prediction: environment variables, files and the name of this host.
pub struct JobEnvironment<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub file: &'a dyn Fn(&Path) -> Option<String>,
    /// The name of this host.
    pub name: &'a str,
}

/// Options of launchers without a value. An option in neither list has one value, if a word follows.
const OPTIONS_WITHOUT_VALUE: &[&str] = &[
    "oversubscribe",
    "nooversubscribe",
    "allow-run-as-root",
    "q",
    "quiet",
    "v",
    "verbose",
    "V",
    "version",
    "nolocal",
    "tag-output",
    "timestamp-output",
    "report-bindings",
    "display-map",
    "display-allocation",
    "display-devel-map",
    "enable-recovery",
    "bynode",
    "byslot",
    "l",
    "prepend-rank",
    "pernode",
    "do-not-launch",
    "do-not-resolve",
    "novm",
    "bind-to-core",
    "bind-to-none",
    "merge-stderr-to-stdout",
    "xml",
    "tune-mpi",
    "overcommit",
    "O",
    "exclusive",
    "label",
    "genvall",
    "genvnone",
    "envall",
    "envnone",
    "bycore",
    "bysocket",
    "h",
    "help",
    "s-none",
    "print-all-exitcodes",
];
/// Options of launchers with a name and a value.
const OPTIONS_WITH_TWO_VALUES: &[&str] = &["mca", "gmca", "prtemca", "pmixmca", "omca", "gpmixmca", "env", "genv"];
/// Options with the number of ranks.
const RANK_OPTIONS: &[&str] = &["n", "np", "c", "ntasks"];
/// Options with a list of hosts.
const HOST_OPTIONS: &[&str] = &["H", "host", "hosts", "hostlist"];
/// Options with a host file.
const HOST_FILE_OPTIONS: &[&str] = &["hostfile", "machinefile", "machine", "f", "default-hostfile"];
/// Options by which ranks may be spread over hosts instead of filling one after the other.
const PLACEMENT_OPTIONS: &[&str] = &[
    "map-by",
    "N",
    "npernode",
    "ppn",
    "perhost",
    "pernode",
    "bynode",
    "ppr",
    "rr",
    "rank-by",
    "rankfile",
    "rf",
    "configfile",
    "app",
];
/// Variables of Open MPI and Hydra that name a host file.
const HOST_FILE_VARIABLES: &[&str] =
    &["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];
/// The system's default host file of Open MPI.
const OPEN_MPI_HOST_FILE: &str = "/etc/openmpi/openmpi-default-hostfile";

/// Whether the ranks of a command may be on several hosts.
pub fn spans_hosts(command: &[OsString], environment: &JobEnvironment<'_>) -> bool {
    if let Some(answer) = inside_a_rank(environment) {
        return answer;
    }
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let launcher = words.iter().position(|word| mpi_launcher::is_launcher(Path::new(word)) || is_srun(word));
    let Some(launcher) = launcher else { return fills_several(&allocated(environment), None, environment) };
    let arguments = &words[launcher + 1..];
    if is_srun(&words[launcher]) {
        return by_srun(arguments, environment);
    }
    let (mut hosts, mut ranks, mut all) = (Vec::new(), Some(0), false);
    for part in arguments.split(|word| word == ":") {
        let part = Options::of(part);
        hosts.extend(part.hosts(environment));
        ranks = ranks.zip(part.ranks()).map(|(a, b)| a + b);
        all |= part.has_placement();
    }
    if hosts.is_empty() {
        hosts = allocated(environment);
    }
    fills_several(&hosts, ranks.filter(|_| !all), environment)
}

/// For a `motet run` inside a rank: the launcher gives the number of ranks of the job, and of those on this host.
fn inside_a_rank(environment: &JobEnvironment<'_>) -> Option<bool> {
    let place = Place::by_launcher(environment.variable)?;
    Some(place.size? > place.size_here?)
}

fn is_srun(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "srun")
}

/// For `srun`: the number of nodes of its options, or of its allocation.
fn by_srun(words: &[String], environment: &JobEnvironment<'_>) -> bool {
    let options = Options::of(words);
    if let Some(nodes) = options.last(&["N", "nodes"]) {
        return leading(nodes) > 1;
    }
    if let Some(list) = options.last(&["w", "nodelist"]) {
        return list.contains(['[', ',']);
    }
    fills_several(&allocated(environment), options.ranks(), environment)
}

fn leading(text: &str) -> usize {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Whether the ranks, filled into the hosts in order, need several of them. Without a number of ranks all hosts are used.
fn fills_several(hosts: &[Host], ranks: Option<usize>, environment: &JobEnvironment<'_>) -> bool {
    let own = |name: &str| {
        ["localhost", "127.0.0.1", "::1"].contains(&name)
            || name == environment.name
            || short(name) == short(environment.name)
    };
    let mut left = ranks.filter(|ranks| *ranks > 0);
    let mut first: Option<String> = None;
    for host in hosts {
        let name = if own(&host.name) { "localhost".to_owned() } else { host.name.clone() };
        if first.get_or_insert_with(|| name.clone()) != &name {
            return true;
        }
        // A host without slots takes one rank or all of them: unknown, so the next host counts.
        if let (Some(ranks), Some(slots)) = (left, host.slots) {
            if ranks <= slots {
                return false;
            }
            left = Some(ranks - slots);
        }
    }
    false
}

fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// The options of a launcher, up to the program.
struct Options {
    values: Vec<(String, String)>,
}

impl Options {
    fn of(words: &[String]) -> Self {
        let mut values = Vec::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            let name = word.trim_start_matches('-');
            if let Some((name, value)) = name.split_once('=') {
                values.push((name.to_owned(), value.to_owned()));
                continue;
            }
            if OPTIONS_WITHOUT_VALUE.contains(&name) {
                values.push((name.to_owned(), String::new()));
                continue;
            }
            // srun's -N2 and -n4; no other launcher joins them.
            if let Some(digits) =
                name.strip_prefix(['N', 'n']).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            {
                values.push((name[..1].to_owned(), digits.to_owned()));
                continue;
            }
            let first = words.next_if(|next| !next.starts_with('-'));
            if OPTIONS_WITH_TWO_VALUES.contains(&name) {
                // Recorded as `--NAME VALUE`.
                values.push((first.cloned().unwrap_or_default(), words.next().cloned().unwrap_or_default()));
            } else {
                values.push((name.to_owned(), first.cloned().unwrap_or_default()));
            }
        }
        Self { values }
    }

    fn all<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.values.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }

    fn last<'a>(&'a self, names: &'a [&str]) -> Option<&'a str> {
        self.all(names).last()
    }

    fn ranks(&self) -> Option<usize> {
        self.last(RANK_OPTIONS)?.parse().ok()
    }

    fn has_placement(&self) -> bool {
        self.all(PLACEMENT_OPTIONS).next().is_some()
    }

    fn hosts(&self, environment: &JobEnvironment<'_>) -> Vec<Host> {
        let named = self.all(HOST_OPTIONS).flat_map(|list| list.split(',')).filter(|name| !name.is_empty()).map(host);
        let named: Vec<Host> = named.collect();
        if !named.is_empty() {
            return named;
        }
        let files = self.all(HOST_FILE_OPTIONS).chain(self.all(&["orte_default_hostfile", "prte_default_hostfile"]));
        files.flat_map(|file| in_file(Path::new(file), environment)).collect()
    }
}

/// `NAME` or `NAME:SLOTS`.
fn host(word: &str) -> Host {
    match word.split_once(':') {
        // More than one colon is an address.
        Some((name, slots)) if !slots.contains(':') => Host { name: name.to_owned(), slots: slots.parse().ok() },
        _ => Host { name: word.to_owned(), slots: None },
    }
}

/// The hosts of a file: of Open MPI (`NAME slots=4`), Hydra (`NAME:4`), SGE (`NAME 4 queue …`), or a list with repetitions.
fn in_file(path: &Path, environment: &JobEnvironment<'_>) -> Vec<Host> {
    let text = (environment.file)(path).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let hosts = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let mut host = host(words.next()?);
        for word in words {
            let slots = word.strip_prefix("slots=").or_else(|| word.strip_prefix("cpu=")).unwrap_or(word);
            host.slots = host.slots.or(slots.parse().ok());
        }
        Some(host)
    });
    counted(hosts)
}

/// If any host is listed several times, each entry without slots counts as one slot.
fn counted(hosts: impl Iterator<Item = Host>) -> Vec<Host> {
    let hosts: Vec<Host> = hosts.collect();
    let mut times = HashMap::new();
    for host in &hosts {
        *times.entry(host.name.clone()).or_insert(0) += 1;
    }
    let repeated = times.values().any(|times| *times > 1);
    let with = |host: Host| Host { slots: host.slots.or(repeated.then_some(1)), ..host };
    hosts.into_iter().map(with).collect()
}

/// The hosts that a batch system, a variable or the default file of the system gives.
fn allocated(environment: &JobEnvironment<'_>) -> Vec<Host> {
    let variable = |name: &str| (environment.variable)(name).filter(|value| !value.trim().is_empty());
    let files = HOST_FILE_VARIABLES.iter().copied().chain([
        "PBS_NODEFILE",
        "PE_HOSTFILE",
        "LSB_DJOB_HOSTFILE",
        "COBALT_NODEFILE",
    ]);
    for file in files.filter_map(variable).map(PathBuf::from) {
        let hosts = in_file(&file, environment);
        if !hosts.is_empty() {
            return hosts;
        }
    }
    for (name, tasks) in
        [("SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"), ("SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE")]
    {
        if let Some(nodes) = variable(name).or_else(|| variable("SLURM_NNODES")) {
            return numbered(leading(&nodes), &variable(tasks).unwrap_or_default());
        }
    }
    if let Some(nodes) = variable("FLUX_JOB_NNODES") {
        return numbered(leading(&nodes), "");
    }
    if let Some(list) = variable("LSB_HOSTS") {
        return counted(list.split_whitespace().map(host));
    }
    in_file(Path::new(OPEN_MPI_HOST_FILE), environment)
}

/// Hosts without names. `tasks` is Slurm's list of tasks of each host: `4(x2),3`.
fn numbered(nodes: usize, tasks: &str) -> Vec<Host> {
    let each = tasks.split(',').flat_map(|part| {
        let times = part.split_once("(x").map_or(1, |(_, times)| leading(times));
        std::iter::repeat_n(Some(leading(part)).filter(|slots| *slots > 0), times)
    });
    let each = each.chain(std::iter::repeat(None));
    (0..nodes).zip(each).map(|(node, slots)| Host { name: format!("node {node}"), slots }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prediction for a command line, with variables and files (`NAME=VALUE`, `/FILE=LINES`).
    fn several_of(command: &str, environment: &[&str]) -> bool {
        let find = |wanted: &str| {
            let pairs = environment.iter().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()).next_back()
        };
        let file = |path: &Path| find(path.to_str()?);
        let environment = JobEnvironment { variable: &find, file: &file, name: "me.example.org" };
        let words: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        spans_hosts(&words, &environment)
    }

    #[test]
    fn launcher_without_hosts_stays_on_this_host() {
        for command in [
            "mpirun -n 4 ./program",
            "mpiexec -n 4 ./program -H a,b -f /list",
            "/opt/x/bin/mpiexec.hydra -n 2 ./program",
            "./program --hosts a,b",
            "mpirun --oversubscribe ./program --hostfile /list",
            "mpirun --mca btl tcp,self --bind-to none -x HOME -n 4 ./program -H a,b",
            "srun -n 4 ./program",
            "",
        ] {
            assert!(!several_of(command, &["/list=a\nb"]), "{command}");
        }
    }

    #[test]
    fn hosts_on_the_command_line_count() {
        for command in [
            "mpirun -H a,b -n 2 ./program",
            "mpirun -n 2 --host a:1,b:1 ./program",
            "mpirun --host=a,b ./program",
            "mpiexec.hydra -launcher ssh -launcher-exec agent -hosts a,b -n 2 ./program",
            "mpirun -np 8 --host a:4,b:4 ./program",
            "mpirun -np 4 --map-by node --host a:4,b:4 ./program",
            "mpirun -n 1 -H a ./one : -n 1 -H b ./other",
            "timeout 100 mpirun -H a,b ./program",
            "mpirun --mca plm_rsh_agent agent --host a,b ./program",
            "mpirun --hostfile /list ./program",
            "mpiexec -f /list -n 2 ./program",
            "mpirun -machinefile /slots -n 8 ./program",
            "mpirun --mca orte_default_hostfile /list ./program",
            "srun -N 2 ./program",
            "srun -N2 -n4 ./program",
            "srun --nodes=2-4 ./program",
            "srun -w n[1-2] ./program",
        ] {
            assert!(several_of(command, &["/list=# of\n\na\nb\n", "/slots=a slots=4 # first\nb slots=4"]), "{command}");
        }
    }

    #[test]
    fn ranks_that_fit_the_first_host_are_on_one() {
        for command in [
            "mpirun -H b ./program",
            "mpirun -H localhost,me,me.example.org,127.0.0.1 ./program",
            "mpirun -np 4 --host a:4,b:4 ./program",
            "mpirun -np 2 --hostfile /slots ./program",
            "mpirun -np 2 --hostfile /again ./program",
            "mpirun --hostfile /missing ./program",
            "srun -N 1 ./program",
        ] {
            assert!(
                !several_of(command, &["/slots=a slots=4\nb slots=4", "/again=a\na\nb", "SLURM_NNODES=1"]),
                "{command}"
            );
        }
    }

    #[test]
    fn allocation_counts_without_launcher_options() {
        for (variables, ranks, answer) in [
            (&["SLURM_JOB_NUM_NODES=2"][..], 4, true),
            (&["SLURM_JOB_NUM_NODES=1"], 4, false),
            (&["SLURM_JOB_NUM_NODES=3", "SLURM_TASKS_PER_NODE=4(x2),1"], 4, false),
            (&["SLURM_JOB_NUM_NODES=3", "SLURM_TASKS_PER_NODE=4(x2),1"], 5, true),
            (&["PBS_NODEFILE=/nodes", "/nodes=a\na\nb\nb"], 4, true),
            (&["PBS_NODEFILE=/nodes", "/nodes=a\na\na\na"], 4, false),
            (&["PE_HOSTFILE=/nodes", "/nodes=a 2 all.q x\nb 2 all.q x"], 3, true),
            (&["LSB_HOSTS=a a b b"], 4, true),
            (&["FLUX_JOB_NNODES=2"], 4, true),
            (&["HYDRA_HOST_FILE=/nodes", "/nodes=a:2\nb:2"], 4, true),
            (&["/etc/openmpi/openmpi-default-hostfile=# nothing"], 4, false),
            (&["/etc/openmpi/openmpi-default-hostfile=a\nb"], 4, true),
        ] {
            assert_eq!(several_of(&format!("mpirun -n {ranks} ./program"), variables), answer, "{variables:?}");
        }
        assert!(several_of("./script", &["SLURM_JOB_NUM_NODES=2"]));
        assert!(!several_of("mpirun -H a ./program", &["SLURM_JOB_NUM_NODES=2"]));
    }

    #[test]
    fn rank_knows_its_job() {
        let rank = "OMPI_COMM_WORLD_RANK=0";
        assert!(several_of("./program", &[rank, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"]));
        assert!(!several_of(
            "./program",
            &[rank, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "SLURM_NNODES=2"]
        ));
        assert!(several_of("./program", &["PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=1"]));
    }
}
