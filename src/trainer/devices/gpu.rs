//! NVIDIA cards that graphs can be compiled for without having one (`--target`): their description
//! for XLA, from the files in `gpu/`, and what they can do at most.

use std::time::Duration;
use xtrain_runtime::{Plugin, cuda_tools};

/// A card by the name that `--target` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// 141 GB, compute capability 9.0.
    H200,
    /// 80 GB (SXM), compute capability 9.0.
    H100,
    /// 80 GB (SXM), compute capability 8.0.
    A100Gb80,
    /// 40 GB (SXM), compute capability 8.0.
    A100Gb40,
}

/// Dense peak rates of matrix products, 10^12 operations per second (NVIDIA data sheets, "Tensor
/// Core" without sparsity).
const HOPPER: Peaks = Peaks {
    low: 989.4,
    tf32: 494.7,
    exact: 66.9,
};
const AMPERE: Peaks = Peaks {
    low: 312.0,
    tf32: 156.0,
    exact: 19.5,
};

struct Peaks {
    /// bf16 and fp16 operands.
    low: f64,
    /// f32 operands that are rounded to TF32.
    tf32: f64,
    /// f32 operands as they are, which no tensor core takes.
    exact: f64,
}

/// Of the peak, what large products reach on such cards; an assumption, so that an estimate can be
/// had before a card is.
pub const PEAK_SHARE: f64 = 0.6;

/// From the end of a kernel to the start of the next one in a command buffer (CUDA graph), and between
/// kernels that the host launches one by one; assumptions, as [`PEAK_SHARE`] is.
pub const GAP_IN_BUFFER: Duration = Duration::from_nanos(1_500);
/// See [`GAP_IN_BUFFER`].
pub const GAP_BETWEEN_LAUNCHES: Duration = Duration::from_nanos(4_000);

/// Of a card's memory, what a client's allocator takes by default; the rest is the driver's and the
/// libraries'.
const MEMORY_SHARE: f64 = 0.9;

/// The same for each of several cards: NCCL keeps buffers of its own for every communicator, outside of
/// the allocator.
const MEMORY_SHARE_OF_SEVERAL: f64 = 0.85;

/// See `MEMORY_SHARE`: of each of a run's `devices`, in all processes.
pub fn memory_share(devices: usize) -> f64 {
    if devices > 1 {
        MEMORY_SHARE_OF_SEVERAL
    } else {
        MEMORY_SHARE
    }
}

/// In a card's file, what follows is not known to plugins of an older PJRT C API than this.
const SINCE: (&str, (i32, i32)) = ("# since 0.115", (0, 115));

impl Gpu {
    /// In the order of `--help`.
    pub const NAMES: [&str; 4] = ["h200", "h100", "a100-80g", "a100-40g"];
    const ALL: [Gpu; 4] = [Gpu::H200, Gpu::H100, Gpu::A100Gb80, Gpu::A100Gb40];

    /// The card of this name, as [`Gpu::name`] has it.
    pub fn named(name: &str) -> Option<Gpu> {
        Gpu::ALL.into_iter().find(|gpu| gpu.name() == name)
    }

    /// The name that `--target` takes.
    pub fn name(self) -> &'static str {
        Gpu::NAMES[self as usize]
    }

    fn file(self) -> &'static str {
        match self {
            Gpu::H200 => include_str!("gpu/h200.txtpb"),
            Gpu::H100 => include_str!("gpu/h100.txtpb"),
            Gpu::A100Gb80 => include_str!("gpu/a100-80g.txtpb"),
            Gpu::A100Gb40 => include_str!("gpu/a100-40g.txtpb"),
        }
    }

    fn peaks(self) -> Peaks {
        if self.capability() >= 90 {
            HOPPER
        } else {
            AMPERE
        }
    }

    /// A field of the card's file.
    fn number(self, field: &str) -> u64 {
        let mut lines = self.file().lines();
        let value = lines.find_map(|line| {
            line.strip_prefix(field)?
                .strip_prefix(": ")?
                .trim()
                .parse()
                .ok()
        });
        value.expect("a test reads every field of every card")
    }

    /// Compute capability without its point: 90 for 9.0.
    pub fn capability(self) -> u16 {
        let line = self
            .file()
            .lines()
            .find(|line| line.starts_with("cuda_compute_capability"));
        let digit = |name: &str| {
            line?
                .split_once(name)?
                .1
                .trim_start()
                .split([' ', '}'])
                .next()?
                .parse::<u16>()
                .ok()
        };
        digit("major:")
            .zip(digit("minor:"))
            .map(|(major, minor)| major * 10 + minor)
            .expect("a test reads every card")
    }

    /// Bytes of the card's memory.
    pub fn memory(self) -> u64 {
        self.number("device_memory_size")
    }

    /// Bytes of each that a run on `devices` cards can use, unless the share is set.
    pub fn usable_memory(self, devices: usize) -> u64 {
        (self.memory() as f64 * memory_share(devices)) as u64
    }

    /// Bytes per second between the card and its memory.
    pub fn bandwidth(self) -> f64 {
        self.number("memory_bandwidth") as f64
    }

    /// The card as a plugin wants it described: a `GpuTargetConfigProto` as text, in the form that
    /// the plugin's generation takes.
    pub fn target_config(self, plugin: &Plugin) -> String {
        self.config(
            plugin.api_version(),
            cuda_tools::cuda_version(plugin).unwrap_or(13000),
        )
    }

    fn config(self, api: (i32, i32), cuda: i64) -> String {
        let (marker, since) = SINCE;
        let card = match self.file().split_once(marker) {
            // The rest of the marker's line is a comment.
            Some((old, new)) if api >= since => format!("{old}#{new}"),
            Some((old, _)) => old.to_string(),
            None => self.file().to_string(),
        };
        let (major, minor) = (cuda / 1000, cuda % 1000 / 10);
        let version = format!("{major}.{minor}.0");
        let name = self.name().to_uppercase();
        format!(
            "gpu_device_info {{\n{card}\ndriver_version: \"{version}\"\nruntime_version: \"{version}\"\n\
             compile_time_toolkit_version: \"{version}\"\ndnn_version: \"9.10.0\"\n}}\n\
             platform_name: \"CUDA\"\ndevice_description_str: \"NVIDIA {name}\"\n"
        )
    }

    /// The time that products take at the peak rate itself.
    pub fn at_peak(self, work: Work) -> Duration {
        self.estimate(work).products.mul_f64(PEAK_SHARE)
    }

    /// The gap behind each kernel, the mean over `inside` of them in command buffers and `outside` that the host
    /// launches.
    pub fn gap(self, inside: usize, outside: usize) -> Duration {
        let gaps = GAP_IN_BUFFER * inside as u32 + GAP_BETWEEN_LAUNCHES * outside as u32;
        gaps.checked_div((inside + outside) as u32)
            .unwrap_or(GAP_BETWEEN_LAUNCHES)
    }

    /// The time that a step takes if it does nothing but this: products at [`PEAK_SHARE`] of the
    /// peak, or memory traffic at the card's bandwidth, whichever is longer.
    pub fn estimate(self, work: Work) -> Estimate {
        let peaks = self.peaks();
        let wide = if work.tf32 { peaks.tf32 } else { peaks.exact };
        let products = (work.low_flops / peaks.low + work.f32_flops / wide) / (PEAK_SHARE * 1e12);
        Estimate {
            products: seconds(products),
            memory: seconds(work.bytes / self.bandwidth()),
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// What a graph asks of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of products with 16-bit operands.
    pub low_flops: f64,
    /// Operations of all other products.
    pub f32_flops: f64,
    /// Whether those round to TF32.
    pub tf32: bool,
    /// Bytes that kernels read and write.
    pub bytes: f64,
}

/// How long a graph runs at least, by what limits it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Of the matmuls at their peak rate.
    pub products: Duration,
    /// Of the bytes at the memory's bandwidth.
    pub memory: Duration,
}

impl Estimate {
    /// The longer of the two: they overlap.
    pub fn time(&self) -> Duration {
        self.products.max(self.memory)
    }

    /// Whether products, not memory, are what it waits for.
    pub fn is_product_bound(&self) -> bool {
        self.products >= self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_has_its_numbers_and_its_source() {
        for (name, gpu) in Gpu::NAMES.into_iter().zip(Gpu::ALL) {
            assert_eq!(Gpu::named(name), Some(gpu));
            assert_eq!(gpu.name(), name);
            assert!(
                gpu.memory() > 39 << 30 && gpu.bandwidth() > 1.5e12,
                "{name}"
            );
            assert_eq!(
                gpu.capability(),
                if name.starts_with('h') { 90 } else { 80 }
            );
            assert!(
                gpu.file()
                    .lines()
                    .nth(1)
                    .is_some_and(|line| line.starts_with("# Sources: NVIDIA")),
                "{name}"
            );
        }
        assert_eq!(Gpu::named("v100"), None);
    }

    #[test]
    fn several_cards_leave_room_for_their_collectives() {
        assert_eq!([1, 2, 64].map(memory_share), [0.9, 0.85, 0.85]);
        assert!(Gpu::H100.usable_memory(8) < Gpu::H100.usable_memory(1));
    }

    #[test]
    fn older_plugins_are_not_told_what_they_refuse() {
        for gpu in Gpu::ALL {
            let (new, old) = (gpu.config((0, 115), 13000), gpu.config((0, 112), 12090));
            assert!(
                new.contains("\nmem_clock_ghz: ") && new.contains("\"13.0.0\""),
                "{new}"
            );
            assert!(
                !old.contains("mem_clock_ghz")
                    && !old.contains("max_blocks")
                    && old.contains("\"12.9.0\""),
                "{old}"
            );
            assert!(
                !new.contains("\n:"),
                "the marker's comment stays one: {new}"
            );
        }
    }

    #[test]
    fn gaps_are_shorter_in_command_buffers() {
        let gap = |inside, outside| Gpu::H100.gap(inside, outside).as_nanos();
        assert_eq!(
            [gap(10, 0), gap(0, 10), gap(0, 0), gap(5, 5)],
            [1_500, 4_000, 4_000, 2_750]
        );
        let work = Work {
            low_flops: 989.4e12,
            ..Work::default()
        };
        assert!((Gpu::H100.at_peak(work).as_secs_f64() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn an_estimate_is_the_longer_of_the_two() {
        let work = Work {
            low_flops: 593.64e12,
            bytes: 4.8e11,
            ..Work::default()
        };
        let estimate = Gpu::H200.estimate(work);
        assert!(
            (estimate.products.as_secs_f64() - 1.0).abs() < 1e-9
                && (estimate.memory.as_secs_f64() - 0.1).abs() < 1e-9
        );
        assert!(estimate.is_product_bound() && estimate.time() == estimate.products);
        let wide = Gpu::A100Gb40.estimate(Work {
            f32_flops: 93.6e12,
            low_flops: 0.0,
            tf32: true,
            bytes: 1.5552e12 * 2.0,
        });
        assert!((wide.products.as_secs_f64() - 1.0).abs() < 1e-9 && !wide.is_product_bound());
        let exact = Gpu::A100Gb40.estimate(Work {
            f32_flops: 11.7e12,
            ..Work::default()
        });
        assert!((exact.products.as_secs_f64() - 1.0).abs() < 1e-9);
    }
}
