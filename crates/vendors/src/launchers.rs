//! The variables by which launchers of several processes tell each which rank it has.

/// Variables by which one launcher tells ranks.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// The rank among all processes of the program, from 0.
    pub rank: &'static str,
    /// The rank among those on the same machine, from 0.
    pub local: &'static str,
    /// How many processes the program has.
    pub size: &'static str,
}

impl Ranks {
    const fn of(rank: &'static str, local: &'static str, size: &'static str) -> Ranks {
        Ranks { rank, local, size }
    }
}

/// Every launcher that is known. The first one of which the rank is a number decides: a launcher within a job (torchrun in a step of
/// Slurm) knows better than the scheduler.
pub const RANKS: [Ranks; 7] = [
    Ranks::of("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    Ranks::of(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ),
    Ranks::of(
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_SIZE",
    ),
    Ranks::of("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    Ranks::of("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE"),
    Ranks::of("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    Ranks::of("RANK_ID", "DEVICE_ID", "RANK_SIZE"),
];
