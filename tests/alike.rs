//! What the processes of one run have to have alike, with the real program: each is started for itself,
//! as torchrun or srun would do.

use crate::processes::{Launched, bench, start};
use crate::rendezvous::free_port;
use crate::support::Run;
use std::fs;
use std::time::Duration;

const RUN: &str = "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                   --block_size 32 --per_device_train_batch_size 2 --data_parallel 2 --max_steps 3 --save_strategy no --report none \
                   --output_dir out";

/// Rank 0, and others with their ranks, each with its own flags.
fn run(flags: &[(usize, &str)]) -> Option<Vec<Run>> {
    let bench = bench()?;
    let half = fs::read_to_string(bench.path("articles.txt")).unwrap();
    fs::write(bench.path("half.txt"), &half[..half.len() / 2]).unwrap();
    let port = free_port().to_string();
    let started: Vec<Launched> = flags
        .iter()
        .map(|(rank, flags)| {
            let mut process = bench.command(&format!("{RUN} {flags}")).process();
            process.env("XTRAIN_RDZV_SECRET", "correct horse battery staple");
            process
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", &port);
            process.env("WORLD_SIZE", "2").env("RANK", rank.to_string());
            process.env("LOCAL_RANK", rank.to_string());
            let process = start(process);
            // The second of a rank comes second.
            std::thread::sleep(Duration::from_millis(300));
            process
        })
        .collect();
    Some(started.into_iter().map(Launched::finish).collect())
}

#[test]
fn processes_of_other_settings_end_the_run_at_its_start() {
    let data = "--train_file articles.txt";
    for (other, message) in [
        (
            format!("{data} --learning_rate 1e-3"),
            "rank 1's settings differ from rank 0's: learning_rate 1e-3 (rank 0: 5e-5)",
        ),
        (
            format!("{data} --max_steps 4 --bf16"),
            "bf16 true (rank 0: false), max_steps 4 (rank 0: 3)",
        ),
        (
            format!("{data} --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32"),
            "the model's configuration ",
        ),
        (
            "--train_file half.txt".into(),
            "rank 1's data differ from rank 0's: the training set ",
        ),
    ] {
        let Some(runs) = run(&[(0, data), (1, &other)]) else {
            return;
        };
        let printed: Vec<&str> = runs.iter().map(|run| run.stdout.as_str()).collect();
        assert_eq!(runs[1].code, Some(2), "{other}: {printed:?}");
        assert!(printed[1].contains(message), "{other}: {}", printed[1]);
        // Rank 0 fails too, and names rank 1.
        assert_ne!(runs[0].code, Some(0), "{other}: {}", printed[0]);
        let code = runs[0].code;
        assert!(
            printed[0].contains("rank 1"),
            "{other}: {code:?} {}",
            printed[0]
        );
    }
}

/// Where files are and how they are read is each machine's own.
#[test]
fn processes_may_keep_their_files_elsewhere() {
    let data = "--train_file articles.txt";
    let other = format!("{data} --dataloader_num_workers 1 --cpu_threads 1 --color never");
    let Some(runs) = run(&[(0, data), (1, &other)]) else {
        return;
    };
    for run in runs {
        assert_eq!(run.code, Some(0), "{}", run.stdout);
    }
}

#[test]
fn a_rank_belongs_to_one_process() {
    let data = "--train_file articles.txt";
    let Some(runs) = run(&[(0, data), (1, data), (1, data)]) else {
        return;
    };
    let failed: Vec<&Run> = runs[1..].iter().filter(|run| run.code != Some(0)).collect();
    assert_eq!(failed.len(), 1, "{} {}", runs[1].stdout, runs[2].stdout);
    assert_eq!(failed[0].code, Some(1), "{}", failed[0].stdout);
    assert!(
        failed[0].stdout.contains("rank 1 is process "),
        "{}",
        failed[0].stdout
    );
    assert_eq!(runs[0].code, Some(0), "{}", runs[0].stdout);
}
