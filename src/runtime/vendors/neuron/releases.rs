//! Known faults of releases of AWS's SDK, by the version of libneuronxla, which the plugin's package tells.

/// A release from which on something is right that was wrong.
struct Mended {
    /// The first libneuronxla with it.
    since: [u64; 3],
    /// The SDK's release.
    sdk: &'static str,
    /// What was wrong before, and who meets it.
    before: &'static str,
}

/// From AWS's release notes (components/runtime.rst, `n2-manifest.json`).
const COLLECTIVES: &[Mended] = &[Mended {
    since: [3, 0, 5356],
    sdk: "2.32",
    before: "gave wrong results where several of them share a set of cores",
}];

/// What is wrong with the collectives of the release that this libneuronxla belongs to; `None` where nothing is
/// known to be, or the version is none.
pub fn wrong_collectives(version: &str) -> Option<String> {
    let mut numbers = version.split('.').map(|part| part.parse::<u64>());
    let mut next = || numbers.next()?.ok();
    let found = [next()?, next()?, next().unwrap_or(0)];
    let mended = COLLECTIVES.iter().find(|mended| found < mended.since)?;
    Some(format!(
        "libneuronxla {version} is older than SDK {}, before which collectives {}: update it before a run on several cores",
        mended.sdk, mended.before
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_with_wrong_collectives_are_known() {
        for old in ["3.0.2891", "3.0.3854.0+abc", "2.2.17544", "3.0"] {
            assert!(
                wrong_collectives(old).is_some_and(|text| text.contains("SDK 2.32")),
                "{old}"
            );
        }
        for good in [
            "3.0.5356",
            "3.0.5356.0",
            "3.0.10135",
            "3.1.0",
            "4.0.1",
            "unknown",
            "",
        ] {
            assert_eq!(wrong_collectives(good), None, "{good}");
        }
    }
}
