//! The mesh that the degrees ask for, one of which may be `auto`: what the others leave of the
//! devices that are visible.

use super::choices::Device;
use super::error::{UsageError, refuse};
use super::flags::Flags;
use super::kind::Degree;
use super::setting::Setting;
use std::path::Path;
use xtrain_parallel::Mesh;
use xtrain_runtime::neuron::host::Host;
use xtrain_runtime::visible;

/// The degrees of the axes: data, shard, tensor, pipeline.
pub fn degrees(flags: &Flags) -> [&Setting<Degree>; 4] {
    [
        &flags.data_parallel,
        &flags.shard_parallel,
        &flags.tensor_parallel,
        &flags.pipeline_parallel,
    ]
}

/// The devices of a run, arranged.
///
/// # Errors
/// An `auto` that has no answer.
pub fn mesh(flags: &Flags) -> Result<Mesh, UsageError> {
    let settings = degrees(flags);
    let mut degrees = settings.map(|degree| degree.count().unwrap_or(1));
    let given: Vec<(&str, usize)> = settings
        .iter()
        .zip(degrees)
        .filter(|(_, degree)| *degree > 1)
        .map(|(setting, degree)| (setting.name(), degree))
        .collect();
    let others = product(&given)?;
    let world = processes(flags).map(|(world, _)| world);
    if let Some(axis) = automatic(flags)? {
        let name = settings[axis].name();
        degrees[axis] = share(name, devices(flags, name)?, &given)?;
    } else if let Some(world) = world
        && !flags.data_parallel.is_given()
    {
        // The fewest with which each process has as many devices.
        degrees[0] = (1..=world)
            .find(|data| (data * others).is_multiple_of(world))
            .unwrap_or(1);
    }
    let [data, shard, tensor, stage] = degrees;
    Ok(Mesh {
        stage,
        data,
        shard,
        tensor,
    })
}

/// More than any job has.
const MOST_DEVICES: usize = 1 << 20;

/// The product of degrees.
///
/// # Errors
/// No job has as many devices.
pub fn product(given: &[(&str, usize)]) -> Result<usize, UsageError> {
    let mut degrees = given.iter().map(|(_, degree)| *degree);
    let product = degrees.try_fold(1usize, usize::checked_mul);
    product
        .filter(|devices| *devices <= MOST_DEVICES)
        .ok_or_else(|| {
            let given: Vec<_> = given
                .iter()
                .filter(|(_, degree)| *degree > 1)
                .copied()
                .collect();
            let verb = if given.len() == 1 { "is" } else { "are" };
            UsageError::illegal(
                format!("{} {verb} more than {MOST_DEVICES} devices", times(&given)),
                "lower it to the number of devices that the job has",
            )
        })
}

/// Degrees as they were given, multiplied.
pub fn times(given: &[(&str, usize)]) -> String {
    let shown = given
        .iter()
        .map(|(name, degree)| format!("--{name} {degree}"));
    shown.collect::<Vec<_>>().join(" times ")
}

/// The axis whose degree is `auto`, as its index in [`degrees`].
///
/// # Errors
/// There are two.
pub fn automatic(flags: &Flags) -> Result<Option<usize>, UsageError> {
    let settings = degrees(flags);
    let mut autos = (0..settings.len()).filter(|axis| **settings[*axis] == Degree::Auto);
    match (autos.next(), autos.next()) {
        (Some(first), Some(second)) => Err(UsageError::illegal(
            format!(
                "--{} and --{} are both auto: only one can be what the others leave",
                settings[first].name(),
                settings[second].name()
            ),
            "give a number for one of them",
        )),
        (axis, _) => Ok(axis),
    }
}

/// The degree that `auto` resolved to, for the user to see.
pub fn note(flags: &Flags) -> Option<String> {
    let axis = automatic(flags).ok()??;
    let mesh = mesh(flags).ok()?;
    let is_first = flags.member().ok()?.is_none_or(|member| member.rank == 0);
    let degree = [mesh.data, mesh.shard, mesh.tensor, mesh.stage][axis];
    let name = degrees(flags)[axis].name();
    is_first.then(|| format!("{name} is {degree}, of {} devices", mesh.devices()))
}

/// The devices divided by the degrees that are given.
fn share(name: &str, devices: usize, given: &[(&str, usize)]) -> Result<usize, UsageError> {
    let others = product(given)?;
    if devices.is_multiple_of(others) {
        return Ok(devices / others);
    }
    let dividing = |n: &usize| devices.is_multiple_of(*n);
    let near = [
        (1..others).rev().find(dividing),
        (others + 1..=devices).find(dividing),
    ];
    let near: Vec<String> = near.into_iter().flatten().map(|n| n.to_string()).collect();
    refuse(
        format!(
            "--{name} auto: {devices} devices cannot be divided by {}",
            times(given)
        ),
        if let [(own, _)] = given {
            format!("set --{own} to {}", near.join(" or "))
        } else {
            format!(
                "their product has to divide {devices}, as {} does",
                near.join(" or ")
            )
        },
    )
}

/// The processes that share the run, and how many of them run here; `None` where this is the only
/// one.
fn processes(flags: &Flags) -> Option<(usize, usize)> {
    let member = || {
        let member = flags.member().ok()??;
        Some((member.world, member.local_world))
    };
    flags.processes.or_else(member)
}

/// All devices of the run, at least one.
fn devices(flags: &Flags, name: &str) -> Result<usize, UsageError> {
    let processes = processes(flags);
    let (world, here) = processes.unwrap_or((1, 1));
    let variable = |name: &str| std::env::var(name).ok();
    let (each, what) = match *flags.device {
        Device::Cuda => {
            let cards = match &*flags.visible_devices {
                Some(listed) => listed.len(),
                None => visible::cuda_cards(Path::new("/"), variable),
            };
            (cards / here, "GPU")
        }
        Device::Neuron => {
            let cores = visible::neuron_cores(&Host::this(), here, variable);
            (cores, "Neuron core")
        }
        // One for each process that a launcher starts.
        Device::Cpu if processes.is_some() => (1, "CPU"),
        Device::Cpu => {
            return refuse(
                format!("--{name} auto: CPU devices are virtual and have no fixed number"),
                "give the number; under `xtrain launch` auto counts one device a process",
            );
        }
    };
    match each * world {
        0 => refuse(
            format!("--{name} auto: no {what} is visible to a process here"),
            format!(
                "`xtrain doctor --device {}` says what is missing; or give the number",
                *flags.device
            ),
        ),
        devices => Ok(devices),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_what_the_other_degrees_leave() {
        assert_eq!(share("data_parallel", 8, &[]), Ok(8));
        assert_eq!(share("data_parallel", 8, &[("tensor_parallel", 8)]), Ok(1));
        assert_eq!(
            share(
                "shard_parallel",
                24,
                &[("data_parallel", 2), ("tensor_parallel", 3)]
            ),
            Ok(4)
        );
    }

    /// A product that wrapped around would be a small number of devices.
    #[test]
    fn products_of_degrees_are_checked() {
        assert_eq!(product(&[]), Ok(1));
        assert_eq!(
            product(&[("shard_parallel", 8), ("tensor_parallel", 4)]),
            Ok(32)
        );
        let (one, most) = (("data_parallel", 1), 1 << 31);
        let error = product(&[one, ("shard_parallel", most)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--shard_parallel 2147483648 is more than 1048576 devices"
        );
        for given in [
            vec![("data_parallel", MOST_DEVICES + 1)],
            vec![
                ("shard_parallel", most),
                ("tensor_parallel", most),
                ("pipeline_parallel", 4),
            ],
            vec![("shard_parallel", usize::MAX), ("tensor_parallel", 2)],
        ] {
            let error = product(&given).unwrap_err().to_string();
            assert!(error.contains("more than 1048576 devices"), "{error}");
            assert_eq!(
                share("data_parallel", 8, &given).unwrap_err().to_string(),
                error
            );
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_with_the_nearest_that_does() {
        let refused = |devices, given: &[(&str, usize)]| {
            let error = share("data_parallel", devices, given).unwrap_err();
            (error.to_string(), error.hint().unwrap())
        };
        let (problem, fix) = refused(6, &[("tensor_parallel", 4)]);
        assert_eq!(
            problem,
            "--data_parallel auto: 6 devices cannot be divided by --tensor_parallel 4"
        );
        assert_eq!(fix, "set --tensor_parallel to 3 or 6");
        assert_eq!(
            refused(2, &[("shard_parallel", 16)]).1,
            "set --shard_parallel to 2"
        );
        let (problem, fix) = refused(12, &[("shard_parallel", 2), ("tensor_parallel", 4)]);
        assert_eq!(
            problem,
            "--data_parallel auto: 12 devices cannot be divided by --shard_parallel 2 times --tensor_parallel 4"
        );
        assert_eq!(fix, "their product has to divide 12, as 6 or 12 does");
    }
}
