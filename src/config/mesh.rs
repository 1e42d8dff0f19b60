//! The mesh that the degrees ask for, one of which may be `auto`: what the others leave of the
//! devices that are visible.

use super::UsageError;
use super::resolve::{self, member};
use super::typed::Typed;
use crate::parallel::Mesh;
use crate::runtime::neuron::host::Host;
use crate::runtime::visible;
use std::path::Path;

/// The flags of the axes.
pub const DEGREES: [&str; 4] = [
    "data_parallel",
    "shard_parallel",
    "tensor_parallel",
    "pipeline_parallel",
];

/// The devices of a run, arranged. Refuses an `auto` that cannot be answered.
pub fn mesh(typed: &Typed) -> Result<Mesh, UsageError> {
    let mut degrees = DEGREES.map(|name| typed.count(name).unwrap_or(1).max(1));
    let world = processes(typed).map(|(world, _)| world);
    if let Some(name) = automatic(typed)? {
        let axis = DEGREES
            .iter()
            .position(|own| *own == name)
            .expect("it is one of them");
        let given: Vec<(&str, usize)> = DEGREES
            .into_iter()
            .zip(degrees)
            .filter(|(_, degree)| *degree > 1)
            .collect();
        degrees[axis] = share(name, devices(typed, name)?, &given)?;
    } else if let (Some(world), false) = (world, typed.is_given(DEGREES[0])) {
        // The fewest with which each process has as many devices.
        let others: usize = degrees[1..].iter().product();
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

/// The axis whose degree is to be found.
pub fn automatic(typed: &Typed) -> Result<Option<&'static str>, UsageError> {
    let mut autos = DEGREES
        .into_iter()
        .filter(|name| typed.text(name).as_deref() == Some("auto"));
    match (autos.next(), autos.next()) {
        (Some(first), Some(second)) => refuse(
            format!(
                "--{first} and --{second} are both auto: only one can be what the others leave"
            ),
            "give a number for one of them",
        ),
        (name, _) => Ok(name),
    }
}

/// What `auto` came to, for the user to see.
pub fn note(typed: &Typed) -> Option<String> {
    let name = automatic(typed).ok()??;
    let mesh = mesh(typed).ok()?;
    let is_first = member(typed).ok()?.is_none_or(|member| member.rank == 0);
    let degree = match name {
        "data_parallel" => mesh.data,
        "shard_parallel" => mesh.shard,
        "tensor_parallel" => mesh.tensor,
        _ => mesh.stage,
    };
    is_first.then(|| format!("{name} is {degree}, of {} devices", mesh.devices()))
}

/// The devices divided by the degrees that are given.
fn share(name: &str, devices: usize, given: &[(&str, usize)]) -> Result<usize, UsageError> {
    let others: usize = given.iter().map(|(_, degree)| degree).product();
    if devices.is_multiple_of(others) {
        return Ok(devices / others);
    }
    let dividing = |n: &usize| devices.is_multiple_of(*n);
    let near = [
        (1..others).rev().find(dividing),
        (others + 1..=devices).find(dividing),
    ];
    let near: Vec<String> = near.into_iter().flatten().map(|n| n.to_string()).collect();
    let told: Vec<String> = given
        .iter()
        .map(|(own, degree)| format!("--{own} {degree}"))
        .collect();
    refuse(
        format!(
            "--{name} auto: {devices} devices cannot be divided by {}",
            told.join(" times ")
        ),
        match &told[..] {
            [_] => format!("set --{} to {}", given[0].0, near.join(" or ")),
            _ => format!(
                "their product has to divide {devices}, as {} does",
                near.join(" or ")
            ),
        },
    )
}

/// The processes that share the run, and how many of them run here; `None` where this is the only
/// one.
fn processes(typed: &Typed) -> Option<(usize, usize)> {
    let member = || {
        member(typed)
            .ok()?
            .map(|member| (member.world, member.local_world))
    };
    typed.processes.or_else(member)
}

/// All devices of the run, at least one.
fn devices(typed: &Typed, name: &str) -> Result<usize, UsageError> {
    let processes = processes(typed);
    let (world, here) = processes.unwrap_or((1, 1));
    let variable = |name: &str| std::env::var(name).ok();
    let (each, what, fix) = match typed.text("device").as_deref() {
        Some("cuda") => {
            let listed = typed
                .text("visible_devices")
                .and_then(|list| resolve::device_numbers(&list).ok());
            let cards = listed.map_or_else(
                || visible::cuda_cards(Path::new("/"), variable),
                |list| list.len(),
            );
            (
                cards / here,
                "GPU",
                "`xtrain doctor --device cuda` says what is missing",
            )
        }
        Some("neuron") => {
            let cores = visible::neuron_cores(&Host::this(), here, variable);
            (
                cores,
                "Neuron core",
                "`xtrain doctor --device neuron` says what is missing",
            )
        }
        _ if processes.is_some() => (1, "", ""),
        _ => {
            return refuse(
                format!(
                    "--{name} auto: the CPU's devices are virtual, there are as many as are asked for"
                ),
                "give the number; under `xtrain launch` auto counts one device a process",
            );
        }
    };
    match each * world {
        0 => refuse(
            format!("--{name} auto: no {what} is visible to a process here"),
            format!("{fix}; or give the number"),
        ),
        devices => Ok(devices),
    }
}

fn refuse<T>(problem: impl Into<String>, fix: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError::illegal(problem, fix))
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
