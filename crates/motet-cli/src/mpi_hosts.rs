//! Whether the ranks of an MPI job will be on one host or on several, before it has begun.
//!
//! Known from what the launcher is told: its options and host files, and what a batch system has put into the environment; inside a rank, from what its
//! launcher says of the job. Nothing is run and no name is resolved. What says nothing of hosts starts its ranks on this one: so do
//! Open MPI, MPICH and Intel MPI. What this cannot see is a launcher inside a script with hosts of its own.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::mpi_launcher;

/// Where ranks may go, in the order in which launchers fill them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    name: String,
    /// Ranks that it is filled with before the next one; `None`: not said.
    slots: Option<usize>,
}

/// What the answer depends on.
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub file: &'a dyn Fn(&Path) -> Option<String>,
    /// Of this host.
    pub name: &'a str,
}

/// Options of launchers that take so many words; all that are not here and do not end the options are taken to have one, if a word follows.
const NO_WORD: &[&str] = &[
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
const TWO_WORDS: &[&str] = &["mca", "gmca", "prtemca", "pmixmca", "omca", "gpmixmca", "env", "genv"];
const RANKS: &[&str] = &["n", "np", "c", "ntasks"];
const HOSTS: &[&str] = &["H", "host", "hosts", "hostlist"];
const FILES: &[&str] = &["hostfile", "machinefile", "machine", "f", "default-hostfile"];
/// Ranks that are dealt out rather than filled in, or may be.
const DEALT: &[&str] = &[
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
/// Host files that variables name, for all who start ranks below.
const FILE_VARIABLES: &[&str] =
    &["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];
const DEFAULT_FILE: &str = "/etc/openmpi/openmpi-default-hostfile";

/// Whether the command's ranks may be on several hosts.
pub fn several(command: &[OsString], around: &Surroundings<'_>) -> bool {
    if let Some(answer) = as_a_rank(around) {
        return answer;
    }
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let begins = words.iter().position(|word| mpi_launcher::is_launcher(Path::new(word)) || is_srun(word));
    let Some(begins) = begins else { return are_several(&allocated(around), None, around) };
    let told = &words[begins + 1..];
    if is_srun(&words[begins]) {
        return by_srun(told, around);
    }
    let (mut hosts, mut ranks, mut all) = (Vec::new(), Some(0), false);
    for part in told.split(|word| word == ":") {
        let part = Options::of(part);
        hosts.extend(part.hosts(around));
        ranks = ranks.zip(part.ranks()).map(|(a, b)| a + b);
        all |= part.deals();
    }
    if hosts.is_empty() {
        hosts = allocated(around);
    }
    are_several(&hosts, ranks.filter(|_| !all), around)
}

/// `motet run` started by a launcher, in a rank: the launcher says how many of the job are on this host.
fn as_a_rank(around: &Surroundings<'_>) -> Option<bool> {
    let number = |name: &str| (around.variable)(name)?.trim().parse::<usize>().ok();
    let pairs = [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("PMI_SIZE", "MPI_LOCALNRANKS")];
    pairs.iter().find_map(|(all, here)| Some(number(all)? > number(here)?))
}

fn is_srun(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "srun")
}

/// `srun`: so many nodes as it is told, or as its allocation has.
fn by_srun(words: &[String], around: &Surroundings<'_>) -> bool {
    let options = Options::of(words);
    if let Some(nodes) = options.last(&["N", "nodes"]) {
        return leading(nodes) > 1;
    }
    if let Some(list) = options.last(&["w", "nodelist"]) {
        return list.contains(['[', ',']);
    }
    are_several(&allocated(around), options.ranks(), around)
}

fn leading(text: &str) -> usize {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Fills hosts with ranks; without a number, all of them.
fn are_several(hosts: &[Host], ranks: Option<usize>, around: &Surroundings<'_>) -> bool {
    let own = |name: &str| {
        ["localhost", "127.0.0.1", "::1"].contains(&name) || name == around.name || short(name) == short(around.name)
    };
    let mut left = ranks.filter(|ranks| *ranks > 0);
    let mut first: Option<String> = None;
    for host in hosts {
        let name = if own(&host.name) { "localhost".to_owned() } else { host.name.clone() };
        if first.get_or_insert_with(|| name.clone()) != &name {
            return true;
        }
        // Whose slots are not said takes one, or all: not known, so the next one is looked at.
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
            if NO_WORD.contains(&name) {
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
            if TWO_WORDS.contains(&name) {
                // As if it had been `--NAME VALUE`.
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
        self.last(RANKS)?.parse().ok()
    }

    fn deals(&self) -> bool {
        self.all(DEALT).next().is_some()
    }

    fn hosts(&self, around: &Surroundings<'_>) -> Vec<Host> {
        let named = self.all(HOSTS).flat_map(|list| list.split(',')).filter(|name| !name.is_empty()).map(host);
        let named: Vec<Host> = named.collect();
        if !named.is_empty() {
            return named;
        }
        let files = self.all(FILES).chain(self.all(&["orte_default_hostfile", "prte_default_hostfile"]));
        files.flat_map(|file| in_file(Path::new(file), around)).collect()
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

/// Open MPI's (`NAME slots=4`), Hydra's (`NAME:4`), a plain list with repetitions, SGE's (`NAME 4 queue …`).
fn in_file(path: &Path, around: &Surroundings<'_>) -> Vec<Host> {
    let text = (around.file)(path).unwrap_or_default();
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

/// A host that is listed several times in a row has a slot for each, where none has said its own.
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

/// What a batch system has given, or a variable or the system's own file names.
fn allocated(around: &Surroundings<'_>) -> Vec<Host> {
    let variable = |name: &str| (around.variable)(name).filter(|value| !value.trim().is_empty());
    let files =
        FILE_VARIABLES.iter().copied().chain(["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE", "COBALT_NODEFILE"]);
    for file in files.filter_map(variable).map(PathBuf::from) {
        let hosts = in_file(&file, around);
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
    in_file(Path::new(DEFAULT_FILE), around)
}

/// Nodes whose names do not matter; Slurm's list of tasks of each: `4(x2),3`.
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

    /// Of a command line, with variables and files (`NAME=VALUE`, `/FILE=LINES`).
    fn several_of(command: &str, around: &[&str]) -> bool {
        let find = |wanted: &str| {
            let pairs = around.iter().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()).next_back()
        };
        let file = |path: &Path| find(path.to_str()?);
        let around = Surroundings { variable: &find, file: &file, name: "me.example.org" };
        let words: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        several(&words, &around)
    }

    #[test]
    fn a_launcher_that_is_told_of_no_host_stays_on_this_one() {
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
    fn all_ranks_on_one_of_many_hosts_are_on_one() {
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
    fn an_allocation_counts_where_the_launcher_is_told_nothing() {
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
    fn a_rank_knows_its_job() {
        assert!(several_of("./program", &["OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"]));
        assert!(!several_of(
            "./program",
            &["OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "SLURM_NNODES=2"]
        ));
        assert!(several_of("./program", &["PMI_SIZE=2", "MPI_LOCALNRANKS=1"]));
    }
}
