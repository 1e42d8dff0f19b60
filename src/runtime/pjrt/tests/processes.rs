//! Clients of several processes, here all in one: they know of each other only through the store,
//! and exchange over sockets.

use super::*;
use crate::{KeyValueStore, StoreError};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex};

#[derive(Default)]
struct Memory {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl KeyValueStore for Memory {
    fn put(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError> {
        self.values.lock().unwrap().insert(key.into(), value.into());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, patience: Duration) -> std::result::Result<Vec<u8>, StoreError> {
        let values = self.values.lock().unwrap();
        let (values, _) = self
            .changed
            .wait_timeout_while(values, patience, |values| !values.contains_key(key))
            .unwrap();
        values
            .get(key)
            .cloned()
            .ok_or_else(|| StoreError::Timeout(format!("{key} did not come")))
    }

    fn try_get(&self, key: &str) -> std::result::Result<Option<Vec<u8>>, StoreError> {
        Ok(self.values.lock().unwrap().get(key).cloned())
    }
}

fn options(
    process: i64,
    processes: i64,
    devices: i64,
    connect_timeout: i64,
) -> Vec<(String, OptionValue)> {
    [
        ("process_id", process),
        ("num_processes", processes),
        ("cpu_device_count", devices),
        ("connect_timeout_seconds", connect_timeout),
        ("collective_timeout_seconds", 60),
    ]
    .map(|(name, value)| (name.to_string(), OptionValue::Int(value)))
    .into()
}

/// `None`, reported loudly, without the library, or where it was built without Gloo.
fn client(store: &Arc<Memory>, options: &[(String, OptionValue)]) -> Option<Client> {
    let plugin = cpu(1)?.plugin().clone();
    match Client::create_among(&plugin, options, Some(store.clone())) {
        Err(error) if error.to_string().contains("need Gloo") => {
            Group::Gloo.skip("libxtrain_gloo.so was not built; bin/bootstrap fetches libgloo-dev");
            None
        }
        client => Some(client.unwrap()),
    }
}

const ALL: &str = r#"module @all attributes {mhlo.num_replicas = 4 : i32} { func.func public @main(%x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<16xf32>, tensor<1xf32>, tensor<4xf32>, tensor<4xf32>) {
  %sum = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  %most = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  %all = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}
      : (tensor<4xf32>) -> tensor<16xf32>
  %part = "stablehlo.reduce_scatter"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<1xf32>
  %next = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 2], [2, 3]]> : tensor<3x2xi64>}
      : (tensor<4xf32>) -> tensor<4xf32>
  %turned = "stablehlo.all_to_all"(%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64,
      replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %sum, %most, %all, %part, %next, %turned
      : tensor<4xf32>, tensor<4xf32>, tensor<16xf32>, tensor<1xf32>, tensor<4xf32>, tensor<4xf32> } }"#;

/// Every collective over two processes with two devices each, by the definitions of the operations.
#[test]
fn every_collective_works_across_processes() {
    let store = Arc::new(Memory::default());
    let Some(clients) = (0..2)
        .map(|p| client(&store, &options(p, 2, 2, 30)))
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    // Replica r has r * 10 + 0..4.
    let values =
        |replica: usize| -> Vec<f32> { (0..4).map(|i| (replica * 10 + i) as f32).collect() };
    std::thread::scope(|scope| {
        for (process, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                assert_eq!(
                    (
                        client.processes(),
                        client.process_index(),
                        client.devices().len()
                    ),
                    (2, process as i32, 4)
                );
                assert_eq!(client.addressable_devices().len(), 2);
                let ids: Vec<Vec<i64>> = client
                    .devices()
                    .iter()
                    .map(|device| vec![i64::from(device.id())])
                    .collect();
                let compile = CompileOptions {
                    device_assignment: Some(ids),
                    ..CompileOptions::replicated(4)
                };
                let shapes = [&[4][..], &[4], &[16], &[1], &[4], &[4]].map(f32s);
                let all = client
                    .compile_stablehlo(
                        ALL.as_bytes(),
                        Signature::new([f32s(&[4])], shapes),
                        &compile,
                    )
                    .unwrap();
                let inputs: Vec<Buffer> = (0..2)
                    .map(|d| put(client, &values(process * 2 + d), d))
                    .collect();
                let args: Vec<Vec<&Buffer>> = inputs.iter().map(|b| vec![b]).collect();
                // More than once: the connections stay.
                for _ in 0..3 {
                    for (device, outputs) in
                        all.execute_replicated(&args).unwrap().iter().enumerate()
                    {
                        let replica = process * 2 + device;
                        let got: Vec<Vec<f32>> =
                            outputs.iter().map(|o| o.download_to().unwrap()).collect();
                        let whole: Vec<f32> = (0..4).flat_map(values).collect();
                        let turned: Vec<f32> = (0..4).map(|from| values(from)[replica]).collect();
                        assert_eq!(got[0], [60.0, 64.0, 68.0, 72.0]);
                        assert_eq!(got[1], values(2 + replica % 2));
                        assert_eq!(got[2], whole);
                        assert_eq!(got[3], [[60.0, 64.0, 68.0, 72.0][replica]]);
                        assert_eq!(
                            got[4],
                            if replica == 0 {
                                vec![0.0; 4]
                            } else {
                                values(replica - 1)
                            }
                        );
                        assert_eq!(got[5], turned);
                    }
                }
            });
        }
    });
}

/// A process that never comes is an error of the step, in time; a wrong number is one at once.
#[test]
fn a_missing_process_is_an_error() {
    let store = Arc::new(Memory::default());
    let Some(alone) = client(&store, &options(0, 2, 1, 1)) else {
        return;
    };
    let ids = alone
        .devices()
        .iter()
        .map(|device| vec![i64::from(device.id())])
        .collect();
    let compile = CompileOptions {
        device_assignment: Some(ids),
        ..CompileOptions::replicated(2)
    };
    let text = ALL_REDUCE
        .replace("num_replicas = 4", "num_replicas = 2")
        .replace("[[0, 1, 2, 3]]> : tensor<1x4", "[[0, 1]]> : tensor<1x2");
    let sum = alone
        .compile_stablehlo(
            text.as_bytes(),
            Signature::new([f32s(&[4])], [f32s(&[4])]),
            &compile,
        )
        .unwrap();
    let x = put(&alone, &[1.0; 4], 0);
    let error = message(
        sum.run(&[vec![&x]], RunOptions::default())
            .and_then(|run| run.outputs[0][0].download()),
    );
    assert!(
        error.contains("cannot reach the other processes"),
        "{error}"
    );

    let plugin = alone.plugin();
    let refused = |options: &[(String, OptionValue)], store: Option<Arc<dyn KeyValueStore>>| {
        message(Client::create_among(plugin, options, store))
    };
    let error = refused(&options(2, 2, 1, 1), Some(store.clone()));
    assert!(
        error.contains("process_id is 2 of num_processes 2"),
        "{error}"
    );
    assert!(refused(&options(0, 2, 1, 1), None).contains("needs kv_get_callback"));
    let vendors = [
        ("node_id".to_string(), OptionValue::Int(1)),
        ("num_nodes".to_string(), OptionValue::Int(2)),
    ];
    assert_eq!(
        Client::create_among(plugin, &vendors, Some(store))
            .unwrap()
            .process_index(),
        1
    );
}
