//! What XLA:GPU launches for a module, read from the text that its compiler writes into a dump:
//! kernels and library calls, and the command buffers (CUDA graphs) that hold them, each of which
//! the host launches as one.

use crate::OverrideValue;
use std::collections::BTreeMap;
use std::path::Path;

/// Launches of one execution; the body of a loop counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    pub command_buffers: usize,
    /// Kernels and calls inside of command buffers.
    pub inside: usize,
    /// Those that the host launches one by one.
    pub outside: usize,
}

/// The names under which a header keeps them.
const NAMES: [&str; 3] = [
    "command buffers",
    "launches in command buffers",
    "launches one by one",
];

/// The file with command buffers, and the one that is there where no pass changed anything.
const FILES: [&str; 2] = [
    "thunk_sequence_after_thunk_passes.txt",
    "thunk_sequence.txt",
];

const COMMAND_BUFFER: &str = "kCommandBuffer";

/// The options that make the compiler write it.
pub fn dump_options(dir: &Path) -> [(&'static str, OverrideValue); 2] {
    [
        (
            "xla_dump_to",
            OverrideValue::String(dir.display().to_string()),
        ),
        ("xla_dump_hlo_as_text", OverrideValue::Bool(true)),
    ]
}

impl Launches {
    /// From the dump of one module; `None` if the compiler wrote none.
    pub fn in_dump(dir: &Path) -> Option<Launches> {
        let names: Vec<_> = std::fs::read_dir(dir)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        let file = FILES.iter().find_map(|file| {
            names
                .iter()
                .find(|path| path.to_string_lossy().ends_with(file))
        })?;
        Some(Launches::read(&std::fs::read_to_string(file).ok()?))
    }

    /// A line for each launch, `007: kCustomKernel ...`; what is inside of another is indented
    /// further.
    fn read(text: &str) -> Launches {
        let mut launches = Launches::default();
        // The lines around the current one: indentation, whether it is in a command buffer.
        let mut around: Vec<(usize, bool)> = Vec::new();
        for line in text.lines() {
            let inner = line.trim_start();
            let Some((number, rest)) = inner.split_once(": ") else {
                continue;
            };
            let Some(kind) = rest
                .split_whitespace()
                .next()
                .filter(|_| number.parse::<usize>().is_ok())
            else {
                continue;
            };
            let indentation = line.len() - inner.len();
            while around
                .last()
                .is_some_and(|(outer, _)| *outer >= indentation)
            {
                around.pop();
            }
            let is_inside = around.last().is_some_and(|(_, is_inside)| *is_inside);
            match (kind == COMMAND_BUFFER, is_inside) {
                (true, _) => launches.command_buffers += 1,
                (false, true) => launches.inside += 1,
                (false, false) => launches.outside += 1,
            }
            around.push((indentation, is_inside || kind == COMMAND_BUFFER));
        }
        launches
    }

    /// As a header's numbers.
    pub fn to_cost(&self) -> impl Iterator<Item = (String, f64)> + use<> {
        let values = [self.command_buffers, self.inside, self.outside];
        NAMES
            .into_iter()
            .zip(values)
            .map(|(name, value)| (name.to_string(), value as f64))
    }

    pub fn from_cost(cost: &BTreeMap<String, f64>) -> Option<Launches> {
        let [command_buffers, inside, outside] =
            NAMES.map(|name| cost.get(name).map(|value| *value as usize));
        Some(Launches {
            command_buffers: command_buffers?,
            inside: inside?,
            outside: outside?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source | next=002 (1)] wrapped_convert grid: [128, 1, 1] threads: [128, 1, 1]
    002: kCuDnn        [prev=001 (1) | sink] kCuDnn

003: kGemm [source | sink]
004: kWhile [source | sink]
    005: kCustomKernel [source | sink] fusion
    006: kCommandBuffer [source | sink]
        007: kCustomKernel [source | sink] fusion
";

    #[test]
    fn launches_are_counted_where_they_are() {
        let launches = Launches::read(TEXT);
        assert_eq!(
            launches,
            Launches {
                command_buffers: 2,
                inside: 3,
                outside: 3
            }
        );
        assert_eq!(
            Launches::from_cost(&launches.to_cost().collect()),
            Some(launches)
        );
        assert_eq!(Launches::from_cost(&BTreeMap::new()), None);
    }

    #[test]
    fn the_dump_with_command_buffers_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Launches::in_dump(dir.path()), None);
        std::fs::write(
            dir.path().join("module_1.train.thunk_sequence.txt"),
            "001: kGemm [source]\n",
        )
        .unwrap();
        assert_eq!(Launches::in_dump(dir.path()).unwrap().outside, 1);
        std::fs::write(
            dir.path()
                .join("module_1.train.thunk_sequence_after_thunk_passes.txt"),
            TEXT,
        )
        .unwrap();
        assert_eq!(Launches::in_dump(dir.path()).unwrap().command_buffers, 2);
    }
}
