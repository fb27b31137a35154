//! Texts of the kernel and of libraries: `/proc/PID/maps` and `stat`, the control group and the environment, schemas and symbols
//! of PyTorch's operators.

use crate::Target;
use crate::pieces::{Pieces, put};
use memscope_ledger::event::ProcessFacts;
use memscope_site::operators::{schema, signature};
use memscope_site::{mapped, maps, process};
use std::hint::black_box;

pub(crate) const TARGET: Target = Target {
    name: "texts",
    reads: "/proc/PID/maps and stat, the control group and the environment as workloads, schemas and symbols of operators",
    read,
    seeds,
    held_mib: 16,
    held_per_byte: 1024,
    longest: 1 << 13,
};

fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    while let Some((kind, bytes)) = pieces.piece() {
        match kind % 5 {
            0 => {
                let (lines, _) = maps::parse(bytes);
                for line in &lines {
                    assert!(line.start <= line.end);
                    black_box(line.address_of(line.offset));
                }
                for object in mapped::group(bytes).objects {
                    black_box((
                        object.is_executable(),
                        object.display_path(),
                        object.file_name(),
                    ));
                    black_box(object.code_address(0x1000));
                }
            }
            1 => drop(black_box(process::parse_stat(bytes))),
            2 => {
                if let Some(schema) = std::str::from_utf8(bytes).ok().and_then(schema::read) {
                    black_box(schema.structure());
                }
            }
            3 => {
                let text = String::from_utf8_lossy(bytes);
                let mut lines = text.split('\n').map(str::to_owned);
                let facts = ProcessFacts {
                    cgroup: lines.next(),
                    environment: lines
                        .filter_map(|line| {
                            let (name, value) = line.split_once('=')?;
                            Some((name.to_owned(), value.to_owned()))
                        })
                        .collect(),
                    ..ProcessFacts::default()
                };
                black_box((facts.workload(), facts.kubernetes_namespace()));
            }
            _ => {
                black_box(signature::structure(bytes));
                if let Ok(symbol) = std::str::from_utf8(bytes) {
                    let _ = black_box(signature::of_symbol(symbol, true));
                    let _ = black_box(signature::of_symbol(symbol, false));
                }
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let texts: [(u8, &str); 9] = [
        (
            0,
            "7f2c8a600000-7f2c8a7b2000 r-xp 00028000 fe:01 131090                     /usr/lib/libc.so.6\n\
             7f2c8a7b2000-7f2c8a7b3000 rw-p 00000000 00:00 0 \n\
             7ffc1000-7ffc2000 r-xp 00000000 00:00 0      [vdso]\n\
             1000-2000 r-xp 0 00:2a 7 /opt/my libs/lib\\012a  b.so (deleted)\n",
        ),
        (
            1,
            "4242 (py (3)) S 1 4242 4242 34816 4242 4194304 1 2 3 4 5 6 7 8 20 0 9 0 12345 1 2 3\n",
        ),
        (
            2,
            "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        ),
        (
            2,
            "aten::max_pool2d(Tensor(a!) self, int[2] kernel_size, int[2] stride=[], bool ceil_mode=False) -> (Tensor, Tensor[])",
        ),
        (
            3,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0c3f1a2b_1111_2222_3333_444455556666.slice/\
             cri-containerd-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n\
             KUBERNETES_SERVICE_HOST=10.0.0.1\nHOSTNAME=trainer-0\nPOD_NAMESPACE=team",
        ),
        (
            3,
            "/system.slice/slurmstepd.scope/job_4242/step_0/user/task_0\nSLURM_JOB_ID=4242\nSLURM_PROCID=3\nRANK=3\nWORLD_SIZE=8",
        ),
        (
            3,
            "/system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\nLSB_JOBID=7",
        ),
        (
            4,
            "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE",
        ),
        (4, "_ZN2at4_ops3cat4callERKN3c108IListRefINS_6TensorEEEl"),
    ];
    let mut seeds = Vec::new();
    let mut all = Vec::new();
    for (kind, text) in texts {
        let mut seed = Vec::new();
        put(kind, text.as_bytes(), &mut seed);
        all.extend_from_slice(&seed);
        seeds.push(seed);
    }
    seeds.push(all);
    seeds
}
