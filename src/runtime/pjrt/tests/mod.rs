//! The whole runtime against the real library: what works is here, what must end in an error in
//! `misuse.rs`. Modules are StableHLO text; where HLO bytes are wanted, they are what the compiler
//! gives back.
//!
//! Without `libxtrain_xla.so` (see `library.rs` for where it is looked for) every test here is
//! recorded as skipped.

use super::*;
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use xtrain_graphs::{DType, Shape};
use xtrain_test_groups::Group;

/// A client with `devices` CPU devices, or nothing (reported) if the library is not built.
fn cpu(devices: i64) -> Option<Client> {
    let library = match Library::open() {
        Ok(library) => library,
        Err(Error::LibraryNotFound { .. }) => {
            Group::Library.skip("libxtrain_xla.so was not found; bin/bootstrap builds it");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let options = [("cpu_device_count".to_owned(), OptionValue::Int(devices))];
    Some(Client::create(&library.cpu_plugin().unwrap(), &options).unwrap())
}

macro_rules! cpu {
    ($devices:expr) => {
        match cpu($devices) {
            Some(client) => client,
            None => return,
        }
    };
}

// Below the macro, which it uses.
mod misuse;
mod processes;

fn f32s(dims: &[usize]) -> Shape {
    Shape::new(DType::F32, dims)
}

const ADD: &str =
    "module @add { func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32> } }";

const DONATE: &str =
    "module @donate { func.func public @main(%a: tensor<1024xf32> {tf.aliasing_output = 0 : i32},
    %b: tensor<1024xf32>) -> tensor<1024xf32> {
  %0 = stablehlo.add %a, %b : tensor<1024xf32>
  return %0 : tensor<1024xf32> } }";

const ALL_REDUCE: &str = r#"module @sum attributes {mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32> } }"#;

/// A chain of matrix products: long enough to be caught at work.
fn slow_module(products: usize) -> String {
    let mut text = String::from(
        "module @slow { func.func public @main(%x0: tensor<512x512xf32>) -> tensor<512x512xf32> {\n",
    );
    for i in 0..products {
        let next = i + 1;
        text += &format!(
            "%x{next} = stablehlo.dot %x{i}, %x{i} : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>\n"
        );
    }
    text + &format!("return %x{products} : tensor<512x512xf32> }} }}")
}

fn compile(client: &Client, text: &str, inputs: &[Shape], outputs: &[Shape]) -> Executable {
    client
        .compile_stablehlo(
            text.as_bytes(),
            Signature::new(inputs, outputs),
            &CompileOptions::default(),
        )
        .unwrap()
}

fn add(client: &Client) -> Executable {
    compile(client, ADD, &[f32s(&[4]), f32s(&[4])], &[f32s(&[4])])
}

fn donate(client: &Client) -> Executable {
    compile(
        client,
        DONATE,
        &[f32s(&[1024]), f32s(&[1024])],
        &[f32s(&[1024])],
    )
}

fn slow(client: &Client) -> Executable {
    compile(
        client,
        &slow_module(20),
        &[f32s(&[512, 512])],
        &[f32s(&[512, 512])],
    )
}

fn put(client: &Client, values: &[f32], device: usize) -> Buffer {
    client
        .upload(bytemuck::cast_slice(values), &f32s(&[values.len()]), device)
        .unwrap()
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("this must fail").to_string()
}

#[test]
fn a_sum_is_computed() {
    let client = cpu!(1);
    assert_eq!(client.platform_name(), "cpu");
    assert!(!client.platform_version().is_empty());
    let add = add(&client);
    let (a, b) = (
        put(&client, &[1., 2., 3., 4.], 0),
        put(&client, &[10., 20., 30., 40.], 0),
    );
    let outputs = add.execute(&[&a, &b]).unwrap();
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0].shape(), &f32s(&[4]));
    assert_eq!(
        outputs[0].download_to::<f32>().unwrap(),
        [11., 22., 33., 44.]
    );
    let execution = add.run(&[vec![&a, &b]], RunOptions::default()).unwrap();
    execution.done[0].wait().unwrap();
    assert!(execution.done[0].is_ready().unwrap());
    assert!(
        !a.is_deleted(),
        "nothing is donated unless the module says so"
    );
}

#[test]
fn plugin_and_devices_describe_themselves() {
    let client = cpu!(3);
    let (major, minor) = client.plugin().api_version();
    assert!(major == 0 && minor >= 54);
    let names: Vec<&str> = client
        .plugin()
        .attributes()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(names.contains(&"stablehlo_current_version"), "{names:?}");
    assert_eq!(client.devices().len(), 3);
    for (i, device) in client.addressable_devices().enumerate() {
        assert_eq!(device.id(), i as i32);
        assert!(!device.kind().is_empty() && device.addressable());
    }
    let held = client
        .upload(&vec![0; 1 << 20], &Shape::new(DType::U8, [1 << 20]), 1)
        .unwrap();
    if let Some(memory) = client.devices()[1].memory() {
        assert!(memory.bytes_in_use >= 1 << 20, "{memory:?}");
    }
    drop(held);
}

#[test]
fn donated_buffers_become_their_outputs() {
    let client = cpu!(1);
    let donate = donate(&client);
    let (a, b) = (put(&client, &[1.0; 1024], 0), put(&client, &[2.0; 1024], 0));
    let address = a.address().unwrap();
    let output = donate.execute(&[&a, &b]).unwrap().pop().unwrap();
    assert!(a.is_deleted() && !b.is_deleted());
    assert_eq!(output.address().unwrap(), address, "updated in place");
    assert_eq!(output.download_to::<f32>().unwrap(), [3.0; 1024]);

    let error = donate.execute(&[&a, &b]).err().unwrap();
    assert!(
        matches!(
            error,
            Error::ArgumentDeleted {
                device: 0,
                index: 0,
                ..
            }
        ),
        "{error}"
    );
    for error in [
        message(a.download()),
        message(a.wait_ready()),
        message(a.start_download_to::<f32>()),
        message(a.copy_to(0)),
    ] {
        assert!(error.contains("donated"), "{error}");
    }

    // Kept back for one execution, the argument survives.
    let execution = donate
        .run(&[vec![&output, &b]], RunOptions { keep: &[0] })
        .unwrap();
    assert!(!output.is_deleted());
    assert_eq!(
        execution.outputs[0][0].download_to::<f32>().unwrap(),
        [5.0; 1024]
    );
    assert_eq!(output.download_to::<f32>().unwrap(), [3.0; 1024]);
}

#[test]
fn the_library_prints_modules_and_refuses_garbage() {
    let client = cpu!(1);
    let library = Library::open().unwrap();
    assert!(!library.version().is_empty());
    let text = library
        .hlo_text(&add(&client).optimized_hlo().unwrap())
        .unwrap();
    assert!(
        text.starts_with("HloModule") && text.contains("f32[4]"),
        "{text}"
    );
    assert!(library.hlo_text(b"garbage").is_err());
    assert!(matches!(
        library.lower(b"garbage"),
        Err(Error::Lower { .. })
    ));
}

#[test]
fn deleting_frees_and_marks() {
    let client = cpu!(1);
    let a = put(&client, &[1.0; 4], 0);
    a.delete().unwrap();
    assert!(a.is_deleted());
    assert!(message(a.download()).contains("deleted"));
}

#[test]
fn bytes_come_back_as_they_went() {
    let client = cpu!(1);
    use DType::*;
    for dtype in [Pred, S8, S32, S64, U8, U32, U64, F16, BF16, F32, F64] {
        for dims in [vec![], vec![0, 3], vec![3, 5], vec![2, 3, 4], vec![70_000]] {
            let shape = Shape::new(dtype, dims);
            let bytes: Vec<u8> = (0..shape.bytes())
                .map(|i| if dtype == Pred { i % 2 } else { i % 127 } as u8)
                .collect();
            let buffer = client.upload(&bytes, &shape, 0).unwrap();
            assert_eq!(buffer.download().unwrap(), bytes, "{shape}");
        }
    }
    let scalar = client
        .upload(&7f32.to_le_bytes(), &Shape::scalar(F32), 0)
        .unwrap();
    assert_eq!(scalar.download_to::<f32>().unwrap(), [7.0]);
}

#[test]
fn serialized_executables_give_equal_results_or_are_refused() {
    let client = cpu!(1);
    let original = slow(&client);
    let bytes = original.serialize().unwrap();
    let fresh = cpu(1).unwrap();
    let loaded = fresh.load(&bytes, original.signature().clone()).unwrap();
    let values: Vec<f32> = (0..512 * 512)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 1.0e4)
        .collect();
    let run = |client: &Client, executable: &Executable| {
        let x = client
            .upload(bytemuck::cast_slice(&values), &f32s(&[512, 512]), 0)
            .unwrap();
        executable.execute(&[&x]).unwrap()[0].download().unwrap()
    };
    assert_eq!(run(&client, &original), run(&fresh, &loaded));

    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        let error = message(fresh.load(&bytes[..cut], original.signature().clone()));
        assert!(error.contains("loading"), "{error}");
    }
    assert!(
        fresh
            .load(b"garbage", original.signature().clone())
            .is_err()
    );
}

#[test]
fn four_devices_sum_together() {
    let client = cpu!(4);
    let signature = Signature::new([f32s(&[4])], [f32s(&[4])]);
    let sum = client
        .compile_stablehlo(
            ALL_REDUCE.as_bytes(),
            signature.clone(),
            &CompileOptions::replicated(4),
        )
        .unwrap();
    assert_eq!(sum.devices(), [0, 1, 2, 3]);
    let inputs: Vec<Buffer> = (0..4)
        .map(|d| put(&client, &[d as f32, 1.0, 0.0, 10.0 * d as f32], d))
        .collect();
    let check = |sum: &Executable| {
        let args: Vec<Vec<&Buffer>> = inputs.iter().map(|b| vec![b]).collect();
        for (device, outputs) in sum.execute_replicated(&args).unwrap().iter().enumerate() {
            assert_eq!(outputs[0].device(), device);
            assert_eq!(
                outputs[0].download_to::<f32>().unwrap(),
                [6.0, 4.0, 0.0, 60.0]
            );
        }
    };
    check(&sum);
    check(
        &client
            .load(&sum.serialize().unwrap(), signature.clone())
            .unwrap(),
    );
    assert!(matches!(
        sum.execute(&[&inputs[0]]),
        Err(Error::NotSingleDevice { devices: 4 })
    ));
    let reversed = CompileOptions {
        device_assignment: Some(vec![vec![3], vec![2], vec![1], vec![0]]),
        ..CompileOptions::replicated(4)
    };
    let reversed = client
        .compile_stablehlo(ALL_REDUCE.as_bytes(), signature, &reversed)
        .unwrap();
    assert_eq!(reversed.devices(), [3, 2, 1, 0]);

    let moved = inputs[3].copy_to(1).unwrap();
    assert_eq!(moved.device(), 1);
    assert_eq!(moved.download().unwrap(), inputs[3].download().unwrap());
}

#[test]
fn downloads_wait_for_nothing_until_asked() {
    let client = cpu!(1);
    let slow = slow(&client);
    let x = client
        .upload(
            bytemuck::cast_slice(&vec![1e-3f32; 512 * 512]),
            &f32s(&[512, 512]),
            0,
        )
        .unwrap();
    let warm = slow.execute(&[&x]).unwrap();
    let expected = warm[0].download_to::<f32>().unwrap();
    // On a busy machine this thread may sleep through an execution, so one of several has to be
    // caught at work.
    let caught = (0..10).any(|_| {
        let outputs = slow.execute(&[&x]).unwrap();
        let pending = outputs[0].start_download_to::<f32>().unwrap();
        let at_work = !pending.is_ready().unwrap();
        // The source may go; the copy holds what it needs.
        drop(outputs);
        assert_eq!(pending.wait().unwrap(), expected);
        at_work
    });
    assert!(caught, "execute or start_download_to waits for the result");

    // Dropped while under way: no write into freed memory, no hang.
    for _ in 0..5 {
        let outputs = slow.execute(&[&x]).unwrap();
        drop(outputs[0].start_download_to::<f32>().unwrap());
    }
    // Everything dropped with work in flight.
    let outputs = slow.execute(&[&x]).unwrap();
    drop((x, slow, warm, client));
    outputs[0].wait_ready().unwrap();
}

#[test]
fn a_client_dropped_with_work_in_flight_ends_cleanly() {
    let _ = cpu!(1);
    for _ in 0..5 {
        let client = cpu(1).unwrap();
        let slow = slow(&client);
        let x = client
            .upload(
                bytemuck::cast_slice(&vec![1e-3f32; 512 * 512]),
                &f32s(&[512, 512]),
                0,
            )
            .unwrap();
        drop(slow.execute(&[&x]).unwrap());
    }
}

#[test]
fn executables_account_for_themselves() {
    let client = cpu!(1);
    let donating = donate(&client);
    let memory = donating.memory_stats().unwrap();
    assert_eq!(
        (
            memory.argument_bytes,
            memory.output_bytes,
            memory.alias_bytes
        ),
        (8192, 4096, 4096)
    );
    assert_eq!(memory.peak(), 8192 + memory.temp_bytes);
    let product = "module @dot { func.func public @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
      %0 = stablehlo.dot %a, %b : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32> } }";
    let product = compile(
        &client,
        product,
        &[f32s(&[8, 16]), f32s(&[16, 4])],
        &[f32s(&[8, 4])],
    );
    let cost = product.cost_analysis().unwrap();
    assert_eq!(cost.get("flops"), Some(&1024.0), "{cost:?}");
    let fingerprint = donating.fingerprint().unwrap();
    assert!(!fingerprint.is_empty());
    assert_eq!(fingerprint, donate(&client).fingerprint().unwrap());
    assert_ne!(fingerprint, product.fingerprint().unwrap());
    assert!(!product.optimized_hlo().unwrap().is_empty());
}

/// Another vendor's plugin, of another version, through the same code: a sum on its device, or one
/// clean error without one.
#[test]
fn a_vendors_plugin_works_or_says_why_not() {
    let Some(path) = std::env::var_os("XTRAIN_TEST_PLUGIN") else {
        return Group::Plugin.skip("XTRAIN_TEST_PLUGIN does not name a vendor's PJRT plugin");
    };
    let plugin = Plugin::load(path).unwrap();
    println!("{plugin:?}: {:?}", plugin.attributes());
    match Client::create(&plugin, &[]) {
        Ok(client) => {
            println!(
                "{client:?}: {:?}, {:?}",
                client.devices(),
                client.devices()[0].memory()
            );
            let donate = donate(&client);
            println!(
                "{:?}, peak {}",
                donate.memory_stats(),
                donate.memory_stats().unwrap().peak()
            );
            let (a, b) = (put(&client, &[1.0; 1024], 0), put(&client, &[2.0; 1024], 0));
            let output = donate.execute(&[&a, &b]).unwrap().pop().unwrap();
            assert_eq!(output.download_to::<f32>().unwrap(), [3.0; 1024]);
            assert!(a.is_deleted());
            let loaded = client
                .load(&donate.serialize().unwrap(), donate.signature().clone())
                .unwrap();
            let output = loaded.execute(&[&output, &b]).unwrap().pop().unwrap();
            assert_eq!(output.download_to::<f32>().unwrap(), [5.0; 1024]);
            let module = donate.optimized_hlo().unwrap();
            assert_eq!(&Signature::of_module(&module).unwrap(), donate.signature());
        }
        Err(error) => {
            println!("{error}");
            assert!(error.code().is_some(), "{error}");
        }
    }
}

#[test]
fn threads_share_a_client() {
    let client = cpu!(2);
    let add = Arc::new(add(&client));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (client, add) = (client.clone(), add.clone());
            scope.spawn(move || {
                for round in 0..50 {
                    let value = (thread * 1000 + round) as f32;
                    let a = put(&client, &[value; 4], 0);
                    let b = put(&client, &[1.0; 4], 0);
                    let sum = add.execute(&[&a, &b]).unwrap().pop().unwrap();
                    assert_eq!(
                        sum.start_download_to::<f32>().unwrap().wait().unwrap(),
                        [value + 1.0; 4]
                    );
                }
            });
        }
    });
}

#[test]
fn ten_thousand_steps_leave_nothing_behind() {
    const PART: &str = "XTRAIN_TEST_PART";
    if cpu(1).is_none() {
        return;
    }
    if std::env::var_os(PART).is_some() {
        steps_leave_nothing_behind();
        return;
    }
    // In a process of its own: the memory that other tests of this one take at the same time is
    // not a leak.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "pjrt::tests::ten_thousand_steps_leave_nothing_behind",
            "--nocapture",
        ])
        .env(PART, "steps")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn steps_leave_nothing_behind() {
    let client = cpu(1).unwrap();
    let donate = donate(&client);
    let mut state = put(&client, &[0.0; 1024], 0);
    let ones = vec![1f32; 1024];
    let mut steps = |count: usize| {
        for i in 0..count {
            let a = put(&client, &ones, 0);
            let execution = donate
                .run(&[vec![&state, &a]], RunOptions::default())
                .unwrap();
            state = execution.outputs.into_iter().flatten().next().unwrap();
            drop(put(&client, &ones, 0).start_download_to::<f32>().unwrap());
            let _ = donate.execute(&[&a]).unwrap_err();
            if i % 100 == 0 {
                state.wait_ready().unwrap();
            }
        }
        state.download_to::<f32>().unwrap()[0]
    };
    steps(2_000);
    let before = resident_bytes();
    assert_eq!(steps(10_000), 12_000.0);
    let grown = resident_bytes().saturating_sub(before);
    // A handle of a hundred bytes leaked at each step would be more; an array would be 40 MB.
    assert!(
        grown < 1 << 20,
        "resident memory grew by {grown} bytes over 10,000 steps"
    );
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
