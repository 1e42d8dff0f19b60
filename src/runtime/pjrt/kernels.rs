//! Which matmul kernels graphs get on the CPU: of each precision the one whose instructions do the most
//! FLOP/s on this processor, unless another clearly multiplies faster, both as measured. The environment
//! may leave some out, to measure others and to test what another processor would choose.

use crate::error::{Error, Result};
use std::fmt;
use xtrain_graphs::op::CpuKernel;
use xtrain_graphs::{CpuKernels, DType};

/// Which matmul kernels may be chosen.
const VARIABLE: &str = "XTRAIN_CPU_KERNELS";
/// Peaks whose ratio is less are equal: the kernel that is first in [`CpuKernel::ALL`] is then preferred, since
/// those of AVX-512 have attention.
const EQUAL: f64 = 1.2;
/// How many times as fast as the preferred kernel another has to multiply. What else the machine does slows
/// the kernels unequally, AMX most, whose tiles the threads of a core share: less would make the choice,
/// and so the bits of results and the key of a compiled graph, a matter of the hour.
const CLEARLY: f64 = 1.5;

/// The speed of a matmul kernel on one core of this processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpeed {
    pub kernel: CpuKernel,
    /// 10^9 FLOP/s of a matmul as a layer has it.
    pub gflops: f64,
    /// 10^9 FLOP/s of the kernel's instructions on registers alone.
    pub peak: f64,
}

/// For people: `avx512-bf16 208 GFLOP/s a core (90% of its peak)`.
impl fmt::Display for KernelSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.gflops / self.peak;
        let (name, gflops) = (self.kernel.name(), self.gflops);
        write!(
            f,
            "{name} {gflops:.0} GFLOP/s a core ({share:.0}% of its peak)"
        )
    }
}

/// Of the measured kernels those that a target has, for bf16 first.
pub fn of_target(kernels: CpuKernels, speeds: &[KernelSpeed]) -> Vec<KernelSpeed> {
    let speed = |kernel| speeds.iter().find(|speed| speed.kernel == kernel).copied();
    let chosen = [kernels.bf16, kernels.f32].into_iter().flatten();
    chosen.filter_map(speed).collect()
}

/// The kernels for a processor that has those of `speeds`, of those that the environment allows.
///
/// # Errors
/// If the environment names a kernel that is not among them.
pub(super) fn choose(speeds: &[KernelSpeed]) -> Result<CpuKernels> {
    choose_among(speeds, &std::env::var(VARIABLE).unwrap_or_default())
}

/// `allowed`: names of kernels, separated by commas, and of what is left out, `-amx` for `amx-bf16` and
/// `amx-f32`. Without names all others may be chosen.
fn choose_among(speeds: &[KernelSpeed], allowed: &str) -> Result<CpuKernels> {
    let words = allowed.split(',').map(str::trim);
    let (left_out, named): (Vec<&str>, Vec<&str>) = words
        .filter(|word| !word.is_empty())
        .partition(|word| word.starts_with('-'));
    let here: Vec<&str> = CpuKernel::ALL
        .into_iter()
        .filter(|kernel| speeds.iter().any(|speed| speed.kernel == *kernel))
        .map(CpuKernel::name)
        .collect();
    let refused = |problem: String, fix: String| Error::Contradiction {
        variable: VARIABLE,
        value: allowed.to_string(),
        problem,
        fix,
    };
    if let Some(name) = named.iter().find(|name| !here.contains(name)) {
        let problem = format!("names {name}, which is no matmul kernel of this processor");
        let fix = match &here[..] {
            [] => "it has none: unset the variable".to_string(),
            here => format!("it has {}", here.join(", ")),
        };
        return Err(refused(problem, fix));
    }
    let is_of = |name: &str, group: &str| {
        let rest = name.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let all = CpuKernel::ALL.map(CpuKernel::name);
    let unknown = |word: &&&str| !all.iter().any(|name| is_of(name, &word[1..]));
    if let Some(word) = left_out.iter().find(unknown) {
        let problem = format!("leaves out {}, which is no matmul kernel", &word[1..]);
        return Err(refused(
            problem,
            format!("the kernels are {}", all.join(", ")),
        ));
    }
    let may_be = |kernel: CpuKernel| {
        let name = kernel.name();
        (named.is_empty() || named.contains(&name))
            && !left_out.iter().any(|word| is_of(name, &word[1..]))
    };
    let best_of = |dtype: DType| {
        let speed = |kernel| speeds.iter().find(|speed| speed.kernel == kernel);
        let of_type = CpuKernel::ALL
            .into_iter()
            .filter(|kernel| kernel.dtype() == dtype);
        let candidates = of_type.filter(|kernel| may_be(*kernel)).filter_map(speed);
        let preferred = candidates
            .clone()
            .reduce(|best, next| better(best, next, EQUAL, |speed| speed.peak))?;
        Some(candidates.fold(preferred, |best, next| {
            better(best, next, CLEARLY, |speed| speed.gflops)
        }))
    };
    let chosen = [best_of(DType::BF16), best_of(DType::F32)];
    let is_chosen = |kernel| chosen.iter().flatten().any(|speed| speed.kernel == kernel);
    Ok(CpuKernels::best(is_chosen))
}

/// `next` if its figure is more than `times` the figure of `best`, which stays otherwise.
fn better<'a>(
    best: &'a KernelSpeed,
    next: &'a KernelSpeed,
    times: f64,
    figure: impl Fn(&KernelSpeed) -> f64,
) -> &'a KernelSpeed {
    if figure(next) > times * figure(best) {
        next
    } else {
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CpuKernel::{
        AmxBf16, AmxF32, Avx2F32, Avx2WidenedBf16, Avx512Bf16, Avx512F32, Avx512WidenedBf16,
    };

    fn speeds(all: &[(CpuKernel, f64)]) -> Vec<KernelSpeed> {
        all.iter()
            .map(|&(kernel, gflops)| KernelSpeed {
                kernel,
                gflops,
                peak: 1.1 * gflops,
            })
            .collect()
    }

    fn chosen(speeds: &[KernelSpeed], allowed: &str) -> (Option<CpuKernel>, Option<CpuKernel>) {
        let kernels = choose_among(speeds, allowed).unwrap();
        (kernels.bf16, kernels.f32)
    }

    /// The Xeon of issue 50, whose products of pairs are half as fast as multiply-adds of f32, and what
    /// AMD's and other Intels' reach.
    #[test]
    fn kernels_are_the_best_of_their_type() {
        let avx2 = [(Avx2F32, 100.0), (Avx2WidenedBf16, 98.0)];
        let all = |more: &[(CpuKernel, f64)]| speeds(&[more, &avx2].concat());
        let f32 = [(Avx512F32, 160.0), (Avx512WidenedBf16, 157.0)];
        let slow_pairs = all(&[&f32[..], &[(Avx512Bf16, 81.0)]].concat());
        let both = (Some(Avx512WidenedBf16), Some(Avx512F32));
        assert_eq!(chosen(&slow_pairs, ""), both);
        assert_eq!(chosen(&all(&f32), ""), both);
        let zen = all(&[&f32[..], &[(Avx512Bf16, 300.0)]].concat());
        assert_eq!(chosen(&zen, ""), (Some(Avx512Bf16), Some(Avx512F32)));
        let tiles = [(AmxBf16, 1200.0), (AmxF32, 260.0), (Avx512Bf16, 81.0)];
        let tiles = all(&[&f32[..], &tiles].concat());
        assert_eq!(chosen(&tiles, ""), (Some(AmxBf16), Some(AmxF32)));
        let haswell = all(&[]);
        assert_eq!(chosen(&haswell, ""), (Some(Avx2WidenedBf16), Some(Avx2F32)));
        // Measured on another day, by less than noise: the first of the list stays.
        let noisy = all(&[(Avx512Bf16, 160.0), (Avx512WidenedBf16, 165.0)]);
        assert_eq!(chosen(&noisy, "").0, Some(Avx512Bf16));
        assert_eq!(chosen(&[], ""), (None, None));
    }

    /// What a Xeon with AMX reached alone, and beside work that kept its tiles busy; and one whose tiles
    /// would not be worth their use.
    #[test]
    fn other_work_does_not_change_the_choice() {
        let measured = |amx: (f64, f64), avx512: (f64, f64)| {
            [(AmxF32, amx), (Avx512F32, avx512)]
                .map(|(kernel, (gflops, peak))| KernelSpeed {
                    kernel,
                    gflops,
                    peak,
                })
                .to_vec()
        };
        let alone = measured((167.6, 382.3), (137.8, 177.9));
        let busy = measured((61.8, 360.9), (75.1, 156.7));
        let useless = measured((61.8, 360.9), (137.8, 177.9));
        assert_eq!(chosen(&alone, "").1, Some(AmxF32));
        assert_eq!(chosen(&busy, "").1, Some(AmxF32));
        assert_eq!(chosen(&useless, "").1, Some(Avx512F32));
    }

    #[test]
    fn the_environment_names_kernels_or_leaves_some_out() {
        let all = CpuKernel::ALL.map(|kernel| (kernel, 100.0));
        let all = speeds(&all);
        let both = (Some(Avx512Bf16), Some(Avx2F32));
        assert_eq!(chosen(&all, "avx512-bf16, avx2-f32"), both);
        assert_eq!(chosen(&all, "avx2-f32"), (None, Some(Avx2F32)));
        for (left_out, want) in [
            ("-amx", (Avx512Bf16, Avx512F32)),
            ("-amx,-avx512-bf16", (Avx512WidenedBf16, Avx512F32)),
            ("-amx, -avx512", (Avx2WidenedBf16, Avx2F32)),
            ("-amx-bf16", (Avx512Bf16, AmxF32)),
        ] {
            let want = (Some(want.0), Some(want.1));
            assert_eq!(chosen(&all, left_out), want, "{left_out}");
        }
        let message = |speeds: &[KernelSpeed], allowed: &str| {
            choose_among(speeds, allowed).unwrap_err().to_string()
        };
        let absent = message(&all[1..], "amx-bf16");
        assert!(
            absent.contains("XTRAIN_CPU_KERNELS=amx-bf16 names amx-bf16")
                && absent.contains("avx512-widened-bf16"),
            "{absent}"
        );
        let unknown = message(&all, "-avx51");
        assert!(
            unknown.contains("leaves out avx51, which is no matmul kernel")
                && unknown.contains("avx512-bf16"),
            "{unknown}"
        );
        // What a processor lacks may be left out on it all the same.
        assert_eq!(chosen(&speeds(&[(Avx2F32, 1.0)]), "-amx").1, Some(Avx2F32));
    }

    #[test]
    fn speeds_are_described_with_their_share_of_the_peak() {
        let zen = speeds(&[(Avx512Bf16, 220.0), (Avx512F32, 110.0), (Avx2F32, 100.0)]);
        let of = of_target(choose_among(&zen, "").unwrap(), &zen);
        let texts: Vec<String> = of.iter().map(KernelSpeed::to_string).collect();
        assert_eq!(
            texts,
            [
                "avx512-bf16 220 GFLOP/s a core (91% of its peak)",
                "avx512-f32 110 GFLOP/s a core (91% of its peak)"
            ]
        );
    }
}
