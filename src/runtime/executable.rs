//! Executables: compiled modules that run. Every call is checked against the signature, because not every plugin does.

use super::buffer::Buffer;
use super::client::ClientInner;
use super::error::{Error, Result};
use super::event::Event;
use super::ffi::{self, Call, PjrtBuffer, PjrtEvent, PjrtExecutable, PjrtLoadedExecutable};
use super::options::{OptionValue, read_named};
use super::plugin::{array, bytes, string};
use super::signature::Signature;
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A compiled module on its devices.
pub struct Executable {
    // Declared, and so dropped, in this order: the description may lean on the loaded executable.
    description: Description,
    loaded: Loaded,
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

/// The compiler's account of memory on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemory {
    pub argument_bytes: i64,
    pub output_bytes: i64,
    /// Part of both arguments and outputs: donated memory.
    pub alias_bytes: i64,
    pub temp_bytes: i64,
    pub generated_code_bytes: i64,
}

impl CompiledMemory {
    /// What the device needs while the module runs. (The plugins' own peak counts arguments only, on some.)
    pub fn peak(&self) -> i64 {
        self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
    }
}

impl Executable {
    /// Takes a loaded executable over and makes sure that its outputs are the signature's.
    ///
    /// # Safety
    /// `raw` is null or a loaded executable of this client that nobody else will destroy.
    pub(super) unsafe fn from_raw(
        raw: *mut PjrtLoadedExecutable,
        client: &Arc<ClientInner>,
        signature: Signature,
    ) -> Result<Executable> {
        let plugin = &client.plugin.inner;
        let raw = NonNull::new(raw).ok_or_else(|| plugin.answer(ffi::ClientCompile::SLOT, "gave no executable"))?;
        let loaded = Loaded { raw, client: client.clone() };

        let mut get = ffi::LoadedExecutableGetExecutable { loaded_executable: loaded.raw(), ..Default::default() };
        // SAFETY: the loaded executable is alive; the result is a handle of its own.
        unsafe { client.call(&mut get) }?;
        let description = NonNull::new(get.executable)
            .ok_or_else(|| plugin.answer(ffi::LoadedExecutableGetExecutable::SLOT, "gave no executable"))?;
        let description = Description { raw: description, client: client.clone() };
        description.check_outputs(&signature)?;

        let mut devices = ffi::LoadedExecutableAddressableDevices { executable: loaded.raw(), ..Default::default() };
        // SAFETY: the loaded executable is alive and owns the array, which is read at once.
        let devices = unsafe {
            client.call(&mut devices)?;
            array(devices.devices, devices.num_devices)
        };
        let devices: Option<Vec<usize>> = devices.iter().map(|&device| client.device_number(device)).collect();
        let devices = devices.filter(|devices| !devices.is_empty()).ok_or_else(|| {
            plugin.answer(ffi::LoadedExecutableAddressableDevices::SLOT, "the executable runs on none of this process's devices")
        })?;
        Ok(Executable { description, loaded, signature, devices })
    }

    /// Makes sure, where the module was not at hand before, that its inputs are the signature's: they are read off the
    /// optimized module. Neuron's is a wrapper around foreign code, whose inputs need not be the original's.
    pub(super) fn check_inputs(&self) -> Result<()> {
        let client = &self.loaded.client;
        if client.platform_name() == "neuron" {
            return Ok(());
        }
        match self.optimized_hlo() {
            Ok(module) => self.signature.check_module_inputs(&module),
            Err(e) if e.is_unimplemented() => Ok(()),
            Err(e) => Err(e),
        }
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
            return Err(Error::NotSingleDevice { devices: self.devices.len() });
        }
        let mut execution = self.run_lists(&[args], RunOptions::default())?;
        Ok(execution.outputs.pop().expect("one list of outputs for each list of arguments"))
    }

    /// Starts an execution on all its devices: an argument list for each, a list of outputs from each.
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
        let client = &self.loaded.client;
        let keep: Vec<i64> = options.keep.iter().map(|&i| i as i64).collect();
        let mut run_options = ffi::ExecuteOptions {
            launch_id: if self.devices.len() == 1 { 0 } else { client.next_launch() },
            non_donatable_input_indices: keep.as_ptr(),
            num_non_donatable_input_indices: keep.len(),
            ..Default::default()
        };
        let inputs: Vec<Vec<*mut PjrtBuffer>> = args.iter().map(|list| list.iter().map(|b| b.raw()).collect()).collect();
        let input_lists: Vec<*const *mut PjrtBuffer> = inputs.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PjrtBuffer>> = vec![vec![null_mut(); self.num_outputs()]; args.len()];
        let output_lists: Vec<*mut *mut PjrtBuffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        // Always asked for: Neuron's runtime wants it so, and on a failure it is where the reason is.
        let mut done: Vec<*mut PjrtEvent> = vec![null_mut(); args.len()];
        let mut call = ffi::LoadedExecutableExecute {
            executable: self.loaded.raw(),
            options: &mut run_options,
            argument_lists: input_lists.as_ptr(),
            num_devices: args.len(),
            num_args: self.signature.inputs.len(),
            output_lists: output_lists.as_ptr(),
            device_complete_events: done.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: every list is as long as the call is told (arguments: checked above; outputs: the count that the plugin itself
        // gave when the executable was made) and lives through the call; all buffers are of this client and alive.
        let started = unsafe { client.call(&mut call) };
        started.map_err(|e| e.during(format!("executing on {} device(s) of {}", args.len(), client.plugin.path().display())))?;

        // Take everything over before looking for gaps, so that nothing leaks if there is one.
        // SAFETY: events are new and nobody else has them.
        let done: Vec<Option<Event>> = done.into_iter().map(|raw| unsafe { Event::from_raw(raw, client) }).collect();
        let own = |device: usize, raw: &[*mut PjrtBuffer]| -> Vec<Option<Buffer>> {
            let shapes = &self.signature.outputs;
            let wrap = |(&raw, shape): (&*mut PjrtBuffer, &xtrain_graphs::Shape)| {
                // SAFETY: outputs are new and nobody else has them; their shapes were compared when the executable was made.
                NonNull::new(raw).map(|raw| unsafe { Buffer::from_raw(raw, shape.clone(), device, client) })
            };
            raw.iter().zip(shapes).map(wrap).collect()
        };
        let outputs: Vec<Vec<Option<Buffer>>> = self.devices.iter().zip(&outputs).map(|(&d, raw)| own(d, raw)).collect();
        let gap = || client.plugin.inner.answer(ffi::LoadedExecutableExecute::SLOT, "left an output or event out");
        Ok(Execution {
            outputs: outputs.into_iter().map(|list| list.into_iter().collect()).collect::<Option<_>>().ok_or_else(gap)?,
            done: done.into_iter().collect::<Option<_>>().ok_or_else(gap)?,
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
                return Err(Error::Count { what: "argument", expected: self.signature.inputs.len(), got: list.len() });
            }
            for (index, (buffer, expected)) in list.iter().zip(&self.signature.inputs).enumerate() {
                if buffer.shape() != expected {
                    let (expected, got) = (expected.clone(), buffer.shape().clone());
                    return Err(Error::ArgumentShape { device, index, expected, got });
                }
                if !buffer.belongs_to(&self.loaded.client) {
                    return Err(Error::ArgumentClient { device, index });
                }
                if buffer.device() != device {
                    return Err(Error::ArgumentDevice { device, index, expected: device, got: buffer.device() });
                }
                if buffer.is_deleted() {
                    return Err(Error::ArgumentDeleted { device, index, shape: expected.clone() });
                }
            }
        }
        Ok(())
    }

    /// The compiled code as bytes for [`super::Client::load`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = ffi::ExecutableSerialize { executable: self.description.raw(), ..Default::default() };
        // SAFETY: the executable is alive.
        unsafe { self.call(&mut args) }.map_err(|e| e.during("serializing an executable"))?;
        // SAFETY: the bytes live until their backing is deleted, just below, once, and are copied before.
        let copy = unsafe { bytes(args.bytes, args.bytes_size) }.to_vec();
        if let Some(deleter) = args.deleter {
            // SAFETY: the plugin's own deleter on its own object, called once.
            unsafe { deleter(args.backing) };
        }
        Ok(copy)
    }

    /// The plugin's fingerprint: equal for equal code, options and compiler. Bytes as text; not every plugin's is readable.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = ffi::ExecutableFingerprint { executable: self.description.raw(), ..Default::default() };
        // SAFETY: the executable is alive and owns the text, which is copied at once.
        match unsafe { self.call(&mut args) } {
            Ok(()) => return Ok(unsafe { string(args.fingerprint, args.fingerprint_size) }),
            Err(e) if e.is_unimplemented() => {}
            Err(e) => return Err(e),
        }
        let mut args = ffi::LoadedExecutableFingerprint { executable: self.loaded.raw(), ..Default::default() };
        // SAFETY: as above, for the older call.
        unsafe {
            self.call(&mut args)?;
            Ok(string(args.fingerprint, args.fingerprint_size))
        }
    }

    /// The compiler's account of memory on one device.
    pub fn memory_stats(&self) -> Result<CompiledMemory> {
        let mut args = ffi::ExecutableGetCompiledMemoryStats { executable: self.description.raw(), ..Default::default() };
        // SAFETY: the executable is alive; all outputs are numbers.
        unsafe { self.call(&mut args) }?;
        Ok(CompiledMemory {
            argument_bytes: args.argument_size,
            output_bytes: args.output_size,
            alias_bytes: args.alias_size,
            temp_bytes: args.temp_size,
            generated_code_bytes: args.generated_code_size,
        })
    }

    /// The compiler's estimate of work (`flops`, `bytes accessed`, ...). The body of a loop is counted once.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        let mut args = ffi::ExecutableGetCostAnalysis { executable: self.description.raw(), ..Default::default() };
        // SAFETY: the executable is alive and owns the values, which are copied at once.
        let values = unsafe {
            self.call(&mut args)?;
            read_named(args.properties, args.num_properties)
        };
        let number = |(name, value)| match value {
            OptionValue::Float(v) => Some((name, f64::from(v))),
            OptionValue::Int(v) => Some((name, v as f64)),
            _ => None,
        };
        Ok(values.into_iter().filter_map(number).collect())
    }

    /// The module as it runs, after all passes: a serialized HloModuleProto.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        let mut program = ffi::Program::default();
        let mut args =
            ffi::ExecutableOptimizedProgram { executable: self.description.raw(), program: &mut program, ..Default::default() };
        // SAFETY: with no memory for the code, the call only tells its size.
        unsafe { self.call(&mut args) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        // SAFETY: the code fits into the memory given, by the plugin's own word.
        unsafe { self.call(&mut args) }?;
        // SAFETY: the format is a constant of the plugin's.
        let format = unsafe { string(program.format, program.format_size) };
        match format.as_str() {
            "hlo" => Ok(code),
            "hlo_with_config" => {
                let wrapped =
                    ModuleWithConfig::decode(code.as_slice()).map_err(|e| Error::ModuleBytes { reason: e.to_string() })?;
                Ok(wrapped.module)
            }
            other => {
                let reason = format!("its optimized program is in the format \"{other}\", not HLO");
                Err(self.loaded.client.plugin.inner.answer(ffi::ExecutableOptimizedProgram::SLOT, reason))
            }
        }
    }

    /// # Safety
    /// As for `PluginInner::call`.
    unsafe fn call<A: Call>(&self, args: &mut A) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.loaded.client.call(args) }
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inputs, outputs) = (self.signature.inputs.len(), self.signature.outputs.len());
        write!(f, "Executable({inputs} inputs, {outputs} outputs, devices {:?})", self.devices)
    }
}

/// `HloModuleProtoWithConfig`, of which only the module is wanted.
#[derive(Clone, PartialEq, prost::Message)]
struct ModuleWithConfig {
    #[prost(bytes = "vec", tag = "1")]
    module: Vec<u8>,
}

/// Owns the handle that runs.
struct Loaded {
    raw: NonNull<PjrtLoadedExecutable>,
    client: Arc<ClientInner>,
}

// SAFETY: a loaded executable may be used and destroyed from any thread.
unsafe impl Send for Loaded {}
// SAFETY: its calls are thread-safe, executing included.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn raw(&self) -> *mut PjrtLoadedExecutable {
        self.raw.as_ptr()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: this handle owns the executable; this is its last use. Executions under way hold the code themselves.
        let _ = unsafe { self.client.call(&mut ffi::LoadedExecutableDestroy { executable: self.raw(), ..Default::default() }) };
    }
}

/// Owns the handle that answers questions.
struct Description {
    raw: NonNull<PjrtExecutable>,
    client: Arc<ClientInner>,
}

// SAFETY: an executable may be used and destroyed from any thread.
unsafe impl Send for Description {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for Description {}

impl Description {
    fn raw(&self) -> *mut PjrtExecutable {
        self.raw.as_ptr()
    }

    /// Count, types and dimensions of the outputs; the last two only from plugins that tell them.
    fn check_outputs(&self, signature: &Signature) -> Result<()> {
        let mut count = ffi::ExecutableNumOutputs { executable: self.raw(), ..Default::default() };
        // SAFETY: the executable is alive.
        unsafe { self.client.call(&mut count) }?;
        // The plugin will write this many handles into our memory at each execution.
        if count.num_outputs != signature.outputs.len() {
            return Err(Error::SignatureCount { side: "output", module: count.num_outputs, signature: signature.outputs.len() });
        }
        let mut types = ffi::ExecutableOutputElementTypes { executable: self.raw(), ..Default::default() };
        let mut dims = ffi::ExecutableOutputDimensions { executable: self.raw(), ..Default::default() };
        // SAFETY: the executable is alive and owns both arrays for as long.
        let told = unsafe { self.client.call(&mut types).and_then(|()| self.client.call(&mut dims)) };
        match told {
            Ok(()) => {}
            Err(e) if e.is_unimplemented() => return Ok(()),
            Err(e) => return Err(e),
        }
        // SAFETY: the lengths are the plugin's own; the dimensions of all outputs lie one after another.
        let (types, dims) = unsafe {
            let ranks = array(dims.dim_sizes, dims.num_outputs);
            let all = array(dims.dims, ranks.iter().sum());
            let mut at = 0;
            let mut split = Vec::with_capacity(ranks.len());
            for &rank in ranks {
                split.push(all[at..at + rank].to_vec());
                at += rank;
            }
            (array::<c_int>(types.types, types.num_types), split)
        };
        if types.len() != dims.len() {
            let reason = format!("tells {} output types but {} output dimensions", types.len(), dims.len());
            return Err(self.client.plugin.inner.answer(ffi::ExecutableOutputDimensions::SLOT, reason));
        }
        signature.check_outputs(types, &dims)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: this handle owns the executable's description; this is its last use.
        let _ = unsafe { self.client.call(&mut ffi::ExecutableDestroy { executable: self.raw(), ..Default::default() }) };
    }
}
