//! What the launcher of a parallel job tells each of its processes: the rank, the size of the job, and how many of them are on this host.
//!
//! Read from the environment: PMIx (Open MPI, `srun --mpi=pmix`), PMI (Hydra of MPICH and Intel MPI, `srun --mpi=pmi2`), and Slurm's own variables. A launcher
//! of another kind may run inside a Slurm step, so Slurm comes last.

use crate::{GROUP_LAUNCHER_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE};

/// The variables by which launchers tell a place. A daemon that starts other programs does not pass them on.
pub const PLACE_VARIABLES: [&str; 12] = [
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_LOCALID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
];

/// The place of a process in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its rank.
    pub rank: u32,
    /// The number of ranks. `None`: only the launcher's PMIx server knows it.
    pub size: Option<u32>,
    /// The number of ranks on this host, if the launcher tells it.
    pub size_here: Option<u32>,
    /// The namespace of the job, if the launcher has PMIx.
    pub pmix_namespace: Option<String>,
}

impl Place {
    /// The place of this process: in the job of a launcher, or among those that `motet run --group` has started, whichever is the inner one.
    pub fn of_process() -> Option<Self> {
        Self::of(&|name| std::env::var(name).ok())
    }

    /// The place of a process with these variables.
    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let launched = Self::by_launcher(variable);
        let number = |name: &str| number(variable, name);
        let own = number(RANK_VARIABLE).zip(number(SIZE_VARIABLE));
        let own = own.map(|(rank, size)| Self { rank, size: Some(size), size_here: Some(size), pmix_namespace: None });
        match (launched, own) {
            // Several copies of one rank: the launcher's rank is none of theirs.
            (Some(place), Some(own)) if own.size != Some(1) => {
                let is_outer = variable(GROUP_LAUNCHER_VARIABLE) == Some(place.identity());
                Some(if is_outer { own } else { place })
            }
            (Some(place), _) => Some(place),
            (None, own) => own,
        }
    }

    /// The place in the job of a launcher other than `motet run`.
    pub fn by_launcher(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| number(variable, name);
        let place = |rank, size, size_here| Self { rank, size, size_here, pmix_namespace: None };
        if let Some(rank) = number("PMIX_RANK")
            && let Some(namespace) = variable("PMIX_NAMESPACE").filter(|namespace| !namespace.is_empty())
        {
            // Open MPI tells the sizes; within a Slurm step the step's is the job's.
            let (size, here) = (number("OMPI_COMM_WORLD_SIZE"), number("OMPI_COMM_WORLD_LOCAL_SIZE"));
            let is_step = namespace.starts_with("slurm.pmix.");
            let size = size.or_else(|| number("SLURM_STEP_NUM_TASKS").filter(|_| is_step));
            return Some(Self { pmix_namespace: Some(namespace), ..place(rank, size, here) }).filter(Self::is_valid);
        }
        let by_mpi = number("OMPI_COMM_WORLD_RANK").zip(number("OMPI_COMM_WORLD_SIZE"));
        let by_mpi = by_mpi.map(|(rank, size)| place(rank, Some(size), number("OMPI_COMM_WORLD_LOCAL_SIZE")));
        let by_pmi = || number("PMI_RANK").zip(number("PMI_SIZE"));
        let by_pmi = || by_pmi().map(|(rank, size)| place(rank, Some(size), number("MPI_LOCALNRANKS")));
        // A batch script has the rank as well, but is no task of a step.
        let by_slurm = || number("SLURM_PROCID").zip(number("SLURM_STEP_NUM_TASKS"));
        let by_slurm = || by_slurm().map(|(rank, size)| place(rank, Some(size), None));
        by_mpi.or_else(by_pmi).or_else(by_slurm).filter(Self::is_valid)
    }

    /// A text that differs between three places.
    pub fn identity(&self) -> String {
        let size = self.size.map(|size| size.to_string()).unwrap_or_default();
        format!("{} {}/{size}", self.pmix_namespace.as_deref().unwrap_or_default(), self.rank)
    }

    fn is_valid(&self) -> bool {
        self.size.is_none_or(|size| self.rank < size)
    }
}

fn number(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<u32> {
    variable(name)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place with these variables, as `RANK/SIZE`.
    fn place(variables: &[&str]) -> Option<String> {
        let variables: Vec<_> = variables.iter().map(|variable| variable.split_once('=').unwrap()).collect();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let place = Place::of(&variable)?;
        Some(format!("{}/{}", place.rank, place.size.map_or("?".to_owned(), |size| size.to_string())))
    }

    const SLURM: [&str; 2] = ["SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=5"];
    const HYDRA: [&str; 3] = ["PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2"];
    const OPEN_MPI: [&str; 3] = ["PMIX_NAMESPACE=job", "PMIX_RANK=2", "OMPI_COMM_WORLD_SIZE=4"];

    fn with(parts: &[&[&'static str]]) -> Option<String> {
        place(&parts.concat())
    }

    #[test]
    fn launchers_tell_the_place() {
        assert_eq!(with(&[&SLURM]).unwrap(), "3/5");
        assert_eq!(with(&[&HYDRA]).unwrap(), "1/2");
        assert_eq!(with(&[&OPEN_MPI]).unwrap(), "2/4");
        assert_eq!(with(&[&OPEN_MPI[..2]]).unwrap(), "2/?");
        assert_eq!(with(&[&OPEN_MPI, &SLURM]).unwrap(), "2/4", "mpirun inside a step");
        assert_eq!(with(&[&HYDRA, &SLURM]).unwrap(), "1/2");
        assert_eq!(place(&["PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_RANK=3", SLURM[0], SLURM[1]]).unwrap(), "3/5");
        assert_eq!(place(&["SLURM_PROCID=0", "SLURM_NTASKS=5"]), None, "a batch script is no task");
        assert_eq!(place(&[]), None);
        for wrong in ["PMI_RANK=2", "PMI_RANK=-1", "PMI_RANK=x", "PMI_RANK="] {
            assert_eq!(place(&[wrong, "PMI_SIZE=2"]), None, "{wrong}");
        }
    }

    #[test]
    fn inner_one_of_three_launchers_decides() {
        let (one, three) = (["MOTET_GROUP_RANK=0", "MOTET_GROUP_SIZE=1"], ["MOTET_GROUP_RANK=1", "MOTET_GROUP_SIZE=3"]);
        assert_eq!(with(&[&three]).unwrap(), "1/3");
        assert_eq!(with(&[&one, &OPEN_MPI]).unwrap(), "2/4", "motet run -- mpirun, or mpirun -- motet run");
        assert_eq!(with(&[&three, &OPEN_MPI]).unwrap(), "2/4", "motet run -n 3 -- mpirun");
        let outer = "MOTET_GROUP_LAUNCHER=job 2/4";
        assert_eq!(with(&[&three, &OPEN_MPI, &[outer]]).unwrap(), "1/3", "mpirun -- motet run -n 3");
        assert_eq!(with(&[&three, &HYDRA, &[outer]]).unwrap(), "1/2", "of another launcher, inside");
    }
}
