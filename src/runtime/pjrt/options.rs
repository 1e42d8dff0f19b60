//! Options: what a client is created with (named values) and what a module is compiled with
//! (`CompileOptionsProto`).
//!
//! The protobuf messages are the few fields of XLA's that we set, under the field numbers of
//! `xla/pjrt/proto/compile_options.proto` and `xla/xla_data.proto` in the pinned XLA. Their bytes
//! are deterministic (maps are sorted), so a cache key may be made of them.

use super::bindings::{self, *};
use super::call::CStruct;
use super::memory::{array, string};
use crate::error::{Error, Result};
use prost::Message;
use std::borrow::Cow;
use std::collections::BTreeMap;
use xtrain_proto::xla as proto;

/// A value of a client option or of a plugin's attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    String(String),
    Int(i64),
    IntList(Vec<i64>),
    Float(f32),
    Bool(bool),
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OptionValue::String(v) => f.write_str(v),
            OptionValue::Int(v) => write!(f, "{v}"),
            OptionValue::IntList(v) => {
                let parts: Vec<String> = v.iter().map(i64::to_string).collect();
                f.write_str(&parts.join("."))
            }
            OptionValue::Float(v) => write!(f, "{v}"),
            OptionValue::Bool(v) => write!(f, "{v}"),
        }
    }
}

/// Views options as the C interface wants them. The result points into `options`.
pub(super) fn named_values(options: &[(String, OptionValue)]) -> Vec<PJRT_NamedValue> {
    let convert = |(name, value): &(String, OptionValue)| {
        let (kind, value, value_size) = match value {
            OptionValue::String(v) => (
                PJRT_NamedValue_kString,
                PJRT_NamedValue__bindgen_ty_1 {
                    string_value: v.as_ptr().cast(),
                },
                v.len(),
            ),
            OptionValue::Int(v) => (
                PJRT_NamedValue_kInt64,
                PJRT_NamedValue__bindgen_ty_1 { int64_value: *v },
                1,
            ),
            OptionValue::IntList(v) => (
                PJRT_NamedValue_kInt64List,
                PJRT_NamedValue__bindgen_ty_1 {
                    int64_array_value: v.as_ptr(),
                },
                v.len(),
            ),
            OptionValue::Float(v) => (
                PJRT_NamedValue_kFloat,
                PJRT_NamedValue__bindgen_ty_1 { float_value: *v },
                1,
            ),
            OptionValue::Bool(v) => (
                PJRT_NamedValue_kBool,
                PJRT_NamedValue__bindgen_ty_1 { bool_value: *v },
                1,
            ),
        };
        PJRT_NamedValue {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            type_: kind,
            __bindgen_anon_1: value,
            value_size,
            ..Default::default()
        }
    };
    options.iter().map(convert).collect()
}

/// Copies a plugin's named values; those of a type that 0.90 does not know are left out.
///
/// # Safety
/// `values` points to `count` named values of the plugin, or is null.
pub(super) unsafe fn read_named(
    values: *const PJRT_NamedValue,
    count: usize,
) -> Vec<(String, OptionValue)> {
    // SAFETY: the caller's promise.
    let first = unsafe { array(values, count.min(1)) };
    // A plugin with larger structs would need another stride; none has them, and guessing would
    // read nonsense.
    if first.iter().any(|v| v.struct_size > PJRT_NamedValue::SIZE) {
        return Vec::new();
    }
    // SAFETY: the caller's promise; the struct size has been looked at.
    let values = unsafe { array(values, count) };
    let mut read = Vec::with_capacity(values.len());
    for v in values {
        // SAFETY: the type says which member of the union is set, and pointers come with their sizes.
        let (name, value) = unsafe {
            let value = match v.type_ {
                bindings::PJRT_NamedValue_kString => {
                    OptionValue::String(string(v.__bindgen_anon_1.string_value, v.value_size))
                }
                bindings::PJRT_NamedValue_kInt64 => {
                    OptionValue::Int(v.__bindgen_anon_1.int64_value)
                }
                bindings::PJRT_NamedValue_kInt64List => OptionValue::IntList(
                    array(v.__bindgen_anon_1.int64_array_value, v.value_size).to_vec(),
                ),
                bindings::PJRT_NamedValue_kFloat => {
                    OptionValue::Float(v.__bindgen_anon_1.float_value)
                }
                bindings::PJRT_NamedValue_kBool => OptionValue::Bool(v.__bindgen_anon_1.bool_value),
                _ => continue,
            };
            (string(v.name, v.name_size), value)
        };
        read.push((name, value));
    }
    read
}

/// An XLA option set for one compilation, without the `--`. The type must be the option's own: a
/// bool given as the string "true" is refused. Enums take their names as strings, repeated enums
/// names separated by commas.
#[derive(Clone, Debug, PartialEq)]
pub enum OverrideValue {
    String(String),
    Bool(bool),
    Int(i64),
    Double(f64),
}

/// How to compile a module.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    pub num_replicas: usize,
    pub num_partitions: usize,
    /// Global device ids, by replica and then partition; the plugin's default order if not given.
    pub device_assignment: Option<Vec<Vec<i64>>>,
    /// XLA options for this compilation only (`XLA_FLAGS` is never used: every XLA in the process
    /// reads it).
    pub overrides: BTreeMap<String, OverrideValue>,
    /// Let XLA partition the module along `num_partitions` by the shardings in it.
    pub use_spmd_partitioning: bool,
    pub use_shardy_partitioner: bool,
    /// A profile that guides the GPU's scheduler (`fdo_profile`).
    pub profile: Vec<u8>,
    /// Bytes of memory that the compiler may plan with; 0 leaves it to the device.
    pub device_memory_bytes: i64,
    /// What else decides about the code, by name: versions and variables that the compiler reads by
    /// itself. It is not handed over here; whoever keeps compiled code keys on it.
    pub surroundings: BTreeMap<&'static str, String>,
    /// Options that say where things are on this machine and change nothing about the code. They
    /// are handed over as `overrides` are, which win over them; whoever keeps compiled code does
    /// not key on them.
    pub local: BTreeMap<&'static str, OverrideValue>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: None,
            overrides: BTreeMap::new(),
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            profile: Vec::new(),
            device_memory_bytes: 0,
            surroundings: BTreeMap::new(),
            local: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// One replica on each of `n` devices.
    pub fn replicated(n: usize) -> Self {
        CompileOptions {
            num_replicas: n,
            ..Default::default()
        }
    }

    /// Of options whose device assignment is for several stages of a pipeline, one after the other,
    /// those of one stage. With P stages, number P x (1 + a) + b stands for the stages a and b
    /// together.
    pub fn of_stage(&self, stage: usize) -> Cow<'_, Self> {
        let each = self.num_replicas;
        let Some(rows) = self
            .device_assignment
            .as_ref()
            .filter(|rows| rows.len() > each)
        else {
            return Cow::Borrowed(self);
        };
        let (stages, of) = (rows.len() / each, |stage: usize| {
            rows[stage * each..(stage + 1) * each].to_vec()
        });
        let own = match stage.checked_sub(stages) {
            None => of(stage),
            Some(pair) => [of(pair / stages), of(pair % stages)].concat(),
        };
        Cow::Owned(CompileOptions {
            num_replicas: own.len(),
            device_assignment: Some(own),
            ..self.clone()
        })
    }

    /// The same options with one XLA option more.
    pub fn with(mut self, name: impl Into<String>, value: OverrideValue) -> Self {
        self.overrides.insert(name.into(), value);
        self
    }

    /// The serialized `CompileOptionsProto`, equal for equal options.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let invalid = |reason: String| Err(Error::Options { reason });
        if self.num_replicas == 0 || self.num_partitions == 0 {
            return invalid(format!(
                "{} replicas x {} partitions; both must be 1 or more",
                self.num_replicas, self.num_partitions
            ));
        }
        if let Some(assignment) = &self.device_assignment {
            let columns_fit = assignment
                .iter()
                .all(|row| row.len() == self.num_partitions);
            if assignment.len() != self.num_replicas || !columns_fit {
                return invalid(format!(
                    "the device assignment must have {} rows (replicas) of {} devices (partitions) each",
                    self.num_replicas, self.num_partitions
                ));
            }
        }
        let build = proto::ExecutableBuildOptionsProto {
            device_ordinal: -1,
            num_replicas: self.num_replicas as i64,
            num_partitions: self.num_partitions as i64,
            use_spmd_partitioning: self.use_spmd_partitioning,
            use_shardy_partitioner: self.use_shardy_partitioner,
            fdo_profile: self.profile.clone(),
            device_memory_size: self.device_memory_bytes,
            device_assignment: self
                .device_assignment
                .as_ref()
                .map(|rows| assignment(rows, self.num_partitions)),
            ..Default::default()
        };
        let local = self
            .local
            .iter()
            .map(|(name, value)| (name.to_string(), value.into()));
        let overrides = local
            .chain(
                self.overrides
                    .iter()
                    .map(|(name, value)| (name.clone(), value.into())),
            )
            .collect();
        Ok(proto::CompileOptionsProto {
            executable_build_options: Some(build),
            env_option_overrides: overrides,
            ..Default::default()
        }
        .encode_to_vec())
    }
}

impl From<&OverrideValue> for proto::OptionOverrideProto {
    fn from(value: &OverrideValue) -> Self {
        use proto::option_override_proto::Value;
        let value = match value {
            OverrideValue::String(v) => Value::StringField(v.clone()),
            OverrideValue::Bool(v) => Value::BoolField(*v),
            OverrideValue::Int(v) => Value::IntField(*v),
            OverrideValue::Double(v) => Value::DoubleField(*v),
        };
        proto::OptionOverrideProto { value: Some(value) }
    }
}

fn assignment(rows: &[Vec<i64>], partitions: usize) -> proto::DeviceAssignmentProto {
    let column = |p: usize| proto::device_assignment_proto::ComputationDevice {
        replica_device_ids: rows.iter().map(|row| row[p]).collect(),
    };
    proto::DeviceAssignmentProto {
        replica_count: rows.len() as i32,
        computation_count: partitions as i32,
        computation_devices: (0..partitions).map(column).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_options_are_the_least_that_plugins_take() {
        let bytes = CompileOptions::default().to_bytes().unwrap();
        // Field 3: device_ordinal -1, one replica, one partition.
        let expected = [
            0x1a, 15, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x20, 1,
            0x28, 1,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bytes_do_not_depend_on_the_order_of_setting() {
        let (a, b) = (
            ("a", OverrideValue::Bool(true)),
            ("b", OverrideValue::Double(0.5)),
        );
        let set = |options: CompileOptions, (name, value): &(&str, OverrideValue)| {
            options.with(*name, value.clone())
        };
        let one = set(set(CompileOptions::default(), &a), &b)
            .to_bytes()
            .unwrap();
        let other = set(set(CompileOptions::default(), &b), &a)
            .to_bytes()
            .unwrap();
        assert_eq!(one, other);
        assert_ne!(one, CompileOptions::default().to_bytes().unwrap());
    }

    #[test]
    fn what_the_user_says_wins_over_what_is_local() {
        let local = |value: &str| CompileOptions {
            local: BTreeMap::from([("folder", OverrideValue::String(value.into()))]),
            ..Default::default()
        };
        assert_ne!(
            local("here").to_bytes().unwrap(),
            local("there").to_bytes().unwrap()
        );
        let folder = OverrideValue::String("mine".into());
        let both = local("here")
            .with("folder", folder.clone())
            .to_bytes()
            .unwrap();
        assert_eq!(
            both,
            CompileOptions::default()
                .with("folder", folder)
                .to_bytes()
                .unwrap()
        );
    }

    #[test]
    fn named_values_survive_the_round_trip() {
        let options = vec![
            ("text".to_owned(), OptionValue::String("äö".into())),
            ("number".to_owned(), OptionValue::Int(-3)),
            ("list".to_owned(), OptionValue::IntList(vec![1, 13, 0])),
            ("part".to_owned(), OptionValue::Float(0.75)),
            ("flag".to_owned(), OptionValue::Bool(true)),
            ("empty".to_owned(), OptionValue::String(String::new())),
        ];
        let values = named_values(&options);
        // SAFETY: the values point into `options`, which is alive.
        assert_eq!(
            unsafe { read_named(values.as_ptr(), values.len()) },
            options
        );
    }
}
