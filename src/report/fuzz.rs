//! Damaged logs and telemetry of runs.

use crate::page::{self, Report};
use crate::runs;
use crate::top::Snapshot;
use serde_json::json;
use std::path::Path;
use xtrain_fuzz::{JSON, Target};

const TARGETS: &[Target] = &[
    Target {
        name: "log",
        file: "run.log",
        seeds: || {
            let bar = "\r 50%|#####     | 10/20 [00:05<00:05,  2.0it/s]\r";
            let loss = "{'loss': '4.5', 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.5}\n";
            let end = "{'train_runtime': 12.5, 'train_steps_per_second': 1.6, 'epoch': 1}\n";
            vec![[bar, loss, bar, loss, end].concat().into_bytes()]
        },
        words: &[
            "{",
            "}",
            "'",
            "\"",
            ":",
            ",",
            "inf",
            "nan",
            "'loss'",
            "'eval_loss'",
            "\r",
            "\n",
            "1/0 [",
            " 9/9 [00:01<",
            "'epoch': 0",
            "1e308",
            "-1",
        ],
        read: |path, _| report(path),
    },
    Target {
        name: "telemetry",
        file: "telemetry.jsonl",
        seeds: || {
            let start = json!({"event": "start", "time": 1.5, "pid": 7, "host": "h", "device": "cpu", "step": 0, "total_steps": 9});
            let process = json!({"event": "process", "time": 1.6, "processes": 2, "instances": 1, "launched": 1.0, "cores": 2});
            let step = json!({"event": "step", "time": 2.0, "step": 3, "total_steps": 9, "epoch": 0.5, "loss": 2.5, "learning_rate": 1e-3,
                "tokens_per_second": 5.0, "step_seconds": 0.1, "trace_seconds": 0.0, "compile_seconds": 0.0, "execute_seconds": 0.1,
                "wait_seconds": 0.0, "model_tflops": 0.1, "devices": [{"kind": "cpu", "bytes_in_use": 5, "peak_bytes": 9, "limit_bytes": null}]});
            let account = json!({"event": "account", "time": 3.0, "started": 1.0, "wall_seconds": 2.0, "parts": {"rest": 2.0}});
            let end = json!({"event": "end", "time": 3.0, "step": 9});
            let lines = [start, process, step.clone(), step, account, end];
            vec![lines.map(|line| line.to_string()).join("\n").into_bytes()]
        },
        words: JSON,
        read: |path, _| {
            let dir = path.parent().expect("it is in a folder");
            report(dir);
            if let Ok(found) = Snapshot::read(dir) {
                let _ = (found.numbers(), found.rank_rows(), found.device_rows());
            }
        },
    },
];

fn report(path: &Path) {
    if let Ok(runs) = runs::read(&[path.into()]) {
        let report = Report::new(runs, 0, Some(1.0));
        let _ = (
            page::html(&report),
            page::markdown(&report),
            page::json(&report),
        );
    }
}

xtrain_fuzz::tests!(TARGETS);
