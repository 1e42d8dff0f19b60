//! Executables: compiled modules that run. Every call is checked against the signature, because not
//! every plugin does.

use super::bindings::*;
use super::buffer::Buffer;
use super::call::Call;
use super::client::{Client, ClientInner};
use super::compiled_module::{CompiledMemory, CompiledModule, program};
use super::event::Event;
use super::handle::{Handle, Owner};
use super::memory::{array, string};
use super::options::CompileOptions;
use super::plugin::implemented;
use super::signature::Signature;
use super::stall_timeout::{self, Watched};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::Arc;

/// A compiled module on its devices.
pub struct Executable {
    // Declared, and so dropped, in this order: the module may lean on the loaded executable.
    module: CompiledModule,
    loaded: Handle<PJRT_LoadedExecutable, Arc<ClientInner>>,
    signature: Signature,
    /// Numbers, among this process's devices, of those that it runs on here.
    devices: Vec<usize>,
}

/// What an execution gives at once, before anything is computed.
pub struct Execution {
    /// By device, then output.
    pub outputs: Vec<Vec<Buffer>>,
    /// By device; comes when the whole execution is over there, well or badly.
    pub done: Vec<Event>,
}

/// What may differ from one execution to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions<'a> {
    /// Inputs that are not to be donated this time, though the module would (it then gets a copy).
    pub keep: &'a [usize],
}

impl Client {
    /// Compiles a serialized HloModuleProto. `signature` must be the module's own, on each device.
    pub fn compile(
        &self,
        module: &[u8],
        signature: Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        // Partitioning changes shapes; what a device then sees is known only afterwards, and only
        // for outputs.
        if options.num_partitions == 1 {
            signature
                .check_module(module)
                .map_err(|e| e.during("compiling a module"))?;
        }
        self.compile_program(module, "hlo", signature, options)
    }

    /// Compiles StableHLO: MLIR text, or bytecode of a version that the plugin takes.
    pub fn compile_stablehlo(
        &self,
        module: &[u8],
        signature: Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let executable = self.compile_program(module, "mlir", signature, options)?;
        executable
            .check_inputs()
            .map_err(|e| e.during("compiling a StableHLO module"))?;
        Ok(executable)
    }

    fn compile_program(
        &self,
        code: &[u8],
        format: &str,
        signature: Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let compile = || {
            let options = options.to_bytes()?;
            let args = PJRT_Client_Compile_Args {
                client: self.inner.raw(),
                program: &program(code, format),
                compile_options: options.as_ptr().cast(),
                compile_options_size: options.len(),
                ..Default::default()
            };
            // SAFETY: program and options live through the call; plugins only read the code, as the
            // header's `const` program says. The executable is new and nobody else has it.
            unsafe {
                let made =
                    stall_timeout::wait(Watched::Compile, self.inner.plugin().path(), || {
                        self.inner.call(args)
                    })?;
                Executable::from_raw(made.executable, &self.inner, signature)
            }
        };
        let compiled = compile();
        give_back_memory();
        compiled.map_err(|e| {
            e.during(format!(
                "compiling a module ({} bytes of {format}) for {}",
                code.len(),
                self.platform_name()
            ))
        })
    }

    /// Loads what [`Executable::serialize`] gave, in this or another process, with the same plugin
    /// on the same kind of machine. Plugins check such bytes badly; whoever stores them must make
    /// sure that they are the ones stored, and for this machine.
    pub fn load(&self, serialized: &[u8], signature: Signature) -> Result<Executable> {
        let executable = self.load_stored(serialized, signature)?;
        executable
            .check_inputs()
            .map_err(|e| e.during("loading a compiled executable"))?;
        Ok(executable)
    }

    /// The same for bytes of which the caller knows that they were compiled from a module of this
    /// signature, as a cache with checksums does. Comparing the inputs costs a tenth of what
    /// loading does: the whole optimized module is read.
    pub fn load_stored(&self, serialized: &[u8], signature: Signature) -> Result<Executable> {
        let args = PJRT_Executable_DeserializeAndLoad_Args {
            client: self.inner.raw(),
            serialized_executable: serialized.as_ptr().cast(),
            serialized_executable_size: serialized.len(),
            ..Default::default()
        };
        // SAFETY: the bytes live through the call. The executable is new and nobody else has it.
        let loaded = unsafe {
            self.inner.call(args).and_then(|made| {
                Executable::from_raw(made.loaded_executable, &self.inner, signature)
            })
        };
        loaded.map_err(|e| {
            e.during(format!(
                "loading a compiled executable ({} bytes) for {}",
                serialized.len(),
                self.platform_name()
            ))
        })
    }
}

impl Executable {
    /// Takes a loaded executable over and makes sure that its outputs are the signature's.
    ///
    /// # Safety
    /// `raw` is null or a loaded executable of this client that nobody else will destroy.
    pub(super) unsafe fn from_raw(
        raw: *mut PJRT_LoadedExecutable,
        client: &Arc<ClientInner>,
        signature: Signature,
    ) -> Result<Executable> {
        // SAFETY: the caller's promise is the same.
        let loaded = unsafe { Handle::new(raw, client.clone(), PJRT_Client_Compile_Args::NAME) }?;
        let made = loaded.ask::<PJRT_LoadedExecutable_GetExecutable_Args>()?;
        let call = PJRT_LoadedExecutable_GetExecutable_Args::NAME;
        // SAFETY: the result is a handle of its own, new, and nobody else has it.
        let module = unsafe { CompiledModule::from_raw(made.executable, client.clone(), call) }?;
        module.check_outputs(&signature)?;
        let told = loaded.ask::<PJRT_LoadedExecutable_AddressableDevices_Args>()?;
        // SAFETY: the loaded executable is alive and owns the array, which is read at once.
        let devices = unsafe { array(told.addressable_devices, told.num_addressable_devices) };
        let devices: Option<Vec<usize>> = devices
            .iter()
            .map(|&device| client.device_number(device))
            .collect();
        let devices = devices
            .filter(|devices| !devices.is_empty())
            .ok_or_else(|| {
                client.plugin().answer(
                    PJRT_LoadedExecutable_AddressableDevices_Args::NAME,
                    "the executable runs on none of this process's devices",
                )
            })?;
        Ok(Executable {
            module,
            loaded,
            signature,
            devices,
        })
    }

    /// Makes sure, where the module was not at hand before, that its inputs are the signature's:
    /// they are read off the optimized module. Neuron's is a wrapper around foreign code, whose
    /// inputs need not be the original's.
    pub(super) fn check_inputs(&self) -> Result<()> {
        if self.loaded.owner.platform_name() == "neuron" {
            return Ok(());
        }
        implemented(self.optimized_hlo())?
            .map_or(Ok(()), |module| self.signature.check_module_inputs(&module))
    }

    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    pub fn num_outputs(&self) -> usize {
        self.signature.outputs.len()
    }

    /// The numbers of the devices that it runs on in this process, in the order of argument lists.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Starts an execution on its one device and returns its outputs, which fill later.
    pub fn execute(&self, args: &[&Buffer]) -> Result<Vec<Buffer>> {
        if self.devices.len() != 1 {
            return Err(Error::NotSingleDevice {
                devices: self.devices.len(),
            });
        }
        let mut execution = self.run_lists(&[args], RunOptions::default())?;
        Ok(execution
            .outputs
            .pop()
            .expect("one list of outputs for each list of arguments"))
    }

    /// Starts an execution on all its devices: an argument list for each, a list of outputs from
    /// each.
    pub fn execute_replicated(&self, args: &[Vec<&Buffer>]) -> Result<Vec<Vec<Buffer>>> {
        Ok(self.run(args, RunOptions::default())?.outputs)
    }

    /// Starts an execution, with its completion events.
    pub fn run(&self, args: &[Vec<&Buffer>], options: RunOptions) -> Result<Execution> {
        let lists: Vec<&[&Buffer]> = args.iter().map(Vec::as_slice).collect();
        self.run_lists(&lists, options)
    }

    fn run_lists(&self, args: &[&[&Buffer]], options: RunOptions) -> Result<Execution> {
        self.check_args(args)?;
        let client = &self.loaded.owner;
        let keep: Vec<i64> = options.keep.iter().map(|&i| i as i64).collect();
        let mut run_options = PJRT_ExecuteOptions {
            launch_id: if self.devices.len() == 1 && client.is_alone() {
                0
            } else {
                client.next_launch()
            },
            non_donatable_input_indices: keep.as_ptr(),
            num_non_donatable_input_indices: keep.len(),
            ..Default::default()
        };
        let inputs: Vec<Vec<*mut PJRT_Buffer>> = args
            .iter()
            .map(|list| list.iter().map(|b| b.raw()).collect())
            .collect();
        let input_lists: Vec<*const *mut PJRT_Buffer> =
            inputs.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PJRT_Buffer>> =
            vec![vec![null_mut(); self.num_outputs()]; args.len()];
        let output_lists: Vec<*mut *mut PJRT_Buffer> =
            outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        // Always asked for: Neuron's runtime wants it so, and on a failure it is where the reason
        // is.
        let mut done: Vec<*mut PJRT_Event> = vec![null_mut(); args.len()];
        let call = PJRT_LoadedExecutable_Execute_Args {
            executable: self.loaded.raw(),
            options: &mut run_options,
            argument_lists: input_lists.as_ptr(),
            num_devices: args.len(),
            num_args: self.signature.inputs.len(),
            output_lists: output_lists.as_ptr(),
            device_complete_events: done.as_mut_ptr(),
            ..Default::default()
        };
        // A plugin may wait within the call, for memory or for the execution before.
        // SAFETY: every list is as long as the call's arguments state (arguments: checked above;
        // outputs: the count that the plugin itself gave when the executable was made) and lives
        // through the call; all buffers are of this client and alive.
        let started = stall_timeout::wait(
            Watched::Device("the start of an execution"),
            client.plugin().path(),
            || unsafe { client.call(call) },
        );
        started.map_err(|e| {
            e.during(format!(
                "executing on {} device(s) of {}",
                args.len(),
                client.plugin().path().display()
            ))
        })?;
        let call = PJRT_LoadedExecutable_Execute_Args::NAME;
        // Take everything over before looking for gaps, so that nothing leaks if there is one.
        // SAFETY: events and outputs are new and nobody else has them; the outputs' shapes were
        // compared when the executable was made.
        let done: Vec<Result<Event>> = done
            .into_iter()
            .map(|raw| unsafe { Event::from_raw(raw, client, call) })
            .collect();
        let outputs: Vec<Vec<Result<Buffer>>> = self
            .devices
            .iter()
            .zip(&outputs)
            .map(|(&device, list)| {
                list.iter()
                    .zip(&self.signature.outputs)
                    .map(|(&raw, shape)| unsafe {
                        Buffer::from_raw(raw, shape, device, client, call)
                    })
                    .collect()
            })
            .collect();
        Ok(Execution {
            outputs: outputs
                .into_iter()
                .map(|list| list.into_iter().collect())
                .collect::<Result<_>>()?,
            done: done.into_iter().collect::<Result<_>>()?,
        })
    }

    /// Everything about the arguments that a plugin might not check itself.
    fn check_args(&self, args: &[&[&Buffer]]) -> Result<()> {
        if args.len() != self.devices.len() {
            return Err(Error::Count {
                what: "argument list (one for each device)",
                expected: self.devices.len(),
                got: args.len(),
            });
        }
        for (list, &device) in args.iter().zip(&self.devices) {
            if list.len() != self.signature.inputs.len() {
                return Err(Error::Count {
                    what: "argument",
                    expected: self.signature.inputs.len(),
                    got: list.len(),
                });
            }
            for (index, (buffer, expected)) in list.iter().zip(&self.signature.inputs).enumerate() {
                if buffer.shape() != expected {
                    let (expected, got) = (expected.clone(), buffer.shape().clone());
                    return Err(Error::ArgumentShape {
                        device,
                        index,
                        expected,
                        got,
                    });
                }
                if !buffer.belongs_to(&self.loaded.owner) {
                    return Err(Error::ArgumentClient { device, index });
                }
                if buffer.device() != device {
                    return Err(Error::ArgumentDevice {
                        device,
                        index,
                        expected: device,
                        got: buffer.device(),
                    });
                }
                if buffer.is_deleted() {
                    return Err(Error::ArgumentDeleted {
                        device,
                        index,
                        shape: expected.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The compiled code as bytes for [`Client::load`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.module.serialize()
    }

    /// The plugin's fingerprint: equal for equal code, options and compiler. Bytes as text; not
    /// every plugin's is readable.
    pub fn fingerprint(&self) -> Result<String> {
        if let Some(fingerprint) = implemented(self.module.fingerprint())? {
            return Ok(fingerprint);
        }
        // The older call.
        let told = self
            .loaded
            .ask::<PJRT_LoadedExecutable_Fingerprint_Args>()?;
        let (text, size) = (
            told.executable_fingerprint,
            told.executable_fingerprint_size,
        );
        // SAFETY: the executable is alive and owns the text, which is copied at once.
        Ok(unsafe { string(text, size) })
    }

    /// The compiler's account of memory on one device.
    pub fn memory_stats(&self) -> Result<CompiledMemory> {
        self.module.memory_stats()
    }

    /// The compiler's estimate of work (`flops`, `bytes accessed`, ...). The body of a loop is
    /// counted once.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        self.module.cost_analysis()
    }

    /// The module as it runs, after all passes: a serialized HloModuleProto.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        self.module.optimized_hlo()
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inputs, outputs) = (self.signature.inputs.len(), self.signature.outputs.len());
        write!(
            f,
            "Executable({inputs} inputs, {outputs} outputs, devices {:?})",
            self.devices
        )
    }
}

/// Gives what a compiler has freed back to the system: hundreds of MiB of small pieces, which the
/// allocator would keep beside a step's buffers.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: glibc's own function, which takes its own locks.
    unsafe {
        libc::malloc_trim(0)
    };
}
